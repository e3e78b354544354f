"""Owns what candidates are generated for, and how one is put down before it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ort_stacktune.ort.provider_table import CPU
from ort_stacktune.ort.recipes import Provider, SessionRecipe, variant, with_options

REDUCED_PRECISIONS = ("tf32", "bf16", "fp16", "int8")
"""What a user may allow candidates to compute in."""

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "FusedConv"})


@dataclass(frozen=True, slots=True)
class Situation:
    """What candidates are generated for.

    Attributes:
        reference: The reference's recipe.
        shapes: Exact shape of every fed input of the signature.
        dynamic: Whether the model leaves any of their dimensions open.
        control_flow: Whether the graph branches or loops.
        cores: Cores this process may use, by affinity and quota.
        providers: Execution providers of this build, and of plugins registered in this process.
        callers: Callers at one time that there is memory for a session each.
        op_types: How many nodes of the graph are of each type; "domain:type" outside the standard domain.
        reduced_precision: What candidates may compute in, below the reference's own precision.
        on_device: Whether every input and output of the request lies in the memory of the device that
            computes.
        capturable: Whether buffers of ours may stand between the request's and those of a run that is captured
            and replayed, as they may where it does not come through a binding.
        libraries: Plugin provider -> path of its library, where known; empty text where not.
    """

    reference: SessionRecipe
    shapes: Mapping[str, tuple[int, ...]]
    dynamic: bool
    control_flow: bool
    cores: int
    providers: tuple[str, ...]
    callers: int = 1
    op_types: Mapping[str, int] = field(default_factory=dict)
    reduced_precision: tuple[str, ...] = ()
    on_device: bool = False
    capturable: bool = False
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def main_provider(self) -> str:
        """The provider that the reference asks for."""
        return (*self.reference.provider_list, (CPU, {}))[0][0]

    @property
    def fixable(self) -> bool:
        """Whether there are shapes to fix."""
        return self.dynamic

    @property
    def fixed(self) -> dict[str, Any]:
        """What a recipe needs to have its shapes fixed; empty where there is nothing to fix."""
        return {"shapes": self.shapes} if self.fixable else {}

    @property
    def convolves(self) -> bool:
        """Whether the graph has convolutions."""
        return any(name.rpartition(":")[2] in _CONVOLUTIONS for name in self.op_types)

    @property
    def quantised(self) -> bool:
        """Whether the graph says itself what to compute in integers."""
        return "QuantizeLinear" in self.op_types or "DequantizeLinear" in self.op_types


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate before it is made.

    Attributes:
        name: Its name.
        changes: What it changes of the reference's recipe.
        options: Options to change of the provider that the reference asks for; the others stay.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def made(self, situation: Situation) -> SessionRecipe:
        """Makes it.

        Raises:
            TuneFailure: ``INVALID_INPUT`` where this version of ONNX Runtime does not take its options.
        """
        reference, changes = situation.reference, dict(self.changes)
        if self.options:
            changes["providers"] = with_options(reference, situation.main_provider, self.options)
        return variant(reference, self.name, **changes)


def beside_cpu(situation: Situation, *providers: Provider) -> dict[str, Any]:
    """Returns the changes that put providers before the CPU; it may keep what they leave."""
    names = [name for name, _ in providers]
    # The share of nodes stands in the report.
    return {
        "providers": (*providers, (CPU, {})),
        "allow_partial": True,
        "ep_libraries": {name: path for name, path in situation.libraries.items() if path and name in names},
    }
