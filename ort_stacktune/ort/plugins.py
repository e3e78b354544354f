"""Owns plugin execution providers in this process: their libraries, each registered once, and their devices.

A library that is loaded runs its code here, so it is loaded when a session of its recipe is made and not
before. Must never unregister one: a session of somebody else's may use it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.provider_table import CPU

_LIBRARY = "library_path"

_registered: dict[str, str] = {}
_lock = threading.Lock()


def register(libraries: Mapping[str, str]) -> None:
    """Registers plugin libraries that are not registered yet.

    Args:
        libraries: Registration name -> path.

    Raises:
        TuneFailure: ``REJECTED`` where one can't be loaded or registered, with its path.
    """
    for name, path in libraries.items():
        with _lock:
            taken = _registered.get(name)
            if taken is not None and taken != path:
                raise TuneFailure(
                    FailureKind.REJECTED,
                    f"the execution provider library {path} can't be registered as {name!r}, because {taken} is;"
                    " give it a name of its own",
                )
            if taken is None:
                _register(name, path)
                _registered[name] = path


def add_providers(options: Any, providers: Sequence[tuple[str, Mapping[str, str]]]) -> list[tuple[str, Any]]:
    """Adds providers to session options where one of them is a plugin that can't be named.

    Args:
        options: The ``onnxruntime.SessionOptions``.
        providers: Providers in order of preference. Of a plugin with several devices, the first is used.

    Returns:
        The providers that are left to be named when the session is made: all, or none.

    Raises:
        TuneFailure: ``REJECTED`` for a plugin without a device here.
    """
    by_name = onnxruntime().get_available_providers()
    if all(name in by_name for name, _ in providers):
        return [(name, dict(given)) for name, given in providers]
    for name, given in providers:
        if name not in by_name:
            options.add_provider_for_devices(_devices(name)[:1], dict(given))
        elif name != CPU:
            # The CPU stands behind every session by itself.
            options.add_provider(name, dict(given))
    return []


def plugins_here() -> dict[str, str]:
    """Returns the plugin providers registered in this process, each with the path of its library.

    The path is empty where ONNX Runtime does not tell it (1.24), where it registers the library itself, and
    where no file is there any more.
    """
    ort = onnxruntime()
    # In 1.32 plugins are among these too, in 1.24 they are not.
    listed = ort.get_available_providers()
    own = Path(ort.__file__ or "").parent
    found = {}
    for device in getattr(ort, "get_ep_devices", list)():
        path = device.ep_metadata.get(_LIBRARY, "")
        if path or device.ep_name not in listed:
            outside = bool(path) and own not in Path(path).parents and Path(path).is_file()
            found[device.ep_name] = path if outside else ""
    return found


def _register(name: str, path: str) -> None:
    ort = onnxruntime()
    call = getattr(ort, "register_execution_provider_library", None)
    if call is None:
        raise TuneFailure(
            FailureKind.REJECTED,
            f"ONNX Runtime {ort.__version__} takes no execution provider libraries; they came with 1.22",
        )
    if any(_same_file(device.ep_metadata.get(_LIBRARY, ""), path) for device in ort.get_ep_devices()):
        # The application has registered it under a name of its own; a second time is an error.
        return
    try:
        call(name, path)
    except Exception as error:
        raise TuneFailure(
            FailureKind.REJECTED,
            f"the execution provider library {path} can't be registered: {_reason(error)}",
        ) from error


def _devices(provider: str) -> list[Any]:
    devices = onnxruntime().get_ep_devices()
    found = [device for device in devices if device.ep_name == provider]
    if not found:
        raise TuneFailure(
            FailureKind.REJECTED,
            f"no device here is offered by a library for {provider};"
            f" offered are {', '.join(dict.fromkeys(device.ep_name for device in devices))}",
        )
    return found


def _same_file(one: str, other: str) -> bool:
    try:
        return bool(one) and Path(one).samefile(other)
    except OSError:
        return False


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
