"""Owns the reading of a call: from what a caller hands to a session to a request that trials can repeat.

Anything it does not understand is left to the reference: a call that the session will refuse gives
``None``, so that the caller meets ONNX Runtime's own error, and one that cannot be tuned gives a
:class:`Refusal` with the reason. Must never copy or change a caller's buffer, on a device least of all: of
what lies there, only type, shape and place are read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ort_stacktune.bindings import TunedBinding
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.recipes import Provider
from ort_stacktune.ort.request import OutputTarget, Request, read_run_options
from ort_stacktune.ort.tensors import DTYPES, Tensor, tensor_of


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not tuned."""

    reason: str


Read = Request | Refusal | None


class CallReader:
    """Reads the calls to one session.

    Args:
        session: The ``onnxruntime.InferenceSession``; only its metadata is read.
    """

    def __init__(self, session: Any) -> None:
        # Weakly, since the session holds its reader.
        self._session = weakref.ref(session)
        self._inputs = {meta.name: meta for meta in session.get_inputs()}
        self._overridable = {meta.name: meta for meta in session.get_overridable_initializers()}
        self._outputs = [meta.name for meta in session.get_outputs()]

    def of_run(self, output_names: Any, input_feed: Any, run_options: Any) -> Read:
        """Reads the arguments of ``run``."""
        return self._of_call(output_names, input_feed, run_options, self._array_or_value)

    def of_ort_values(self, output_names: Any, values: Any, run_options: Any) -> Read:
        """Reads the arguments of ``run_with_ort_values``."""
        return self._of_call(output_names, values, run_options, self._value)

    def _of_call(
        self, output_names: Any, values: Any, run_options: Any, read: Callable[[Any], Tensor | str]
    ) -> Read:
        # Other containers may be used up by being read, or mean something else to ONNX Runtime.
        if not isinstance(values, dict) or not isinstance(output_names, list | tuple | None):
            return None
        feeds: dict[str, Tensor] = {}
        for name, value in values.items():
            tensor = read(value)
            if isinstance(tensor, str):
                return Refusal(f"input {name!r} {tensor}")
            feeds[name] = tensor
        names = list(output_names or self._outputs)
        if any(name not in self._outputs for name in names):
            return None
        return self._checked(Request(feeds, tuple(OutputTarget(name) for name in names)), run_options)

    def of_binding(self, binding: TunedBinding, run_options: Any) -> Read:
        """Reads what is bound."""
        bound = binding.tensors(self._providers)
        if isinstance(bound, str):
            return Refusal(bound)
        feeds, targets = bound
        return self._checked(Request(feeds, targets, bound=True), run_options)

    def question_of(self, binding: TunedBinding) -> tuple[Any, ...] | None:
        """Returns what decides who serves what is bound, but for values; ``None`` where that can't be said."""
        try:
            return binding.question(self._providers)
        except Exception:  # noqa: BLE001 - an odd argument is for the session to refuse
            return None

    def _array_or_value(self, value: Any) -> Tensor | str:
        return value if isinstance(value, np.ndarray) else self._value(value)

    def _value(self, value: Any) -> Tensor | str:
        if not isinstance(value, onnxruntime().OrtValue):
            return "is neither an array nor an OrtValue"
        return tensor_of(value, self._providers)

    def _providers(self) -> tuple[Provider, ...]:
        """Returns the session's providers of now: ``set_providers`` may have changed them."""
        session = self._session()
        if session is None:
            return ()
        options: Mapping[str, Mapping[str, str]] = getattr(session, "get_provider_options", dict)() or {}
        return tuple((name, options.get(name, {})) for name in session.get_providers())

    def _checked(self, request: Request, run_options: Any) -> Read:
        known = {**self._inputs, **self._overridable}
        for name, array in request.feeds.items():
            meta = known.get(name)
            if meta is None or not _fits(array, meta):
                return None
            if array.dtype.kind not in "fiub":
                return Refusal(f"input {name!r} is no tensor of numbers")
        if any(
            name not in request.feeds and not meta.type.startswith("optional")
            for name, meta in self._inputs.items()
        ):
            return None
        if run_options is None:
            return request
        if not isinstance(run_options, onnxruntime().RunOptions):
            return None
        if self._overridable:
            # An adapter in the run options overrides initializers, and it can't be read back.
            return Refusal("its run options may carry an adapter that overrides initializers")
        return replace(request, settings=read_run_options(run_options))


def _fits(array: Tensor, meta: Any) -> bool:
    """Whether the session would take a tensor for an input; what it refuses gets its own error."""
    expected = DTYPES.get(meta.type)
    if expected is None:
        # Types that numpy has no name for: let the reference and its trial decide.
        return True
    if array.dtype.str.lstrip("<=|") != expected:
        return False
    declared = meta.shape
    if not declared:
        return True
    return len(declared) == len(array.shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, array.shape, strict=True)
    )


def output_names_key(output_names: Any) -> tuple[Any, ...] | None:
    """Returns the part of a table key that stands for the wanted outputs, ``None`` for an odd container."""
    if output_names.__class__ not in (list, tuple, type(None)):
        return None
    return () if output_names is None else (output_names.__class__, *output_names)


def values_of(names: tuple[str, ...], feeds: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Returns the contents of the fed inputs among ``names``, for a table key."""
    return tuple(feeds[name].tobytes() for name in names if name in feeds)
