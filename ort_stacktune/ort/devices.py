"""Owns what is known of memory that is not the host's: whose it is, and which sessions can reach it.

Must never touch a device to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.recipes import Provider

CPU = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True)
class Memory:
    """A place where tensors lie.

    Attributes:
        kind: ``cpu`` for the host's memory, else whose it is, such as ``cuda`` or ``webgpu``.
        id: Number of the device.
    """

    kind: str
    id: int = 0

    def text(self) -> str:
        """Returns its part of a signature, such as ``cuda:0``; the host's is ``cpu``."""
        return self.kind if self == HOST else f"{self.kind}:{self.id}"


HOST = Memory("cpu")


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of device memory.

    Attributes:
        word: What ONNX Runtime's bindings call it.
        owners: Execution providers whose tensors lie in it, the one that copies with the least ado first.
        apart: Provider options by which two sessions work on queues, or in memories, apart from each other.
        lasting: Further ones that decide which device is used.
    """

    word: str
    owners: tuple[str, ...]
    apart: tuple[str, ...] = ()
    lasting: tuple[str, ...] = ("device_id",)


STREAM = "user_compute_stream"

_KINDS: Mapping[str, _Kind] = {
    "cuda": _Kind(
        "cuda",
        ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"),
        (STREAM,),
    ),
    "webgpu": _Kind(
        "webgpu",
        ("WebGpuExecutionProvider",),
        ("deviceId", "webgpuInstance", "webgpuDevice"),
        ("dawnProcTable", "dawnBackendType", "powerPreference"),
    ),
    "dml": _Kind("dml", ("DmlExecutionProvider",)),
    "hip": _Kind("cuda", ("MIGraphXExecutionProvider", "ROCMExecutionProvider")),
    "cann": _Kind("cann", ("CANNExecutionProvider",)),
}

# Memory whose addresses are handles of whole buffers.
_BY_HANDLE = frozenset({"webgpu"})

# Words of ONNX Runtime's for the memory of whatever GPU provider a session has: values of WebGPU and of
# DirectML call theirs "cuda" too, depending on the build.
_GPU_WORDS = frozenset({"cuda", "gpu", "webgpu", "dml", "migraphx", "hip", "rocm"})


def owned_memory(providers: Iterable[Provider]) -> tuple[Memory, ...]:
    """Returns the device memory in which a session of some providers can take and leave tensors."""
    found: dict[Memory, None] = {}
    for name, options in providers:
        for kind, facts in _KINDS.items():
            if name in facts.owners:
                found[Memory(kind, _device_id(options))] = None
    return tuple(found)


def memory_of_word(word: str, device_id: int, providers: Iterable[Provider]) -> Memory | None:
    """Returns the memory that ONNX Runtime's word means to a session, or ``None`` where it owns none such.

    Args:
        word: Such as ``cpu``, ``cuda`` or ``webgpu``.
        device_id: Number of the device.
        providers: The session's providers.
    """
    if word == HOST.kind:
        return HOST
    for memory in owned_memory(providers):
        if _KINDS[memory.kind].word == word or (word in _GPU_WORDS and memory.kind != "cann"):
            return Memory(memory.kind, device_id)
    return None


def binding_word(memory: Memory) -> str:
    """Returns what ONNX Runtime's bindings call a memory."""
    return memory.kind if memory == HOST else _KINDS[memory.kind].word


def needs_reading_back(providers: Iterable[Provider]) -> bool:
    """Whether a session is known to be done only when something was read back from its device."""
    return any(name in _KINDS["webgpu"].owners for name, _ in providers)


def why_unreachable(
    memories: Iterable[Memory], providers: Sequence[Provider], reference: Sequence[Provider]
) -> str | None:
    """Returns why sessions of some providers can't serve requests in some memory, or ``None``.

    Args:
        memories: Where the request's inputs lie and its outputs are wanted.
        providers: The providers in question.
        reference: The providers of the session that the request was made to.
    """
    owned = owned_memory(providers)
    for memory in memories:
        if memory == HOST:
            continue
        if memory not in owned:
            names = ", ".join(name for name, _ in providers) or CPU
            return f"the request has tensors in {memory.text()} memory, which {names} can't reach"
        for option in _KINDS[memory.kind].apart:
            wanted, given = _in_force(option, reference), _in_force(option, providers)
            # Who brings no stream waits for the device before each run, whatever stream that is on.
            if wanted != given and (wanted or option != STREAM):
                return (
                    f"your session has {option}={wanted or 'nothing'} and this candidate"
                    f" {given or 'nothing'}: nothing would order its work after yours"
                )
    return None


def by_handle(memory: Memory) -> bool:
    """Whether addresses in a memory are handles of whole buffers."""
    return memory.kind in _BY_HANDLE


def _in_force(option: str, providers: Iterable[Provider]) -> str:
    for _, options in providers:
        if (value := str(options.get(option, "0"))) not in ("", "0"):
            return value
    return ""


def _device_id(options: Mapping[str, Any]) -> int:
    text = str(options.get("device_id", "0"))
    return int(text) if text.isdigit() else 0


def copying_provider(memory: Memory, providers: Sequence[Provider]) -> Provider:
    """Returns the provider, with its options, by whose sessions tensors are copied from and to a memory.

    Args:
        memory: The memory.
        providers: Providers of the session whose tensors they are: which queue they work on decides what a
            copy comes after.
    """
    facts = _KINDS[memory.kind]
    given = dict(providers)
    available = onnxruntime().get_available_providers()
    # Not the session's own where there is a plainer one: TensorRT would build an engine to copy by.
    name = next(owner for owner in facts.owners if owner in available or owner in given)
    options = {**dict.fromkeys((*facts.apart, *facts.lasting)), **given.get(name, {})}
    if name not in given:
        for owner in facts.owners:
            options.update(given.get(owner, {}))
    lasting = {
        key: str(options[key]) for key in (*facts.apart, *facts.lasting) if options.get(key) not in (None, "")
    }
    # What is the default anyhow may be left out, and some builds warn of a number given.
    return name, {key: value for key, value in lasting.items() if value != "0"}
