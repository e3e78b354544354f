"""Runs the tests that need a build of ONNX Runtime for GPUs: `python lanes.py standin|gpu|webgpu [pytest args]`.

`standin` runs those for NVIDIA's anywhere, on libraries that stand in for the GPU; `gpu` on a real one;
`webgpu` runs those of the WebGPU provider on a Vulkan device in software. Each makes an environment of its
own beside the project. What this machine lacks skips the lane: one line says why, and
the exit status is 0.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from standin.build import NotHere, build

ROOT = Path(__file__).resolve().parent.parent

# Status of tools/fetch_swiftshader.py.
CAN_NOT_BE_HAD = 3

# By name and without its extra: the stand-in takes the place of the libraries that the extra brings.
STANDIN_PACKAGES = ("--editable", ".[dev]", "onnxruntime-gpu>=1.31,<1.32", "nvidia-ml-py>=12.560,<14")
# For their headers only; in the environment itself they would bring a real runtime.
HEADER_PACKAGES = ("nvidia-cuda-runtime>=13,<14", "nvidia-cuda-crt>=13,<14")
GPU_PACKAGES = ("--editable", ".[dev,gpu,cupy]")
WEBGPU_PACKAGES = ("--editable", ".[dev,webgpu]")


def standin(arguments: Sequence[str]) -> int:
    """Runs the tests marked `standin`; returns pytest's status."""
    if shutil.which("gcc") is None:
        raise NotHere("there is no gcc to build the stand-in with")
    folder = ROOT / ".venv-standin"
    python = _environment(folder, STANDIN_PACKAGES)
    _find_headers(python, folder / "headers")
    libraries = folder / "lib-standin"
    build(libraries)
    variables = {
        # The loader reads it when a process starts, so it can't be set from within.
        "LD_LIBRARY_PATH": str(libraries),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "tests/standin/fakecupy"), str(ROOT))),
    }
    return _pytest(python, ["-m", "standin", *arguments], variables)


def gpu(arguments: Sequence[str]) -> int:
    """Runs the tests marked `gpu`; returns pytest's status."""
    smi = shutil.which("nvidia-smi")
    if smi is None or subprocess.run([smi, "-L"], capture_output=True).returncode:
        raise NotHere("there is no NVIDIA GPU here (nvidia-smi -L lists none)")
    return _pytest(_environment(ROOT / ".venv-gpu", GPU_PACKAGES), ["-m", "gpu", "-s", *arguments], {})


def webgpu(arguments: Sequence[str]) -> int:
    """Runs the tests marked `webgpu`; returns pytest's status."""
    fetched = subprocess.run(
        [sys.executable, str(ROOT / "tools/fetch_swiftshader.py"), "--into", str(ROOT / ".swiftshader")],
        capture_output=True,
        text=True,
    )
    if fetched.returncode == CAN_NOT_BE_HAD:
        raise NotHere(fetched.stderr.strip())
    fetched.check_returncode()
    description = Path(fetched.stdout.strip())
    variables = {
        "VK_ICD_FILENAMES": str(description),
        # The provider loads Vulkan's own library by name.
        "LD_LIBRARY_PATH": str(description.parent),
    }
    return _pytest(
        _environment(ROOT / ".venv-webgpu", WEBGPU_PACKAGES), ["-m", "webgpu", *arguments], variables
    )


def _pytest(python: Path, arguments: Sequence[str], variables: dict[str, str]) -> int:
    command = [str(python), "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}).returncode


def _environment(folder: Path, packages: Sequence[str]) -> Path:
    """Makes an environment with packages, unless it is there; returns its Python."""
    python = folder / "bin/python"
    stamp, wanted = folder / "installed", _digest(packages)
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    if not python.exists():
        venv.create(folder, with_pip=True)
    stamp.unlink(missing_ok=True)
    print(f"Installing what the tests need into {folder.name}", file=sys.stderr)
    _install(python, packages)
    stamp.write_text(wanted)
    return python


def _digest(packages: Sequence[str]) -> str:
    text = "\n".join((*packages, (ROOT / "pyproject.toml").read_text()))
    return hashlib.sha256(text.encode()).hexdigest()


def _find_headers(python: Path, folder: Path) -> None:
    """Sets CUDA_INC, where it isn't set, to headers that came as packages; else the usual place has to do."""
    include = folder / "nvidia/cu13/include"
    if "CUDA_INC" in os.environ:
        return
    if not (include / "cuda_runtime_api.h").is_file():
        try:
            _install(python, ("--no-deps", "--target", str(folder), *HEADER_PACKAGES))
        except NotHere:
            return
    os.environ["CUDA_INC"] = str(include)


def _install(python: Path, packages: Sequence[str]) -> None:
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--upgrade", *packages],
        cwd=ROOT,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
        raise NotHere(f"a package can't be had ({reason})")


def main() -> int:
    """Runs the lane named on the command line."""
    lanes = {"standin": standin, "gpu": gpu, "webgpu": webgpu}
    if len(sys.argv) < 2 or sys.argv[1] not in lanes:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return lanes[sys.argv[1]](sys.argv[2:])
    except NotHere as reason:
        print(f"skipped: {reason}")
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
