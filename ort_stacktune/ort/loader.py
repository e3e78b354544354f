"""Owns how ONNX Runtime is imported, and what is said where that cannot work.

ONNX Runtime comes in builds of different names that all provide the module ``onnxruntime`` and exclude
each other, and none of them is a dependency of this package. Must never import ONNX Runtime at import,
choose between builds, or change what is installed.
"""

from __future__ import annotations

import re
from importlib import import_module, metadata
from types import ModuleType

_loaded: ModuleType | None = None

# Every name under which a build was published. They are looked up one by one, because to scan all that
# is installed takes longer the more there is.
_BUILDS = (
    "onnxruntime",
    "onnxruntime-acl",
    "onnxruntime-armnn",
    "onnxruntime-azure",
    "onnxruntime-cann",
    "onnxruntime-coreml",
    "onnxruntime-directml",
    "onnxruntime-dnnl",
    "onnxruntime-gpu",
    "onnxruntime-gpu-extended",
    "onnxruntime-lite",
    "onnxruntime-migraphx",
    "onnxruntime-noopenmp",
    "onnxruntime-openmp",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-silicon",
    "onnxruntime-training",
    "onnxruntime-training-cpu",
    "onnxruntime-trt-rtx",
    "onnxruntime-tvm",
    "onnxruntime-vitisai",
    "onnxruntime-webgpu",
    "onnxruntime-windowsml",
    "ort-gpu-nightly",
    "ort-nightly",
    "ort-nightly-directml",
    "ort-nightly-gpu",
)

_HEADER = re.compile(r"^(Name|Version):[ \t]*(\S+)", re.MULTILINE)

_WHICH = (
    'install exactly one build: pip install "ort-stacktune[cpu]" for any machine,'
    ' "ort-stacktune[openvino]" for Intel hardware and other x86-64 CPUs,'
    ' or "ort-stacktune[gpu]" for NVIDIA GPUs'
)


def onnxruntime() -> ModuleType:
    """Imports ONNX Runtime once and returns the module.

    Raises:
        ImportError: No build is installed, several are, or the one there does not work; the sentence
            says what to do. Nothing of it is remembered: after a repair the next call succeeds.
    """
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def installed_builds() -> tuple[tuple[str, str], ...]:
    """Returns name and version of each installed distribution that provides ONNX Runtime, by name.

    Names are found however they are spelled (``onnxruntime_gpu``, ``ONNXRuntime-GPU``). A plugin, which
    adds an execution provider but not the module, is not among them. Empty for a build that was put in
    place without a package manager.
    """
    found = []
    for name in _BUILDS:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        about = dict(_HEADER.findall(text.partition("\n\n")[0]))
        # What an interrupted removal leaves behind has neither.
        if "Name" in about and "Version" in about and _provides_module(distribution):
            found.append((about["Name"], about["Version"]))
    return tuple(found)


def _provides_module(distribution: metadata.Distribution) -> bool:
    # Some names were builds once and are plugins now, so that the name alone does not tell. Without a
    # list of files (an editable install, another package manager) the name has to be believed.
    files = distribution.read_text("RECORD")
    return files is None or any(line.startswith("onnxruntime/") for line in files.splitlines())


def _load() -> ModuleType:
    builds = installed_builds()
    if len(builds) > 1:
        raise ImportError(
            f"{len(builds)} builds of ONNX Runtime are installed over one another ({_listed(builds)});"
            " remove all but one, then reinstall the one that stays"
            " (pip install --force-reinstall --no-deps NAME), because each removal takes files of the others"
        )
    try:
        module = import_module("onnxruntime")
    except ImportError as error:
        if not builds and isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime":
            raise ImportError(f"ONNX Runtime is not installed; {_WHICH}") from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ImportError(f"ONNX Runtime does not load ({reason}); {_repair(builds)}") from error
    if not hasattr(module, "InferenceSession"):
        place = getattr(module, "__file__", None) or ", ".join(getattr(module, "__path__", ()))
        raise ImportError(
            f"the module onnxruntime in {place} is empty: it has no InferenceSession; {_repair(builds)}"
        )
    return module


def _repair(builds: tuple[tuple[str, str], ...]) -> str:
    if not builds:
        return f"remove what is left of it and {_WHICH}"
    name, version = builds[0]
    return f"reinstall {name} {version} (pip install --force-reinstall {name}=={version})"


def _listed(builds: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {version}" for name, version in builds)
