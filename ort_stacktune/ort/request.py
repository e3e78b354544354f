"""Owns one request to a session in a form that a trial can repeat: live inputs, wanted outputs, the way in.

Holds the caller's arrays and device tensors only to read them, and reads those on a device only for a trial;
whoever runs a trial works on copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ort_stacktune.ort.devices import HOST, Memory
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.options import RUN_CONFIG
from ort_stacktune.ort.tensors import DeviceTensor, Tensor, read_back
from ort_stacktune.signature import CallSignature, TensorSignature, tensor_signature


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The run options that matter, read back from a caller's object.

    Attributes:
        only_execute_path_to_fetches: As in ``onnxruntime.RunOptions``.
        config: Run config entries that can be read back.
        given: Whether the caller brought an options object, which has to be the one that is used.
    """

    only_execute_path_to_fetches: bool = False
    config: Mapping[str, str] = field(default_factory=dict)
    given: bool = False

    def text(self) -> tuple[str, ...]:
        """Returns them as parts of a signature."""
        parts = [f"{key}={value}" for key, value in sorted(self.config.items())]
        if self.only_execute_path_to_fetches:
            parts.append("only_execute_path_to_fetches")
        return tuple(parts)

    def make(self, extra: Mapping[str, str] | None = None) -> object | None:
        """Returns new ``onnxruntime.RunOptions``, or ``None`` where nothing is set."""
        entries = {**(extra or {}), **self.config}
        if not entries and not self.only_execute_path_to_fetches:
            return None
        options = onnxruntime().RunOptions()
        options.only_execute_path_to_fetches = self.only_execute_path_to_fetches
        for key, value in entries.items():
            options.add_run_config_entry(key, value)
        return options  # type: ignore[no-any-return]


def read_run_options(options: object | None) -> RunSettings:
    """Reads back what can be read of a caller's run options."""
    if options is None:
        return RunSettings()
    config = {}
    for key in RUN_CONFIG:
        try:
            config[key] = options.get_run_config_entry(key)  # type: ignore[attr-defined]
        except RuntimeError:
            continue
    return RunSettings(bool(options.only_execute_path_to_fetches), config, given=True)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """Where a requested output is wanted.

    Attributes:
        name: Output name.
        given: Element type and exact shape of a buffer that the caller brings; ``None`` where the session
            allocates.
        memory: Where that buffer is, or where the session is to allocate.
    """

    name: str
    given: tuple[str, tuple[int, ...]] | None = None
    memory: Memory = HOST

    def signature(self) -> TensorSignature:
        """Returns its part of the signature."""
        dtype, shape = self.given or ("", None)
        return TensorSignature(self.name, dtype, shape, self.memory.text())


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        feeds: Input name -> array in host memory, or tensor in a device's.
        outputs: Requested outputs.
        bound: Whether it came through an IO binding.
        settings: Run options that matter.
        placed: Input name -> where the caller has it, for inputs of which ``feeds`` holds a host copy.
    """

    feeds: Mapping[str, Tensor]
    outputs: tuple[OutputTarget, ...]
    bound: bool = False
    settings: RunSettings = field(default_factory=RunSettings)
    placed: Mapping[str, Memory] = field(default_factory=dict)

    def signature(self, steering: frozenset[str]) -> CallSignature:
        """Returns the exact signature, with the values of the inputs that steer; copies nothing."""
        return CallSignature(
            tuple(
                tensor_signature(
                    name,
                    self.feeds[name],
                    with_value=name in steering,
                    device=self.memory_of(name).text(),
                )
                for name in sorted(self.feeds)
            ),
            tuple(target.signature() for target in self.outputs),
            "binding" if self.bound else "run",
            self.settings.text(),
        )

    def memory_of(self, name: str) -> Memory:
        """Returns where the caller has an input."""
        tensor = self.feeds[name]
        return tensor.memory if isinstance(tensor, DeviceTensor) else self.placed.get(name, HOST)

    def inputs_on_devices(self) -> dict[str, Memory]:
        """Returns input name -> memory for the inputs that are not in the host's."""
        memories = {name: self.memory_of(name) for name in self.feeds}
        return {name: memory for name, memory in memories.items() if memory != HOST}

    @property
    def lies_on_devices(self) -> bool:
        """Whether every input and every output is in the memory of a device."""
        outputs = all(target.memory != HOST for target in self.outputs)
        return outputs and len(self.inputs_on_devices()) == len(self.feeds)

    def memories(self) -> frozenset[Memory]:
        """Returns every memory that it takes from or wants its outputs in."""
        return frozenset(self.inputs_on_devices().values()) | {target.memory for target in self.outputs}

    def detached(self) -> Request:
        """Returns the same request on copies in host memory, which a trial elsewhere or later may use.

        Each input on a device is read back once; trials place clones where the caller has the original.
        """
        return replace(self, feeds=read_back(self.feeds), placed=self.inputs_on_devices())

    @property
    def size_bytes(self) -> int:
        """Bytes of all inputs."""
        return sum(tensor.nbytes for tensor in self.feeds.values())

    @property
    def output_names(self) -> list[str]:
        """Names of the requested outputs, in order."""
        return [target.name for target in self.outputs]
