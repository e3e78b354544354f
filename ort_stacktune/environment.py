"""Owns what identifies this machine and its software: the facts, the fingerprint and the core budget.

Must never make up a fact: what can't be read is unknown, and an identity with an unknown part holds for
this process only. Nothing is read at import, and the state of no device is changed by asking.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ort_stacktune import nvidia
from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.identity import fields, parse_fields
from ort_stacktune.machine import UNKNOWN, processor, usable_cores
from ort_stacktune.ort.loader import installed_builds, onnxruntime
from ort_stacktune.vocabulary import RuntimeEnvironment

DEFAULT_CONTEXT = "isolated-single-device"

_REMEMBERED = 64

_HOST_PROVIDERS = frozenset(
    f"{name}ExecutionProvider" for name in ("ACL", "ArmNN", "Azure", "CPU", "Dnnl", "OpenVINO", "Xnnpack")
)

# Set, these make the libraries behind a session take other code or another device.
_VARIABLES = frozenset(
    {
        "CUBLASLT_WORKSPACE_SIZE",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_CACHE_DISABLE",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_ORDER",
        "CUDA_FORCE_PTX_JIT",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS",
    }
)
_VARIABLE_PREFIXES = ("CUDNN_", "DNNL_", "ONEDNN_", "OPENVINO_", "ORT_", "OV_")
_OWN_PREFIX = "ORT_STACKTUNE_"

_DRIVER_BEHIND = "driver behind "


@dataclass(frozen=True, slots=True)
class _Facts:
    """Labels with texts, and for each unknown that matters a sentence on what to do about it."""

    entries: tuple[tuple[str, str], ...]
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Process:
    """What is the same for every question in this process, read at the first."""

    facts: _Facts
    providers: tuple[str, ...]
    driver_tag: str
    context: str
    token: str


@dataclass(frozen=True, slots=True)
class _Probed:
    environment: RuntimeEnvironment
    facts: _Facts


_lock = threading.Lock()
_process: _Process | None = None
_probed: OrderedDict[tuple[str, ...], _Probed] = OrderedDict()


def runtime_environment(*, providers: Sequence[str] | None = None) -> RuntimeEnvironment:
    """Returns the identity of this machine and its software, probed once for each set of providers.

    The environment variables ``ORT_STACKTUNE_DRIVER_TAG`` and ``ORT_STACKTUNE_BUILD_TAG`` identify a
    driver or a build that can't be read here; ``ORT_STACKTUNE_CONTEXT_TAG`` says how the machine is
    shared. All three are read at the first call in a process and never again.

    Args:
        providers: Names of the execution providers whose devices and drivers belong to the identity;
            ``None`` for all that the installed build offers.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where ``providers`` is anything but names.
        ImportError: ONNX Runtime can't be imported.
    """
    return _ask(providers).environment


def describe(*, providers: Sequence[str] | None = None) -> dict[str, str]:
    """Returns what :func:`runtime_environment` found, for people: label to text, in reading order.

    Args:
        providers: As there.

    Raises:
        TuneFailure: As there.
        ImportError: As there.
    """
    probed = _ask(providers)
    gaps = probed.facts.gaps
    return {
        **dict(probed.facts.entries),
        "usable cores": str(usable_cores().count),
        "execution context": probed.environment.execution_context,
        "choices can be stored": f"no: {'; '.join(gaps)}" if gaps else "yes",
    }


def environment_like(fingerprint: str) -> RuntimeEnvironment:
    """Returns the identity of this machine for the providers whose devices another identity speaks of.

    The devices in an identity are those of its question's providers, so two questions on one machine may
    differ in them; held against this answer, an identity differs only where its machine or software does.

    Args:
        fingerprint: The other identity; of one of another make nothing is taken.

    Raises:
        ImportError: ONNX Runtime can't be imported.
    """
    try:
        labels = parse_fields(fingerprint)[::2]
    except (TuneFailure, ValueError):
        labels = []
    providers = [label.removeprefix(_DRIVER_BEHIND) for label in labels if label.startswith(_DRIVER_BEHIND)]
    return runtime_environment(providers=[*providers, *nvidia.providers_behind(labels)])


def forget_environment() -> None:
    """Forgets what was probed, so that the next question probes afresh. For tests."""
    global _process
    with _lock:
        _process = None
        _probed.clear()


def _ask(providers: Sequence[str] | None) -> _Probed:
    if providers is not None and (
        isinstance(providers, str) or not all(isinstance(name, str) for name in providers)
    ):
        raise invalid(f"providers is {providers!r}; expected a list of execution providers' names")
    process = _this_process()
    asked = tuple(sorted(set(process.providers if providers is None else providers)))
    with _lock:
        known = _probed.get(asked)
    if known is not None:
        return known
    fresh = _probe(process, asked)
    with _lock:
        while len(_probed) >= _REMEMBERED:
            _probed.popitem(last=False)
        return _probed.setdefault(asked, fresh)


def _this_process() -> _Process:
    # Two threads may probe at the same time; both then get what was published first.
    global _process
    process = _process
    if process is None:
        fresh = _probe_process(dict(os.environ))
        with _lock:
            if _process is None:
                _process = fresh
            process = _process
    return process


def _probe(process: _Process, asked: tuple[str, ...]) -> _Probed:
    devices = _device_facts(asked, process.driver_tag)
    entries = process.facts.entries + devices.entries
    gaps = process.facts.gaps + devices.gaps
    identity = [part for entry in entries for part in entry]
    if gaps:
        # Without it, two processes that see different things behind the same gap would meet.
        identity += ["this process only", process.token]
    return _Probed(
        RuntimeEnvironment(fields(identity), not gaps, process.context),
        _Facts(entries, gaps),
    )


def _probe_process(variables: dict[str, str], root: Path = Path("/")) -> _Process:
    build, providers = _build_facts(_printable(variables.get("ORT_STACKTUNE_BUILD_TAG", "")))
    machine = _machine_facts(root)
    return _Process(
        _Facts(
            (*build.entries, *machine.entries, *_variable_entries(variables)),
            (*build.gaps, *machine.gaps),
        ),
        providers,
        _printable(variables.get("ORT_STACKTUNE_DRIVER_TAG", "")),
        _printable(variables.get("ORT_STACKTUNE_CONTEXT_TAG", "")) or DEFAULT_CONTEXT,
        secrets.token_hex(16),
    )


def _build_facts(tag: str) -> tuple[_Facts, tuple[str, ...]]:
    ort = onnxruntime()
    providers = tuple(ort.get_available_providers())
    info = str(ort.get_build_info()) if hasattr(ort, "get_build_info") else ""
    entries = [
        ("ONNX Runtime package", _versions(installed_builds()) or "none"),
        ("ONNX Runtime version", str(ort.__version__)),
        ("ONNX Runtime build", info or UNKNOWN),
        ("execution providers", ", ".join(providers)),
        ("libraries", ", ".join(_libraries(Path(str(ort.__file__)).parent / "capi"))),
    ]
    if tag:
        entries.append(("build tag", tag))
    if tag or re.search(r"git-commit-id=\w", info):
        return _Facts(tuple(entries)), providers
    gap = "this build of ONNX Runtime does not say which commit it is; set ORT_STACKTUNE_BUILD_TAG to name it"
    return _Facts(tuple(entries), (gap,)), providers


def _libraries(folder: Path) -> Iterator[str]:
    """Yields name and size in bytes of each shared library: providers come and go with theirs."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if re.search(r"\.(dll|dylib|pyd|so(\.[\d.]+)?)$", path.name) and path.is_file():
            yield f"{path.name} {path.stat().st_size}"


def _versions(packages: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages)


def _machine_facts(root: Path) -> _Facts:
    model, features = processor(root)
    budget = usable_cores(root=root)
    quota = "none" if budget.quota is None else repr(budget.quota)
    entries = (
        ("system", f"{platform.system()} {platform.machine()}"),
        ("processor", model or UNKNOWN),
        ("processor features", features),
        ("logical cores", str(os.cpu_count() or UNKNOWN)),
        ("cores by affinity", str(budget.affinity)),
        ("cores by quota", quota),
    )
    return _Facts(entries, () if model else ("the processor's model can't be read",))


def decides_speed(variable: str) -> bool:
    """Whether an environment variable, by its name, makes the libraries behind a session work otherwise."""
    return (variable in _VARIABLES or variable.startswith(_VARIABLE_PREFIXES)) and not variable.startswith(
        _OWN_PREFIX
    )


def _variable_entries(variables: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, _printable(value)) for name, value in sorted(variables.items()) if decides_speed(name)]


def _device_facts(asked: Sequence[str], tag: str, sources: nvidia.Sources | None = None) -> _Facts:
    """Returns what is known of the devices behind providers, and of their drivers."""
    entries: list[tuple[str, str]] = []
    unknown: list[nvidia.Gap] = []
    if nvidia.PROVIDERS & set(asked):
        told, missing = nvidia.nvidia_facts(asked, sources)
        entries += told
        unknown += missing
    for name in asked:
        if name not in _HOST_PROVIDERS | nvidia.PROVIDERS:
            entries.append((f"{_DRIVER_BEHIND}{name}", UNKNOWN))
            unknown.append(nvidia.Gap(f"{_DRIVER_BEHIND}{name}"))
    if tag and entries:
        return _Facts((*entries, ("driver tag", tag)))
    gaps = tuple(
        f"the {gap.label} can't be read; {gap.remedy and f'{gap.remedy}, or '}"
        "set ORT_STACKTUNE_DRIVER_TAG to name it"
        for gap in unknown
    )
    return _Facts(tuple(entries), gaps)


def _printable(text: str) -> str:
    # An environment variable may hold bytes that are no UTF-8; identity text is UTF-8.
    return text.encode("utf-8", "backslashreplace").decode()
