"""Owns what a session's user asked for, described as a recipe, and the lane that is built on it.

Everything that reads the model or the machine is put off until a controller asks: a session without one
costs what ONNX Runtime's costs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ort_stacktune.candidates import REDUCED_PRECISIONS
from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.ort.callers import Feeds
from ort_stacktune.ort.captured import captures
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.recipes import SessionRecipe, recipe_of_options
from ort_stacktune.serving import Lane, ModelIdentity
from ort_stacktune.tuner import StackTuner
from ort_stacktune.vocabulary import Scope

_log = logging.getLogger("ort_stacktune")

REFERENCE = "reference"

# A model that can't be read is not read again for every request.
_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """The keyword arguments that a tuned session adds to ONNX Runtime's, checked when made."""

    candidates: tuple[SessionRecipe, ...] | None
    scope: Scope
    probes: tuple[Feeds, ...]
    steering: tuple[str, ...]
    reduced_precision: tuple[str, ...]

    @classmethod
    def checked(
        cls,
        candidates: Sequence[SessionRecipe] | None,
        tuner: StackTuner | None,
        scope: Scope,
        probes: Sequence[Feeds],
        steering_inputs: Sequence[str],
        reduced_precision: Sequence[str] = (),
    ) -> TuningOptions:
        """Checks the arguments.

        Raises:
            TuneFailure: ``INVALID_INPUT`` that names the argument.
        """
        if tuner is not None and not isinstance(tuner, StackTuner):
            raise invalid(f"tuner is {tuner!r}; expected a StackTuner or None for the installed one")
        if not isinstance(scope, Scope):
            raise invalid(f"scope is {scope!r}; expected a member of Scope")
        for candidate in candidates or ():
            if not isinstance(candidate, SessionRecipe):
                raise invalid(f"candidate {candidate!r} is no SessionRecipe; describe it as one")
            if candidate.name == REFERENCE:
                raise invalid(f"a candidate may not be named {REFERENCE!r}; that is the session you made")
        for probe in probes:
            if not isinstance(probe, Mapping):
                raise invalid(f"probe {probe!r} is no mapping; expected input name -> array")
        if isinstance(steering_inputs, str):
            raise invalid(f"steering_inputs is the text {steering_inputs!r}; expected a list of input names")
        if isinstance(reduced_precision, str):
            raise invalid(
                f"reduced_precision is the text {reduced_precision!r}; expected a list of precisions"
            )
        for precision in reduced_precision:
            if precision not in REDUCED_PRECISIONS:
                raise invalid(
                    f"reduced precision {precision!r} is not known; expected some of"
                    f" {', '.join(REDUCED_PRECISIONS)}"
                )
        return cls(
            None if candidates is None else tuple(candidates),
            scope,
            tuple(probes),
            tuple(steering_inputs),
            tuple(precision for precision in REDUCED_PRECISIONS if precision in reduced_precision),
        )


class Reference:
    """The reference of one tuned session.

    Args:
        path_or_bytes: The model as it was given to the session.
        options: The checked keyword arguments of ours.
        on_gone: Called with a cache key when its choice is void.
    """

    def __init__(self, path_or_bytes: Any, options: TuningOptions, on_gone: Callable[[str], None]) -> None:
        self._source = ModelSource.of(path_or_bytes)
        self._options = options
        self._on_gone = on_gone
        self._asked: dict[str, Mapping[str, Any]] = {}
        self._lock = threading.Lock()
        self._lane: Lane | None = None
        self._asked_times = 0
        self._preparing: threading.Thread | None = None
        self._failure: TuneFailure | None = None
        self._retry_at_s = 0.0
        self.reason: str | None = None

    def ask(self, providers: Sequence[Any] | None, provider_options: Sequence[Any] | None) -> None:
        """Takes down the execution providers the user asked for; an earlier lane is void."""
        self._asked = {}
        for number, entry in enumerate(providers or ()):
            name, given = entry if isinstance(entry, tuple) else (entry, {})
            self._asked[name] = provider_options[number] if provider_options else given
        with self._lock:
            self._lane = None
            self._asked_times += 1

    def is_ready(self, session: Any) -> bool:
        """Whether :meth:`lane` returns at once; where not, it is being made from now on, on another thread."""
        if self._lane is not None or self._failure is not None:
            return True
        with self._lock:
            if self._preparing is None:
                self._preparing = threading.Thread(
                    target=self._prepare, args=(session,), name="ort_stacktune reads a model", daemon=True
                )
                self._preparing.start()
        return False

    def _prepare(self, session: Any) -> None:
        try:
            self.lane(session).prepare()
        except TuneFailure as failure:
            _log.warning("served by the reference: %s", failure)
        except Exception:  # noqa: BLE001 - doubt of any kind means the reference
            _log.exception("served by the reference after an error of the tuner's own")
        finally:
            self._preparing = None

    def lane(self, session: Any) -> Lane:
        """Returns the lane, made at the first call: it reads the model and the session's options."""
        lane = self._lane
        if lane is not None:
            return lane
        if self._failure is not None and time.monotonic() < self._retry_at_s:
            raise self._failure
        asked_times = self._asked_times
        try:
            made = self._make_lane(session)
        except TuneFailure as failure:
            self._failure, self._retry_at_s = failure, time.monotonic() + _RETRY_S
            raise
        with self._lock:
            if self._lane is None and asked_times == self._asked_times:
                self._lane = made
            return self._lane or made

    def _make_lane(self, session: Any) -> Lane:
        options = session.get_session_options()
        if options.enable_profiling:
            self.reason = "its options ask for a profile of the session itself"
        if missing := [name for name in self._asked if name not in session.get_providers()]:
            _log.warning(
                "%s can't be used here, so the reference runs on %s",
                ", ".join(missing),
                ", ".join(session.get_providers()),
            )
        recipe = recipe_of_session(session, self._asked)
        if captures(recipe.provider_list):
            self.reason = "it replays what it captured, from buffers that only its user can refill"
        return Lane(
            ModelIdentity.of(self._source),
            recipe,
            # The native call, so that this lane does not keep the session alive.
            live_run=session._sess.run,
            candidates=self._options.candidates,
            scope=self._options.scope,
            probes=self._options.probes,
            steering=self._options.steering,
            reduced_precision=self._options.reduced_precision,
            on_gone=self._on_gone,
        )


def recipe_of_session(session: Any, asked: Mapping[str, Mapping[str, Any]]) -> SessionRecipe:
    """Describes a session as the reference: what its user asked of a provider, else what that filled in itself.

    Args:
        session: The ``onnxruntime.InferenceSession``.
        asked: Execution provider -> the options that its user gave.
    """
    given = session.get_provider_options() or {}
    providers = [(name, asked.get(name) or given.get(name) or {}) for name in session.get_providers()]
    return recipe_of_options(REFERENCE, session.get_session_options(), providers)
