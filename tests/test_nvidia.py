"""What is known of NVIDIA's GPUs, read from the driver's management library, its files, and the libraries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ort_stacktune.nvidia import Gap, Sources, driver_is_absent, nvidia_facts

CUDA = "CUDAExecutionProvider"

OPEN_KERNEL_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder@host)\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)\n"
)
CLOSED_KERNEL_MODULE = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1)\n"
)


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


class Nvml:
    """A management library with some GPUs: name, compute capability, MiB, and partitions where it has any."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_NotFound = NVMLError_NotFound

    def __init__(
        self, *gpus: tuple[str, tuple[int, int], int, tuple[str, ...] | None], fails: bool = False
    ) -> None:
        self.gpus, self.fails, self.open = gpus, fails, 0

    def nvmlInit(self) -> None:
        if self.fails:
            raise NVMLError("Driver/library version mismatch")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self.gpus[index]

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return handle[0]

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        return handle[1]

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(total=handle[2] << 20)

    def nvmlDeviceGetMigMode(self, handle: Any) -> tuple[bool, bool]:
        if handle[3] is None:
            raise NVMLError_NotSupported
        return bool(handle[3]), False

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        if index >= len(handle[3]):
            raise NVMLError_NotFound
        return (f"{handle[0]} MIG {handle[3][index]}", handle[1], handle[2] // 7, ())


H200 = ("NVIDIA H200", (9, 0), 143771, ())
GEFORCE = ("NVIDIA GeForce RTX 4090", (8, 9), 24564, None)


def facts(
    root: Path,
    nvml: Nvml | None = None,
    *,
    loads: bool = True,
    variables: Mapping[str, str] | None = None,
    cached: str = "",
    providers: tuple[str, ...] = (CUDA,),
) -> tuple[dict[str, str], list[Gap]]:
    def library() -> Any:
        if nvml is None:
            raise ImportError("No module named 'pynvml'")
        return nvml

    entries, gaps = nvidia_facts(
        providers, Sources(root, library, lambda: loads, variables or {}, lambda: cached)
    )
    return dict(entries), gaps


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- the driver and the devices ---------------------------------------------------------------------


def test_the_management_library_tells_driver_model_capability_and_memory(tmp_path: Path) -> None:
    nvml = Nvml(H200, GEFORCE)
    known, gaps = facts(tmp_path, nvml)
    assert known["NVIDIA driver"] == "580.65.06"
    assert known["CUDA of the driver"] == "13.0"
    assert known["NVIDIA devices"] == (
        "NVIDIA H200 (compute capability 9.0, 143771 MiB),"
        " NVIDIA GeForce RTX 4090 (compute capability 8.9, 24564 MiB)"
    )
    assert gaps == []
    assert nvml.open == 0


def test_the_profile_of_a_partition_belongs_to_the_device(tmp_path: Path) -> None:
    known, _ = facts(tmp_path, Nvml(("NVIDIA H200", (9, 0), 143771, ("1g.18gb", "3g.71gb"))))
    assert known["NVIDIA devices"].endswith("143771 MiB, MIG 1g.18gb of 20538 MiB and 3g.71gb of 20538 MiB)")


@pytest.mark.parametrize(
    ("text", "version"), [(OPEN_KERNEL_MODULE, "580.65.06"), (CLOSED_KERNEL_MODULE, "535.104.05")]
)
def test_without_the_library_the_drivers_files_tell_less_and_the_rest_is_a_gap(
    tmp_path: Path, text: str, version: str
) -> None:
    write(tmp_path, "proc/driver/nvidia/version", text)
    write(tmp_path, "proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: \t\t NVIDIA L4\nIRQ: 7\n")
    write(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 6\n")
    known, gaps = facts(tmp_path)
    assert known["NVIDIA driver"] == version
    assert known["NVIDIA devices"] == "NVIDIA H200, NVIDIA L4"
    assert gaps == [Gap("compute capability, memory and MIG profile", "install nvidia-ml-py")]


def test_a_library_that_does_not_fit_the_driver_leaves_gaps_that_no_package_closes(tmp_path: Path) -> None:
    write(tmp_path, "dev/nvidiactl", "")
    known, gaps = facts(tmp_path, Nvml(fails=True))
    assert known["NVIDIA driver"] == "unknown"
    assert Gap("NVIDIA driver") in gaps


def test_no_driver_is_a_known_fact(tmp_path: Path) -> None:
    known, gaps = facts(tmp_path, loads=False)
    assert known == {"NVIDIA driver": "no NVIDIA driver"}
    assert gaps == []


@pytest.mark.parametrize("sign", ["unreadable version", "device file", "library"])
def test_any_sign_of_a_driver_means_that_there_is_one(tmp_path: Path, sign: str) -> None:
    if sign == "unreadable version":
        write(tmp_path, "proc/driver/nvidia/version", "something else\n")
    if sign == "device file":
        write(tmp_path, "dev/nvidiactl", "")
    known, gaps = facts(tmp_path, loads=sign == "library")
    assert known["NVIDIA driver"] == "unknown"
    assert Gap("NVIDIA driver", "install nvidia-ml-py") in gaps


@pytest.mark.parametrize("information", [None, "Model: \t Unknown\n", "IRQ: 6\n"])
def test_devices_that_cannot_be_told_apart_are_a_gap(tmp_path: Path, information: str | None) -> None:
    write(tmp_path, "proc/driver/nvidia/version", OPEN_KERNEL_MODULE)
    if information is not None:
        write(tmp_path, "proc/driver/nvidia/gpus/0000:01:00.0/information", information)
    known, gaps = facts(tmp_path)
    assert known["NVIDIA devices"] == "unknown"
    assert Gap("NVIDIA devices", "install nvidia-ml-py") in gaps


def test_asking_whether_there_is_a_driver_needs_no_library(tmp_path: Path) -> None:
    def fails() -> Any:
        raise AssertionError("nothing but its files is asked")

    assert driver_is_absent(Sources(tmp_path, fails, lambda: False, {}, lambda: ""))
    assert not driver_is_absent(Sources(tmp_path, fails, lambda: True, {}, lambda: ""))


# --- libraries --------------------------------------------------------------------------------------


def test_a_library_is_known_by_its_full_name_and_its_size(tmp_path: Path) -> None:
    whole = write(tmp_path, "cuda/libcudart.so.13.0.96", "12345")
    (tmp_path / "cuda/libcudart.so.13").symlink_to(whole)
    known, gaps = facts(tmp_path, Nvml(H200), variables={"LD_LIBRARY_PATH": f":{tmp_path / 'cuda'}"})
    assert known["CUDA runtime"] == "libcudart.so.13.0.96, 5 bytes"
    assert known["cuDNN"] == "not found"
    assert "TensorRT" not in known
    assert gaps == []


def test_what_is_loaded_counts_before_what_could_be(tmp_path: Path) -> None:
    loaded = write(tmp_path, "site/nvidia/cudnn/lib/libcudnn.so.9", "123")
    write(tmp_path, "cuda/libcudnn.so.9", "1")
    write(tmp_path, "proc/self/maps", f"7f00-7f01 r-xp 00000000 08:01 42    {loaded}\n")
    known, _ = facts(tmp_path, Nvml(H200), variables={"LD_LIBRARY_PATH": str(tmp_path / "cuda")})
    assert known["cuDNN"] == "libcudnn.so.9, 3 bytes"


def test_the_loaders_own_list_is_looked_through_last(tmp_path: Path) -> None:
    place = write(tmp_path, "usr/lib/libcublas.so.13", "1234")
    cached = f"2 libs found in cache\n\tlibcublas.so.13 (libc6,x86-64) => {place}\n"
    known, _ = facts(tmp_path, Nvml(H200), cached=cached)
    assert known["cuBLAS"] == "libcublas.so.13, 4 bytes"


def test_tensorrt_counts_where_its_provider_is_asked_about(tmp_path: Path) -> None:
    known, _ = facts(tmp_path, Nvml(H200), providers=(CUDA, "TensorrtExecutionProvider"))
    assert known["TensorRT"] == "not found"
