"""Builds the libraries that stand in for an NVIDIA GPU: `python build.py FOLDER`, with gcc.

The headers of the CUDA runtime come from the folder in CUDA_INC, or from /usr/local/cuda.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Library:
    """One shared library: its name for the loader and what it is made of."""

    name: str
    sources: tuple[str, ...]
    needs_runtime: bool = False


RUNTIME = Library("libcudart.so.13", ("core.c", "memory.c", "streams.c", "device.c"))
LIBRARIES = (
    RUNTIME,
    Library("libcublas.so.13", ("cublas.c",), needs_runtime=True),
    Library("libcublasLt.so.13", ("cublaslt.c",), needs_runtime=True),
    Library("libcuda.so.1", ("driver.c",)),
    Library("libcurand.so.10", ("curand.c",)),
    Library("libnvidia-ml.so.1", ("nvml.c",)),
)


class NotHere(Exception):
    """What is missing to build it, in one sentence."""


def build(folder: Path) -> None:
    """Builds every library into a folder.

    Raises:
        NotHere: There is no compiler, or there are no headers.
    """
    gcc, include = shutil.which("gcc"), Path(os.environ.get("CUDA_INC", "/usr/local/cuda/include"))
    if gcc is None:
        raise NotHere("there is no gcc to build the stand-in with")
    if not (include / "cuda_runtime_api.h").is_file():
        raise NotHere(f"{include} has no headers of the CUDA runtime; set CUDA_INC to a folder that has")
    folder.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        _build_one(library, folder, gcc, include)


def _build_one(library: Library, folder: Path, gcc: str, include: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".map") as versions:
        # The real libraries' symbols carry the library's name as their version, and users ask for it.
        versions.write(f"{library.name} {{ global: *; }};\n")
        versions.flush()
        command = [gcc, "-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
        command += [f"-I{HERE}", "-isystem", str(include), f"-Wl,-soname,{library.name}"]
        if library is RUNTIME or library.needs_runtime:
            command.append(f"-Wl,--version-script={versions.name}")
        command += ["-o", str(folder / library.name), *(str(HERE / source) for source in library.sources)]
        if library.needs_runtime:
            command += [f"-L{folder}", f"-l:{RUNTIME.name}"]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
