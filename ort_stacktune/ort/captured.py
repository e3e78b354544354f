"""Owns sessions that capture their work once and replay it: buffers of fixed addresses, refilled per request.

A replay repeats what was captured, on the addresses it was captured with, and looks at no argument. So the
buffers are this module's own, one set for each signature, and a request's values are copied into them before
every run. Must never let a replay see what it could not follow: an input that is read on the host keeps the
value of its capture, so a session with one is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.devices import HOST, Memory, binding_word, owned_memory
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.provider_options import option_in_force
from ort_stacktune.ort.recipes import Provider, SessionRecipe
from ort_stacktune.ort.tensors import DTYPES, DeviceTensor, Port, before_exit, tensor_of

_SWITCHES = {
    "CUDAExecutionProvider": "enable_cuda_graph",
    "DmlExecutionProvider": "enable_graph_capture",
    "NvTensorRTRTXExecutionProvider": "nv_cuda_graph_enable",
    "TensorrtExecutionProvider": "trt_cuda_graph_enable",
    "WebGpuExecutionProvider": "enableGraphCapture",
}
_ON = frozenset({"1", "true", "True"})

_GRAPH_ID = "gpu_graph_id"
_NO_CAPTURE = "-1"

# Each signature keeps its buffers and its graph for as long as the session lives. Requests of further ones
# run as they would without capture.
_MAX_SIGNATURES = 32

# While one thread captures, the device refuses allocations of every other; at least not another capture's.
_one_capture = threading.Lock()


def captures(providers: Iterable[Provider]) -> bool:
    """Whether a session of these providers replays what it captured."""
    return any(
        str(option_in_force(name, options, _SWITCHES[name])) in _ON
        for name, options in providers
        if name in _SWITCHES
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """One signature's fixed buffers.

    Attributes:
        number: Name of its capture.
        binding: Binds them.
        inputs: Input name -> buffer.
        options: Run options that name the capture.
    """

    number: int
    binding: Any
    inputs: Mapping[str, Any]
    options: Any


class CapturedSession:
    """A session that captures, behind the methods of one that does not.

    Several threads may call it; one runs at a time, since they share the buffers.

    Args:
        session: The ``onnxruntime.InferenceSession``, made with its provider's switch for captures on.
        recipe: Its recipe, providers included.
        nodes: Execution providers that run its nodes.

    Raises:
        TuneFailure: ``REJECTED`` where replays could not follow its inputs.
    """

    def __init__(self, session: Any, recipe: SessionRecipe, nodes: Iterable[str]) -> None:
        _refuse_what_replays_cannot_follow(session, recipe, nodes)
        self._session = session
        self._sess = _Captures(session, recipe)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> list[Any]:
        """As ``InferenceSession.run``; run options are those of the recipe."""
        return self._sess.run(output_names, input_feed, run_options)

    def run_with_ort_values(self, output_names: Any, values: Any, run_options: Any = None) -> list[Any]:
        """As ``InferenceSession.run_with_ort_values``; run options are those of the recipe."""
        value_of = onnxruntime().OrtValue.ortvalue_from_numpy
        return [value_of(output) for output in self._sess.run(output_names, values, run_options)]

    def get_providers(self) -> list[str]:
        """As ``InferenceSession.get_providers``."""
        providers: list[str] = self._session.get_providers()
        return providers

    def get_inputs(self) -> Any:
        """As ``InferenceSession.get_inputs``."""
        return self._session.get_inputs()

    def get_outputs(self) -> Any:
        """As ``InferenceSession.get_outputs``."""
        return self._session.get_outputs()

    def get_overridable_initializers(self) -> Any:
        """As ``InferenceSession.get_overridable_initializers``."""
        return self._session.get_overridable_initializers()


class _Captures:
    """The captures of one session, by signature."""

    def __init__(self, session: Any, recipe: SessionRecipe) -> None:
        self._session = session
        self._run_config = recipe.run_config
        self._memory = owned_memory(recipe.provider_list)[0]
        self._providers = recipe.provider_list
        self._port = Port(self._memory, self._providers)
        self._in_place = self._memory.kind == "cuda"
        self._all_outputs = [meta.name for meta in session.get_outputs()]
        self._slots: dict[tuple[Any, ...], _Slot] = {}
        # Never given twice: a capture outlives its buffers.
        self._numbers = count(1)
        self._uncaptured = self._options(_NO_CAPTURE)
        self._busy = threading.Lock()
        self._thread = threading.local()
        before_exit(self.close)

    def run(self, output_names: Any, feeds: Mapping[str, Any], _run_options: Any) -> list[Any]:
        names = list(output_names or self._all_outputs)
        key = (*names, *feeds, *map(_facts, feeds.values()))
        with self._busy:
            slot = self._slots.get(key)
            if slot is None:
                if len(self._slots) >= _MAX_SIGNATURES:
                    outputs: list[Any] = self._session.run(names, feeds, self._uncaptured)
                    return outputs
                slot = self._slots[key] = self._make_slot(names, feeds)
            else:
                for name, value in feeds.items():
                    self._refill(slot.inputs[name], value)
            self._replay(slot)
            copies: list[Any] = slot.binding.copy_outputs_to_cpu()
            return copies

    def _replay(self, slot: _Slot) -> None:
        captured: set[int] = self._thread.__dict__.setdefault("captured", set())
        if slot.number in captured:
            self._session.run_with_iobinding(slot.binding, slot.options)
            return
        # Some providers keep the captures of each thread apart, so a thread's first run may be one.
        with _one_capture:
            self._session.run_with_iobinding(slot.binding, slot.options)
        captured.add(slot.number)

    def _make_slot(self, names: Sequence[str], feeds: Mapping[str, Any]) -> _Slot:
        inputs = {name: self._placed(value) for name, value in feeds.items()}
        word = binding_word(self._memory)
        # Run without a capture, it tells the outputs' types and shapes and brings buffers for them.
        first = self._session.io_binding()
        binding = self._session.io_binding()
        for name, value in inputs.items():
            first.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_input(name, value)
        for name in names:
            first.bind_output(name, word, self._memory.id)
        self._session.run_with_iobinding(first, self._uncaptured)
        for name, value in zip(names, first.get_outputs(), strict=True):
            binding.bind_ortvalue_output(name, value)
        number = next(self._numbers)
        return _Slot(number, binding, inputs, self._options(str(number)))

    def close(self) -> None:
        """Drops what must not outlive the session's provider."""
        with self._busy:
            self._slots.clear()
            self._port.close()

    def _placed(self, value: Any) -> Any:
        tensor = value if isinstance(value, np.ndarray) else tensor_of(value, lambda: self._providers)
        if isinstance(tensor, str):
            raise TypeError(f"an input {tensor}")
        return self._port.place(self._port.read(tensor) if isinstance(tensor, DeviceTensor) else tensor)

    def _refill(self, buffer: Any, value: Any) -> None:
        # Either way the copy is complete on return, and the last replay was before it began.
        if self._in_place and isinstance(value, np.ndarray):
            buffer.update_inplace(value)
        else:
            self._port.fill(buffer, value)

    def _options(self, graph_id: str) -> Any:
        options = onnxruntime().RunOptions()
        for key, value in {**self._run_config, _GRAPH_ID: graph_id}.items():
            options.add_run_config_entry(key, value)
        return options


def _facts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape)
    return (np.dtype(DTYPES[value.data_type()]).str, tuple(value.shape()))


def _refuse_what_replays_cannot_follow(session: Any, recipe: SessionRecipe, nodes: Iterable[str]) -> None:
    if others := sorted(set(nodes) - {recipe.provider_list[0][0]}):
        raise _rejected(f"{', '.join(others)} runs nodes, and a replay leaves those out")
    if _GRAPH_ID in recipe.run_config:
        raise _rejected(f"its run config sets {_GRAPH_ID}, which names the captures; leave it out")
    if not owned_memory(recipe.provider_list):
        raise _rejected("its execution provider has no memory that could be bound")
    for what, metas, ask in (
        ("input", session.get_inputs(), "get_input_memory_infos"),
        ("output", session.get_outputs(), "get_output_memory_infos"),
    ):
        places = getattr(session, ask, None)
        if places is None:
            raise _rejected("this ONNX Runtime does not tell which inputs are read on the host")
        for meta, place in zip(metas, places(), strict=True):
            if not meta.type.startswith("tensor(") or meta.type == "tensor(string)":
                raise _rejected(f"its {what} {meta.name!r} is {meta.type}, which has no fixed address")
            if _is_host(place):
                raise _rejected(
                    f"its {what} {meta.name!r} lies in host memory, where a replay would keep the value"
                    " that was captured"
                )


def _is_host(place: Any) -> bool:
    return Memory(str(place.name).lower()) == HOST


def _rejected(reason: str) -> TuneFailure:
    return TuneFailure(FailureKind.REJECTED, f"it can't be replayed: {reason}")
