"""Owns what identifies NVIDIA's GPUs, their driver and the libraries above it: facts with labels, and gaps.

Must never make up a fact, and must never change a device or put a context on it: the driver is asked through
its management library, and libraries are looked for, not loaded. One that were loaded here would be the one
that a session gets later.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from ort_stacktune.machine import UNKNOWN, read_text
from ort_stacktune.ort.loader import installed_builds

DRIVER = "NVIDIA driver"
"""Label of the driver's version; there wherever a provider for NVIDIA GPUs is asked about."""

PROVIDERS = frozenset(f"{name}ExecutionProvider" for name in ("CUDA", "NvTensorRTRTX", "Tensorrt"))
"""Execution providers for NVIDIA GPUs."""

_NO_DRIVER = "no NVIDIA driver"
_INSTALL_NVML = "install nvidia-ml-py"

# Libraries below the providers, by the beginning of their names, and what people call them. Kernels, and so
# speed and rounding, change with their versions.
_LIBRARIES = {
    "libcudart.so": "CUDA runtime",
    "libcublas.so": "cuBLAS",
    "libcudnn.so": "cuDNN",
    "libnvinfer.so": "TensorRT",
    "libtensorrt_rtx.so": "TensorRT RTX",
}
_ALSO_BEHIND = {
    "TensorRT": "TensorrtExecutionProvider",
    "TensorRT RTX": "NvTensorRTRTXExecutionProvider",
}


@dataclass(frozen=True, slots=True)
class Gap:
    """A fact that can't be read.

    Attributes:
        label: Which one.
        remedy: What lets it be read; empty where nothing is known to.
    """

    label: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where facts are read; tests bring their own.

    Attributes:
        root: Root of the file system.
        nvml: Returns the module of the driver's management library, or raises ``ImportError``.
        cuda_loads: Whether the driver's own library can be loaded.
        variables: Environment variables.
        cached_libraries: Returns the loader's own list of libraries, as text.
    """

    root: Path
    nvml: Callable[[], Any]
    cuda_loads: Callable[[], bool]
    variables: Mapping[str, str]
    cached_libraries: Callable[[], str]

    @classmethod
    def here(cls, root: Path = Path("/")) -> Sources:
        """Returns this machine's."""
        return cls(root, _nvml, _cuda_loads, os.environ, _cached_libraries)


def driver_is_absent(sources: Sources | None = None) -> bool:
    """Whether this machine is known to have no NVIDIA driver, so that no such provider can work."""
    sources = sources or Sources.here()
    signs = read_text(sources.root / "proc/driver/nvidia/version") is not None
    return not (signs or any((sources.root / "dev").glob("nvidia*")) or sources.cuda_loads())


def providers_behind(labels: Sequence[str]) -> list[str]:
    """Returns execution providers whose facts have labels like these; none where they speak of no GPU."""
    if DRIVER not in labels:
        return []
    others = [provider for label, provider in _ALSO_BEHIND.items() if label in labels]
    return ["CUDAExecutionProvider", *others]


def nvidia_facts(
    providers: Sequence[str], sources: Sources | None = None
) -> tuple[list[tuple[str, str]], list[Gap]]:
    """Returns what is known of the GPUs behind providers: labels with texts, and what can't be read.

    Args:
        providers: Execution providers, those of others included.
        sources: Where it is read.
    """
    sources = sources or Sources.here()
    if driver_is_absent(sources):
        return [(DRIVER, _NO_DRIVER)], []
    entries, gaps = _device_facts(sources)
    for label, text in _library_facts(providers, sources):
        entries.append((label, text))
        if text == UNKNOWN:
            gaps.append(Gap(label))
    entries.append(("NVIDIA packages", _packages()))
    return entries, gaps


# --- the driver and the devices ---------------------------------------------------------------------


def _device_facts(sources: Sources) -> tuple[list[tuple[str, str]], list[Gap]]:
    remedy = ""
    try:
        nvml = sources.nvml()
    except ImportError:
        remedy = _INSTALL_NVML
    else:
        try:
            return list(_told_by_nvml(nvml)), []
        except nvml.NVMLError:
            # It doesn't fit the driver, or the driver doesn't answer.
            pass
    return _told_by_files(sources.root, remedy)


def _told_by_nvml(nvml: Any) -> Iterator[tuple[str, str]]:
    nvml.nvmlInit()
    try:
        yield DRIVER, _text(nvml.nvmlSystemGetDriverVersion())
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        yield "CUDA of the driver", f"{cuda // 1000}.{cuda % 1000 // 10}"
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        yield "NVIDIA devices", ", ".join(_device(nvml, handle) for handle in handles) or "none"
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, handle: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    parts = [f"compute capability {major}.{minor}", _memory(nvml, handle)]
    try:
        partitioned, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError_NotSupported:
        partitioned = False
    if partitioned:
        parts.append(f"MIG {' and '.join(_partitions(nvml, handle)) or 'without instances'}")
    return f"{_text(nvml.nvmlDeviceGetName(handle))} ({', '.join(parts)})"


def _partitions(nvml: Any, handle: Any) -> Iterator[str]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            partition = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        profile = _text(nvml.nvmlDeviceGetName(partition)).rpartition("MIG ")[2]
        yield f"{profile} of {_memory(nvml, partition)}"


def _memory(nvml: Any, handle: Any) -> str:
    return f"{int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20} MiB"


def _text(value: str | bytes) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _told_by_files(root: Path, remedy: str) -> tuple[list[tuple[str, str]], list[Gap]]:
    """Returns what the driver's files tell; of a device that is its model alone."""
    version = read_text(root / "proc/driver/nvidia/version") or ""
    found = re.search(r"NVRM version:.*?\s(\d+(?:\.\d+)+)(?:\s|$)", version)
    entries = [
        (DRIVER, found[1] if found else UNKNOWN),
        ("NVIDIA devices", _models(root / "proc/driver/nvidia/gpus")),
        ("compute capability, memory and MIG profile", UNKNOWN),
    ]
    return entries, [Gap(label, remedy) for label, text in entries if text == UNKNOWN]


def _models(devices: Path) -> str:
    """Returns the models in the order of their bus addresses; unknown unless every one can be read."""
    models = []
    for folder in sorted(devices.glob("*")):
        found = re.search(r"^Model:\s*(\S.*?)\s*$", read_text(folder / "information") or "", re.MULTILINE)
        if found is None or found[1].lower() == UNKNOWN:
            return UNKNOWN
        models.append(found[1])
    return ", ".join(models) or UNKNOWN


def _nvml() -> Any:
    return import_module("pynvml")


def _cuda_loads() -> bool:
    try:
        ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
    except OSError:
        return False
    return True


# --- libraries --------------------------------------------------------------------------------------


def _library_facts(providers: Sequence[str], sources: Sources) -> Iterator[tuple[str, str]]:
    for stem, label in _LIBRARIES.items():
        if _ALSO_BEHIND.get(label, providers[0]) not in providers:
            continue
        if platform.system() != "Linux":
            yield label, UNKNOWN
            continue
        path = _place(stem, sources)
        yield label, "not found" if path is None else _identity(path)


def _place(stem: str, sources: Sources) -> Path | None:
    """Returns the file that is loaded, or else the one that the loader would come upon first."""
    mapped = re.search(
        rf"\s(/\S*/{re.escape(stem)}\S*)$", read_text(sources.root / "proc/self/maps") or "", re.MULTILINE
    )
    if mapped:
        return Path(mapped[1])
    for folder in filter(None, sources.variables.get("LD_LIBRARY_PATH", "").split(":")):
        # Only a name with the interface's number is looked for by those that need it.
        for path in sorted(Path(folder).glob(f"{stem}.*")):
            return path
    cached = re.search(rf"^\s*{re.escape(stem)}\.\S+ .*=> (\S+)$", sources.cached_libraries(), re.MULTILINE)
    return Path(cached[1]) if cached else None


def _identity(path: Path) -> str:
    """Returns a library's full name and its size: its version stands in neither of them everywhere."""
    try:
        whole = path.resolve(strict=True)
        return f"{whole.name}, {whole.stat().st_size} bytes"
    except OSError:
        return UNKNOWN


def _cached_libraries() -> str:
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            return subprocess.run(
                [program, "-p"], capture_output=True, text=True, timeout=10, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
    return ""


def _packages() -> str:
    """Returns the versions of CUDA libraries that came as packages."""
    wanted = {"tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-rtx"}
    for build, _ in installed_builds():
        for requirement in metadata.requires(build) or ():
            wanted.update(re.findall(r"^nvidia-[\w.-]*\w", requirement))
    found = []
    for name in sorted(wanted):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found) or "none"
