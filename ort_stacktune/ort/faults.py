"""Owns what an error of ONNX Runtime or of a library below it says about the work that was under way.

After most errors the work is over and the next session works: the candidate is rejected. After some the
device, or this process's use of it, is gone, and nothing that it answers from then on can be trusted. The
texts are all there is to tell them by. Pure: it must never touch a device to find out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ort_stacktune.failures import FailureKind, Fault, TuneFailure

_ORT_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_FIRST_CHARACTERS = 120
_LAST_CHARACTERS = 200

# A call of a library that failed: what it said, before where in the source that was.
_CALL = re.compile(
    r"\b((?:CUDA|CUBLAS|CUDNN|CUFFT|CURAND|CUSPARSE|HIP|HIPBLAS|MIOPEN|NCCL) failure \d+: [^;]*?) *;"
)
_RUNNING = re.compile(r"while running (\w+) node")

_RESTART = "restart the process to use the device again"
_MEMORY = "free memory on the device, or give this candidate less with a limit on its arena or its workspace"
_DRIVER = "install a driver that fits, or leave this execution provider out"
_DEVICE = "choose a device that is there and free"
_BUILD = "use a build of ONNX Runtime and libraries made for this device"
_LIBRARY = "install the libraries that this execution provider needs, where the loader finds them"


@dataclass(frozen=True, slots=True)
class Finding:
    """What an error means.

    Attributes:
        kind: ``REJECTED`` where the work is known to be over, ``DEVICE`` where nothing is known any more.
        told_by: The part of its text that says so; empty for an ordinary failure.
        advice: What to do, in words; empty for an ordinary failure.
        fault: ``MEMORY`` where there was not enough of it.
    """

    kind: FailureKind
    told_by: str = ""
    advice: str = ""
    fault: Fault | None = None


# Numbers of CUDA's runtime, and of HIP's where it has them, after which the context is lost. Other numbers
# of 700 and up are not among them: 701 (too many resources for a launch) harms nothing that follows.
_LOST_CONTEXT = frozenset(
    {201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}
)
_NO_MEMORY = frozenset({2})
_NO_DRIVER = frozenset({35, 100, 803, 804})
_NO_DEVICE = frozenset({46, 101, 802})
_NO_CODE = frozenset({209, 218, 222})

_NUMBERED = re.compile(r"\b(?:CUDA|HIP) (?:failure|error) (\d+): ?([^;\n]*)", re.IGNORECASE)

# Texts as CUDA, HIP, cuBLAS, cuDNN, TensorRT, WebGPU, Direct3D, OpenCL and Level Zero give them.
_LOST_DEVICE = re.compile(
    r"illegal memory access|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|hipErrorIllegalAddress"
    r"|illegal instruction was encountered|ErrorIllegalInstruction"
    r"|unspecified launch failure|ErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED"
    r"|launch timed out|ErrorLaunchTimeout|CUDA_ERROR_LAUNCH_TIMEOUT"
    r"|misaligned address|ErrorMisalignedAddress|hardware stack error|ErrorHardwareStackError"
    r"|operation not supported on global/shared address space|invalid program counter"
    r"|device-side assert|ErrorAssert\b|context is destroyed|ErrorContextIsDestroyed|invalid device context"
    r"|uncorrectable (?:ECC|NVLink) error|ErrorECCUncorrectable|ErrorNvlinkUncorrectable"
    r"|CU(?:BLAS|DNN)_STATUS_(?:EXECUTION_FAILED|MAPPING_ERROR)\w*"
    r"|\bGPU is lost|GPU has fallen off the bus"
    r"|device\W{1,3}(?:is |was )?lost|ErrorDeviceLost|VK_ERROR_DEVICE_LOST|ZE_RESULT_ERROR_DEVICE_LOST"
    r"|DXGI_ERROR_DEVICE_(?:REMOVED|HUNG|RESET)|DXGI_ERROR_DRIVER_INTERNAL_ERROR"
    r"|887A00(?:05|06|07|20)|GPU device instance has been suspended|GetDeviceRemovedReason"
    r"|CL_DEVICE_NOT_AVAILABLE|CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(
    r"out of (?:device |host |GPU )?memory|out_of_(?:device_|host_)?memory|OutOfMemory\w*"
    r"|ErrorMemoryAllocation|CU(?:BLAS|DNN)_STATUS_(?:\w+_)?ALLOC(?:ATION)?_FAILED"
    r"|Failed to allocate memory for requested buffer(?: of size \d+)?"
    r"|Available memory of \d+ is smaller than requested bytes of \d+"
    r"|bad[_ ]alloc(?:ation)?|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_OUT_OF_(?:HOST_MEMORY|RESOURCES)"
    r"|Exceeded max size of memory object allocation|8007000E|Not enough memory resources",
    re.IGNORECASE,
)
_NO_LIBRARY = re.compile(
    r"lib[\w.+-]+\.so[\d.]*: cannot open shared object file|Failed to load library \S+"
    r"|cuDNN (?:library )?(?:is )?not (?:available|found|loaded)|CUDNN_STATUS_SUBLIBRARY\w*",
    re.IGNORECASE,
)
_NO_DRIVER_TEXT = re.compile(
    r"driver version is insufficient|no CUDA-capable device",
    re.IGNORECASE,
)
_NO_CODE_TEXT = re.compile(r"no kernel image is available|unsupported (?:PTX|toolchain)", re.IGNORECASE)


def classify(error: BaseException | str) -> Finding:
    """Returns what an error means for the work under way, by its text.

    An error that nothing is known of is an ordinary failure: a device that is lost fails the next call too,
    and by then with a text that says so.
    """
    text = error if isinstance(error, str) else _texts(error)
    for number in _NUMBERED.finditer(text):
        if (finding := _by_number(int(number[1]), number[0].strip())) is not None:
            return finding
    if found := _LOST_DEVICE.search(text):
        return Finding(FailureKind.DEVICE, found[0], _RESTART)
    if isinstance(error, MemoryError):
        return Finding(FailureKind.REJECTED, "MemoryError", _MEMORY, Fault.MEMORY)
    if found := _OUT_OF_MEMORY.search(text):
        return Finding(FailureKind.REJECTED, found[0], _MEMORY, Fault.MEMORY)
    for pattern, advice in ((_NO_LIBRARY, _LIBRARY), (_NO_DRIVER_TEXT, _DRIVER), (_NO_CODE_TEXT, _BUILD)):
        if found := pattern.search(text):
            return Finding(FailureKind.REJECTED, found[0], advice)
    return Finding(FailureKind.REJECTED)


def failure_of(error: BaseException, before: str = "") -> TuneFailure:
    """Returns the failure that an error of a session is, in one sentence.

    Args:
        error: What the session raised.
        before: What failed, in words, put before the error's own.
    """
    if isinstance(error, TuneFailure):
        return error
    finding = classify(error)
    what = in_short(error)
    if finding.told_by:
        what = f"{type(error).__name__}: {finding.told_by}{_node(str(error))}"
    if finding.kind is FailureKind.DEVICE:
        what += "; what the device did is unknown"
    message = f"{before}{what}" + (f"; {finding.advice}" if finding.advice else "")
    return TuneFailure(finding.kind, message, finding.fault)


def in_short(error: BaseException) -> str:
    """Returns an error's class and what it says at its beginning and at its end, for a report.

    Behind ONNX Runtime's own first line, an execution provider puts its reason last.
    """
    whole = str(error)
    if call := _CALL.search(whole):
        return f"{type(error).__name__}: {call[1]}{_node(whole)}"
    lines = [line.strip() for line in _ORT_PREFIX.sub("", whole).splitlines() if line.strip()]
    text = "" if not lines else lines[0][:_FIRST_CHARACTERS]
    if len(lines) > 1 or (lines and len(lines[0]) > _FIRST_CHARACTERS):
        text += f" ... {lines[-1][-_LAST_CHARACTERS:]}"
    return f"{type(error).__name__}: {text}".rstrip(": ")


def _node(text: str) -> str:
    found = _RUNNING.search(text)
    return f" while running {found[1]}" if found else ""


def _by_number(number: int, told_by: str) -> Finding | None:
    if number in _LOST_CONTEXT:
        return Finding(FailureKind.DEVICE, told_by, _RESTART)
    if number in _NO_MEMORY:
        return Finding(FailureKind.REJECTED, told_by, _MEMORY, Fault.MEMORY)
    if number in _NO_DRIVER:
        return Finding(FailureKind.REJECTED, told_by, _DRIVER)
    if number in _NO_DEVICE:
        return Finding(FailureKind.REJECTED, told_by, _DEVICE)
    if number in _NO_CODE:
        return Finding(FailureKind.REJECTED, told_by, _BUILD)
    return None


def _texts(error: BaseException) -> str:
    """Returns the text of an error and of those it came from."""
    texts, seen = [], set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        texts.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    return "\n".join(texts)
