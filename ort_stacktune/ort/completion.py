"""Owns how the end of a device's work is known: what really waits for it, and the clock of its own events.

``run()`` of ONNX Runtime returns when the host is done, which on a device may be long before the work is.
Must never pass off the host's clock as a device's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.devices import CPU, STREAM, needs_reading_back
from ort_stacktune.ort.recipes import Provider, SessionRecipe, variant
from ort_stacktune.ort.tensors import Port

UNSYNCHRONISED = {"disable_synchronize_execution_providers": "1"}
"""Run config under which a run only submits its work; its end is told by an event, or by a wait."""

_WITH_EVENTS = ("CUDAExecutionProvider", "TensorrtExecutionProvider")

Wait = Callable[[], None]


def waiting_for(
    binding: Callable[[], Any], providers: Sequence[Provider], port: Callable[[], Port]
) -> Wait | None:
    """Returns what waits until all work submitted to a session's devices is done.

    Args:
        binding: Makes a binding of the session.
        providers: Its providers.
        port: Gives the way to the device of a provider that waits for nothing but a copy.

    Returns:
        ``None`` where there is nothing to wait for: a run on the CPU returns when it is done.
    """
    if all(name == CPU for name, _ in providers):
        return None
    if needs_reading_back(providers):
        # There, synchronize_outputs() does nothing. What is read back is one number of our own, through the
        # device's one queue, so that no output is copied to know that it is there.
        return port().reader(np.zeros(1, np.float32))
    wait: Wait = binding().synchronize_outputs
    return wait


class DeviceEvents:
    """A CUDA stream and two events on it, which time what sessions on that stream do.

    Args:
        cupy: The module.
        device_id: Number of the device.
    """

    def __init__(self, cupy: Any, device_id: int) -> None:
        self._cuda = cupy.cuda
        self._device = device_id
        with self._cuda.Device(device_id):
            self._stream = self._cuda.Stream(non_blocking=True)
            self._start, self._end = self._cuda.Event(), self._cuda.Event()

    def on_stream(self, recipe: SessionRecipe) -> SessionRecipe:
        """Returns a recipe whose session works on the stream."""
        stream = {STREAM: str(self._stream.ptr)}
        providers = [
            (name, {**options, **stream} if name in _WITH_EVENTS else options)
            for name, options in recipe.provider_list
        ]
        return variant(recipe, recipe.name, providers=providers)

    def time(self, work: Callable[[], None]) -> int:
        """Returns ns between the events around some work, once it is completed.

        Args:
            work: Submits work to the stream and waits for none of it.
        """
        with self._cuda.Device(self._device):
            self._stream.synchronize()
            self._start.record(self._stream)
            work()
            self._end.record(self._stream)
            self._end.synchronize()
            milliseconds = float(self._cuda.get_elapsed_time(self._start, self._end))
        return max(1, round(milliseconds * 1e6))


def events_for(recipe: SessionRecipe, concurrency: int) -> DeviceEvents:
    """Returns the events that time a recipe's sessions.

    Raises:
        TuneFailure: ``UNAVAILABLE`` with the reason where there are none.
    """
    first, options = recipe.provider_list[0] if recipe.provider_list else (CPU, {})
    if first not in _WITH_EVENTS:
        raise _unavailable(f"needs device events, which {first} does not offer")
    if concurrency > 1:
        raise _unavailable(f"times one caller on one stream, and the policy asks for {concurrency}")
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        raise _unavailable(
            f"needs cupy for events on {first}'s stream, and it can't be imported ({error});"
            ' install "ort-stacktune[cupy]"'
        ) from error
    try:
        return DeviceEvents(cupy, int(options.get("device_id", 0)))
    except Exception as error:
        raise _unavailable(f"needs an event on {first}'s stream, and cupy made none ({error})") from error


def _unavailable(reason: str) -> TuneFailure:
    return TuneFailure(FailureKind.UNAVAILABLE, f"Timing.DEVICE {reason}; Timing.END_TO_END works everywhere")
