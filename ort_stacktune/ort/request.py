"""Owns one request to a session in a form that a trial can repeat: live inputs, wanted outputs, the way in.

Holds the caller's arrays only to read them; whoever runs a trial works on copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.options import RUN_CONFIG
from ort_stacktune.signature import Array, CallSignature, TensorSignature, tensor_signature


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
    """

    name: str
    given: tuple[str, tuple[int, ...]] | None = None

    def signature(self) -> TensorSignature:
        """Returns its part of the signature."""
        if self.given is None:
            return TensorSignature(self.name, "", None)
        return TensorSignature(self.name, self.given[0], self.given[1])


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        feeds: Input name -> array in host memory.
        outputs: Requested outputs.
        bound: Whether it came through an IO binding.
        settings: Run options that matter.
    """

    feeds: Mapping[str, Array]
    outputs: tuple[OutputTarget, ...]
    bound: bool = False
    settings: RunSettings = field(default_factory=RunSettings)

    def signature(self, steering: frozenset[str]) -> CallSignature:
        """Returns the exact signature, with the values of the inputs that steer."""
        return CallSignature(
            tuple(
                tensor_signature(name, self.feeds[name], with_value=name in steering)
                for name in sorted(self.feeds)
            ),
            tuple(target.signature() for target in self.outputs),
            "binding" if self.bound else "run",
            self.settings.text(),
        )

    @property
    def output_names(self) -> list[str]:
        """Names of the requested outputs, in order."""
        return [target.name for target in self.outputs]
