"""Owns the reading of a call: from what a caller hands to a session to a request that trials can repeat.

Anything it does not understand is left to the reference: a call that the session will refuse gives
``None``, so that the caller meets ONNX Runtime's own error, and one that cannot be tuned gives a
:class:`Refusal` with the reason. Must never copy or change a caller's buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_stacktune.bindings import TunedBinding, ortvalue_view
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.request import OutputTarget, Request, read_run_options
from ort_stacktune.signature import Array

_DTYPES = {
    "tensor(float)": "f4",
    "tensor(double)": "f8",
    "tensor(float16)": "f2",
    "tensor(int8)": "i1",
    "tensor(int16)": "i2",
    "tensor(int32)": "i4",
    "tensor(int64)": "i8",
    "tensor(uint8)": "u1",
    "tensor(uint16)": "u2",
    "tensor(uint32)": "u4",
    "tensor(uint64)": "u8",
    "tensor(bool)": "b1",
}


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
        self._inputs = {meta.name: meta for meta in session.get_inputs()}
        self._overridable = {meta.name: meta for meta in session.get_overridable_initializers()}
        self._outputs = [meta.name for meta in session.get_outputs()]

    def of_run(self, output_names: Any, input_feed: Any, run_options: Any) -> Read:
        """Reads the arguments of ``run``."""
        return self._of_call(output_names, input_feed, run_options, _array_or_view)

    def of_ort_values(self, output_names: Any, values: Any, run_options: Any) -> Read:
        """Reads the arguments of ``run_with_ort_values``."""
        return self._of_call(output_names, values, run_options, _view)

    def _of_call(
        self, output_names: Any, values: Any, run_options: Any, view: Callable[[Any], Array | None]
    ) -> Read:
        # Other containers may be used up by being read, or mean something else to ONNX Runtime.
        if not isinstance(values, dict) or not isinstance(output_names, list | tuple | None):
            return None
        feeds: dict[str, Array] = {}
        for name, value in values.items():
            array = view(value)
            if array is None:
                return Refusal(f"input {name!r} is no tensor of numbers in host memory")
            feeds[name] = array
        names = list(output_names or self._outputs)
        if any(name not in self._outputs for name in names):
            return None
        return self._checked(Request(feeds, tuple(OutputTarget(name) for name in names)), run_options)

    def of_binding(self, binding: TunedBinding, run_options: Any) -> Read:
        """Reads what is bound."""
        bound = binding.tensors()
        if isinstance(bound, str):
            return Refusal(bound)
        feeds, targets = bound
        return self._checked(Request(feeds, targets, bound=True), run_options)

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
        return Request(request.feeds, request.outputs, request.bound, read_run_options(run_options))


def _view(value: Any) -> Array | None:
    return ortvalue_view(value) if hasattr(value, "device_name") else None


def _array_or_view(value: Any) -> Array | None:
    return value if isinstance(value, np.ndarray) else _view(value)


def _fits(array: Array, meta: Any) -> bool:
    """Whether the session would take an array for an input; what it refuses gets its own error."""
    expected = _DTYPES.get(meta.type)
    if expected is None:
        # Types that numpy has no name for: let the reference and its trial decide.
        return True
    if array.dtype.str.lstrip("<=|") != expected:
        return False
    declared = meta.shape
    if not declared:
        return True
    return len(declared) == array.ndim and all(
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
