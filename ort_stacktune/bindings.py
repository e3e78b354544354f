"""Owns the IO binding of a tuned session: one object for the caller, whichever session is selected.

An ``onnxruntime.IOBinding`` belongs to one session. This one keeps a journal of what was bound and binds
it again when another session is to run; the caller's buffers are handed on and never copied or read, but
for the values of inputs that steer the computation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime import IOBinding
from onnxruntime.capi import _pybind_state as native

from ort_stacktune.ort.request import OutputTarget
from ort_stacktune.signature import Array

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


@dataclass(slots=True)
class _Bound:
    """One bound input or output: how to bind it again, and what is known of its buffer."""

    method: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


class TunedBinding(IOBinding):  # type: ignore[misc]
    """An ``onnxruntime.IOBinding`` that works with whichever session is selected.

    Bind, run through :meth:`TunedSession.run_with_iobinding` and read as always; it may be bound again with
    other shapes. Two threads may not use one binding at once, as with any.
    """

    def __init__(self, session: InferenceSession) -> None:
        super().__init__(session)
        self.owner = session._sess
        self.bound_now = session._sess
        self._inputs: dict[str, _Bound] = {}
        self._outputs: dict[str, _Bound] = {}
        self.route: Any = None

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_cpu_input``."""
        if isinstance(arr_on_cpu, np.ndarray) and not arr_on_cpu.flags.c_contiguous:
            # Bound now, it would be copied now; bound again later, it has to have the values of now.
            arr_on_cpu = np.ascontiguousarray(arr_on_cpu)
        self._bind(self._inputs, name, "bind_cpu_input", (name, arr_on_cpu), {})

    def bind_input(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_input``."""
        self._bind(self._inputs, name, "bind_input", (name, *arguments), keywords)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_ortvalue_input``."""
        self._bind(self._inputs, name, "bind_ortvalue_input", (name, ortvalue), {})

    def bind_output(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_output``."""
        self._bind(self._outputs, name, "bind_output", (name, *arguments), keywords)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """As ``onnxruntime.IOBinding.bind_ortvalue_output``."""
        self._bind(self._outputs, name, "bind_ortvalue_output", (name, ortvalue), {})

    def clear_binding_inputs(self) -> None:
        """As ``onnxruntime.IOBinding.clear_binding_inputs``."""
        super().clear_binding_inputs()
        self._inputs.clear()
        self.route = None

    def clear_binding_outputs(self) -> None:
        """As ``onnxruntime.IOBinding.clear_binding_outputs``."""
        super().clear_binding_outputs()
        self._outputs.clear()
        self.route = None

    def move_to(self, native_session: Any) -> Any:
        """Makes the bound buffers those of a session's run and returns its native binding.

        Args:
            native_session: The native session behind an ``onnxruntime.InferenceSession``.
        """
        if native_session is not self.bound_now:
            self._iobinding = native.SessionIOBinding(native_session)
            self.bound_now = native_session
            for bound in (*self._inputs.values(), *self._outputs.values()):
                getattr(super(), bound.method)(*bound.arguments, **bound.keywords)
        return self._iobinding

    def tensors(self) -> tuple[dict[str, Array], tuple[OutputTarget, ...]] | str:
        """Returns what is bound, inputs as views of the caller's buffers, or why trials can't repeat it."""
        feeds: dict[str, Array] = {}
        for name, bound in self._inputs.items():
            array = _host_view(bound)
            if array is None:
                return f"input {name!r} is bound to something else than numbers in host memory"
            feeds[name] = array
        targets = []
        outputs: dict[str, Array] = {}
        for name, bound in self._outputs.items():
            if _allocated_on_cpu(bound):
                targets.append(OutputTarget(name))
                continue
            array = _host_view(bound)
            if array is None:
                return f"output {name!r} is bound to something else than numbers in host memory"
            outputs[name] = array
            targets.append(OutputTarget(name, (array.dtype.str.lstrip("<=|"), array.shape)))
        for target, out in outputs.items():
            for source, fed in feeds.items():
                if np.may_share_memory(out, fed):
                    return (
                        f"output {target!r} shares memory with input {source!r}: its state is kept in place"
                    )
        return feeds, tuple(targets)

    def _bind(
        self,
        journal: dict[str, _Bound],
        name: str,
        method: str,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> None:
        getattr(super(), method)(*arguments, **keywords)
        journal[name] = _Bound(method, arguments, keywords)
        self.route = None


def _allocated_on_cpu(bound: _Bound) -> bool:
    if bound.method != "bind_output":
        return False
    given = _named_arguments(bound)
    return given.get("buffer_ptr") is None and given.get("device_type", "cpu") == "cpu"


def _host_view(bound: _Bound) -> Array | None:
    """Returns a view of a bound buffer in host memory, or ``None`` where it is elsewhere or no tensor."""
    if bound.method == "bind_cpu_input":
        array = bound.arguments[1]
        plain = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
        return array if plain else None
    if bound.method in ("bind_ortvalue_input", "bind_ortvalue_output"):
        return ortvalue_view(bound.arguments[1])
    given = _named_arguments(bound)
    if given.get("device_type") != "cpu" or not given.get("buffer_ptr"):
        return None
    try:
        dtype = np.dtype(given["element_type"])
    except TypeError:
        return None
    shape = tuple(given["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind not in "fiub" or count == 0:
        return None
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(given["buffer_ptr"])
    return np.frombuffer(memory, dtype).reshape(shape)


def ortvalue_view(value: Any) -> Array | None:
    """Returns a view of an ``OrtValue`` that is a tensor of numbers in host memory, else ``None``."""
    try:
        if not value.is_tensor() or value.device_name() != "cpu" or "string" in value.data_type():
            return None
        array = value.numpy()
    except Exception:  # noqa: BLE001 - element types without a numpy counterpart raise in several ways
        return None
    return array if array.dtype.kind in "fiub" else None


def _named_arguments(bound: _Bound) -> dict[str, Any]:
    names = ("name", "device_type", "device_id", "element_type", "shape", "buffer_ptr")
    return {**dict(zip(names, bound.arguments, strict=False)), **bound.keywords}
