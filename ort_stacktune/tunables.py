"""Owns sets of recipes that compute the same thing, and the call that selects one and executes once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ort_stacktune.failures import FailureKind, TuneFailure, invalid
from ort_stacktune.installed import stack_autotuner
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.ort.request import Request, RunSettings
from ort_stacktune.ort.sessions import make_session
from ort_stacktune.serving import Lane, ModelIdentity
from ort_stacktune.tuner import StackTuner
from ort_stacktune.vocabulary import Scope

# Before the module that imports its classes by name: without a build, the clear sentence has to come first.
onnxruntime()

from ort_stacktune.reading import CallReader  # noqa: E402


class TunableSet:
    """Recipes that compute the same thing, one of them the reference.

    Args:
        name: What people call the set.
        reference: The recipe that is right by definition, or its position among ``candidates``. It has to
            name a model.
        candidates: The other recipes (or all of them, where ``reference`` is a position), with unique names.
        scope: The level of the decisions.
        workload: Returns the exact signature text of the inputs; ``None`` derives it from them. What it
            leaves out must not matter: inputs with equal text are served alike.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a reference out of range, without a model, or for a name twice.
    """

    def __init__(
        self,
        name: str,
        reference: SessionRecipe | int,
        candidates: Sequence[SessionRecipe],
        *,
        scope: Scope = Scope.GRAPH,
        workload: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise invalid(f"the set's name is {name!r}; expected nonempty text")
        if not isinstance(scope, Scope):
            raise invalid(f"scope is {scope!r}; expected a member of Scope")
        recipes = list(candidates)
        if isinstance(reference, int) and not isinstance(reference, bool):
            if not 0 <= reference < len(recipes):
                raise invalid(
                    f"reference {reference} is out of range for the {len(recipes)} recipes of {name!r}"
                )
            chosen = recipes.pop(reference)
        else:
            chosen = reference  # type: ignore[assignment]
        for recipe in (chosen, *recipes):
            if not isinstance(recipe, SessionRecipe):
                raise invalid(f"{recipe!r} in {name!r} is no SessionRecipe; describe it as one")
        names = [chosen.name, *(recipe.name for recipe in recipes)]
        if len(set(names)) != len(names):
            raise invalid(f"two recipes of {name!r} share a name; names have to be unique")
        if chosen.model is None:
            raise invalid(f"the reference {chosen.name!r} of {name!r} names no model; give its path")
        self.name = name
        self.reference = chosen
        self.candidates = tuple(recipes)
        self.scope = scope
        self._workload = workload
        self._lock = threading.Lock()
        self._session: Any = None
        self._run_options: Any = None
        self._lanes: dict[str, Lane] = {}

    def execute(
        self,
        tuner: StackTuner,
        operation: str,
        inputs: Mapping[str, Any],
        output_names: Sequence[str] | None,
        run_options: Any,
    ) -> Any:
        """Selects under a controller and executes the live inputs once; see :func:`try_execute_stack`."""
        session = self._reference_session()
        request = CallReader(session).of_run(output_names, inputs, run_options)
        choice = None
        if isinstance(request, Request):
            choice = self._resolve(self._lane(operation, session), tuner, request)
        if choice is None or choice.session is None:
            return session.run(output_names, inputs, run_options or self._run_options)
        try:
            return choice.session.run(output_names, inputs, run_options or choice.run_options)
        except Exception:
            if choice.decision is not None and not (run_options is not None and run_options.terminate):
                tuner.invalidate(choice.decision, ban_candidate=True)
            raise

    @staticmethod
    def _resolve(lane: Lane, tuner: StackTuner, request: Request) -> Any:
        try:
            return lane.resolve(tuner, request, wait=False)
        except TuneFailure as failure:
            if failure.kind is FailureKind.INVALID_INPUT:
                raise
            # The reference failed its trial; the live inputs meet its own error.
            return None

    def _reference_session(self) -> Any:
        with self._lock:
            if self._session is not None:
                return self._session
        made = make_session(
            self.reference,
            ModelSource.of(self.reference.model or ""),
            self.reference,
            trial=False,
            check_placement=False,
        )
        with self._lock:
            self._run_options = self._run_options or RunSettings().make(self.reference.run_config)
            self._session = self._session or made.session
            return self._session

    def _lane(self, operation: str, session: Any) -> Lane:
        with self._lock:
            lane = self._lanes.get(operation)
        if lane is not None:
            return lane
        made = Lane(
            ModelIdentity.of(ModelSource.of(self.reference.model or "")),
            self.reference,
            live_run=session._sess.run,
            candidates=self.candidates,
            scope=self.scope,
            operation=operation if operation == self.name else f"{operation} / {self.name}",
            workload=self._workload,
        )
        with self._lock:
            return self._lanes.setdefault(operation, made)


def try_execute_stack(
    name: str,
    tunables: TunableSet,
    inputs: Mapping[str, Any],
    *,
    output_names: Sequence[str] | None = None,
    run_options: Any = None,
) -> Any:
    """Selects among the recipes of a set, then executes the live inputs once on the selected one.

    Args:
        name: The operation, part of the key.
        tunables: The recipes to choose from.
        inputs: Input name -> value, as for ``InferenceSession.run``.
        output_names: Outputs wanted; ``None`` for all.
        run_options: As for ``InferenceSession.run``.

    Returns:
        The outputs, as ``InferenceSession.run`` returns them.

    Raises:
        TuneFailure: ``INVALID_INPUT`` without an installed controller, for a bad argument, or where
            ``workload`` gives no text; nothing ran then.
    """
    tuner = stack_autotuner()
    if tuner is None:
        raise invalid("no controller is installed; call enable_stack_autotune() first")
    if not isinstance(name, str) or not name:
        raise invalid(f"the operation's name is {name!r}; expected nonempty text")
    if not isinstance(tunables, TunableSet):
        raise invalid(f"tunables is {tunables!r}; expected a TunableSet")
    return tunables.execute(tuner, name, inputs, output_names, run_options)
