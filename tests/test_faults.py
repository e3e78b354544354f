"""What an error says about the work that was under way, told by texts that runtimes really give."""

from __future__ import annotations

import pytest

from ort_stacktune.failures import FailureKind, Fault, TuneFailure
from ort_stacktune.ort.faults import classify, failure_of, in_short

AT = "; GPU=0 ; hostname=box ; file=/onnxruntime_src/onnxruntime/core/providers/cuda/x.cc ; line=129 ; expr="
NODE = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running MatMul node. Name:'mm'"
    " Status Message: "
)


def cuda(number: int, text: str) -> str:
    return f"{NODE}CUDA failure {number}: {text} {AT}cudaStreamSynchronize(stream);"


LOST = [
    cuda(700, "an illegal memory access was encountered"),
    cuda(702, "the launch timed out and was terminated"),
    cuda(709, "context is destroyed"),
    cuda(710, "device-side assert triggered"),
    cuda(714, "hardware stack error"),
    cuda(715, "an illegal instruction was encountered"),
    cuda(716, "misaligned address"),
    cuda(717, "operation not supported on global/shared address space"),
    cuda(718, "invalid program counter"),
    cuda(719, "unspecified launch failure"),
    cuda(214, "uncorrectable ECC error encountered"),
    cuda(999, "unknown error"),
    "CUDA failure 77: an illegal memory access was encountered ; GPU=0 ; hostname=box ; expr=cudaEventDestroy(e);",
    "HIP failure 700: hipErrorIllegalAddress ; GPU=0 ; hostname=box",
    f"CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED {AT}cublasSgemm(...)",
    f"CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED {AT}cudnnConvolutionForward(...)",
    "cudaErrorIllegalAddress: an illegal memory access was encountered",
    "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
    "Unable to determine the device handle for GPU0: GPU is lost. Reboot the system to recover this GPU",
    "Failed to download data from buffer: [Device] is lost.",
    "WebGPU device lost (2): A valid external Instance reference no longer exists.",
    "VK_ERROR_DEVICE_LOST",
    "Exception(1) tid(2f0) 887A0005 The GPU device instance has been suspended. Use GetDeviceRemovedReason"
    " to determine the appropriate action.",
    "DXGI_ERROR_DEVICE_HUNG",
    "L0 zeCommandQueueExecuteCommandLists result: ZE_RESULT_ERROR_DEVICE_LOST, code 0x70000001",
]

NO_MEMORY = [
    cuda(2, "out of memory"),
    f"{NODE}/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::"
    "AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer of size 67108864",
    f"{NODE}Available memory of 0 is smaller than requested bytes of 97517568",
    f"CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED {AT}cublasCreate(&handle)",
    f"CUDNN failure 4002: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED {AT}cudnnCreate(&handle)",
    "[ErrorCode:RuntimeException] Exception during initialization: bad allocation",
    "std::bad_alloc",
    "2: [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (no further information)",
    "[GPU] clEnqueueMapBuffer, error code: -4 CL_MEM_OBJECT_ALLOCATION_FAILURE",
    "[GPU] Exceeded max size of memory object allocation: requested 5368709120 bytes",
    "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    "Exception(2) tid(1a) 8007000E Not enough memory resources are available to complete this operation.",
]

ORDINARY = [
    # Not one of those after which a context is lost, though it is numbered among them.
    cuda(701, "too many resources requested for launch"),
    cuda(720, "too many blocks in cooperative launch"),
    cuda(712, "part or all of the requested memory range is already mapped"),
    cuda(801, "operation not supported"),
    cuda(900, "operation not permitted when stream is capturing"),
    cuda(1, "invalid argument"),
    f"{NODE}CUDNN failure 3000: CUDNN_STATUS_NOT_SUPPORTED {AT}cudnnFinalize()",
    f"CUBLAS failure 14: CUBLAS_STATUS_INTERNAL_ERROR {AT}cublasSgemm(...)",
    "TensorRT EP failed to create engine from network for fused node: TRTKernel_graph_0",
    "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Foo(1) node",
    "This session cannot use the graph capture feature as requested by the user as all compute graph nodes"
    " have not been partitioned to the CUDAExecutionProvider",
    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: x",
    "it lost its device id",
    "",
]

WITH_ADVICE = [
    (cuda(35, "CUDA driver version is insufficient for CUDA runtime version"), "driver"),
    (cuda(100, "no CUDA-capable device is detected"), "driver"),
    (cuda(46, "CUDA-capable device(s) is/are busy or unavailable"), "choose a device"),
    (cuda(209, "no kernel image is available for execution on the device"), "build"),
    (
        "Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open"
        " shared object file: No such file or directory",
        "libraries",
    ),
]


@pytest.mark.parametrize("text", LOST)
def test_after_a_lost_device_nothing_is_known_and_the_process_has_to_go(text: str) -> None:
    finding = classify(text)
    assert finding.kind is FailureKind.DEVICE
    assert finding.told_by in text
    assert "restart the process" in finding.advice


@pytest.mark.parametrize("text", NO_MEMORY)
def test_too_little_memory_rejects_a_candidate_and_says_what_to_do(text: str) -> None:
    finding = classify(text)
    assert (finding.kind, finding.fault) == (FailureKind.REJECTED, Fault.MEMORY)
    assert "memory" in finding.advice


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_failure_says_nothing_about_the_device(text: str) -> None:
    finding = classify(text)
    assert (finding.kind, finding.fault, finding.advice) == (FailureKind.REJECTED, None, "")


@pytest.mark.parametrize(("text", "word"), WITH_ADVICE)
def test_what_is_missing_here_comes_with_what_to_do(text: str, word: str) -> None:
    finding = classify(text)
    assert finding.kind is FailureKind.REJECTED
    assert word in finding.advice


def test_a_python_memory_error_is_too_little_memory() -> None:
    assert classify(MemoryError()).fault is Fault.MEMORY


def test_an_error_is_told_by_what_it_came_from_too() -> None:
    try:
        try:
            raise RuntimeError(LOST[0])
        except RuntimeError as error:
            raise ValueError("the run failed") from error
    except ValueError as error:
        assert failure_of(error).kind is FailureKind.DEVICE


def test_the_message_is_the_telling_part_and_ends_in_advice() -> None:
    failure = failure_of(RuntimeError(LOST[0]), "its run: ")
    assert failure.message == (
        "its run: RuntimeError: CUDA failure 700: an illegal memory access was encountered while running MatMul;"
        " what the device did is unknown; restart the process to use the device again"
    )


def test_a_failed_call_of_a_library_is_told_without_its_place_in_the_source() -> None:
    error = RuntimeError(f"{NODE}CUBLAS failure 14: CUBLAS_STATUS_INTERNAL_ERROR {AT}cublasSgemm(...)")
    assert failure_of(error).message == (
        "RuntimeError: CUBLAS failure 14: CUBLAS_STATUS_INTERNAL_ERROR while running MatMul"
    )


def test_a_failure_of_our_own_stays_what_it_is() -> None:
    failure = TuneFailure(FailureKind.UNAVAILABLE, "out of memory, says somebody")
    assert failure_of(failure) is failure


def test_an_error_in_short_leaves_out_the_runtimes_own_prefix() -> None:
    assert (
        in_short(RuntimeError("[ONNXRuntimeError] : 1 : FAIL : first\nlast"))
        == "RuntimeError: first ... last"
    )
