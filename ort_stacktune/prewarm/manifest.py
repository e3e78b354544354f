"""Owns the manifest of ``prewarm``: its schema, and what it asks for as frozen values.

Must never open a model or a file that a manifest names, but for traffic that was recorded: what can be judged
from the text alone is judged here, with the line.

The schema, ``?`` for what may be left out::

    version: 1
    budget: 8h                      ? seconds, or a number with s, m or h; none for no limit in all
    policy:                         ? fields of StackPolicy; effort: quick | default | thorough sets several
      effort: thorough
      min_speedup: 1.05
      tolerance: {absolute: 1e-4, relative: 1e-3}
      limits: {create_s: 300, run_s: 60, memory_bytes: 4000000000, output_bytes: 1000000000}
    traffic: [traffic/]             ? recorded traffic: models, signatures and weights
    models:                         ? at least one of models and traffic
      - path: models/det.onnx       relative to the manifest
        providers: [CPUExecutionProvider]      ? the reference's; a mapping gives options: {NAME: {OPTION: VALUE}}
        session_options: {intra_op_num_threads: 2}    ? the reference's
        config: {session.intra_op.allow_spinning: "0"}  ? the reference's
        steering_inputs: [length]   ? as for TunedSession
        reduced_precision: [fp16]   ? as for TunedSession
        candidates:                 ? instead of generated ones; fields of SessionRecipe
          - {name: one thread, session_options: {intra_op_num_threads: 1}}
        budget: 60                  ? for each signature
        signatures:                 at least one
          - dims: {N: 1, W: 320}    ? sizes of named dimensions
            shapes: {x: [1, 3, 48, 320]}    ? whole shapes; [] for a scalar
            fill: {sr: 16000}       ? a number, or zeros, ones, normal, uniform, arange
            inputs: sample.npz      ? arrays by input name, relative to the manifest
            outputs: [y]            ? those wanted; all without it
            weight: 120             ? calls expected, in any unit; 1 without it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ort_stacktune.failures import TuneFailure
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.policy import StackPolicy, TrialLimits
from ort_stacktune.prewarm.reading import Place, read_document
from ort_stacktune.traffic import TrafficEntry
from ort_stacktune.vocabulary import Scope, Timing, Tolerance

_VERSION = 1
_EFFORTS = ("quick", "default", "thorough")

# What the controller or the command line decide, and what a manifest says elsewhere.
_NOT_IN_A_MANIFEST = frozenset({"mode", "search", "search_after_calls", "max_parallel_tunes", "budget_s"})
_POLICY_FIELDS = tuple(
    item.name for item in dataclasses.fields(StackPolicy) if item.name not in _NOT_IN_A_MANIFEST
)
_RECIPE_FIELDS = tuple(item.name for item in dataclasses.fields(SessionRecipe) if item.init)

ProviderChoice = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class SignatureEntry:
    """One signature that is to be decided.

    Attributes:
        dims: Named dimension -> size.
        shapes: Input -> whole shape.
        fills: Input -> content, as text.
        inputs: File of arrays by input name.
        outputs: Outputs wanted; empty for all.
        weight: Calls expected, in any unit that all entries share.
        line: Line of the manifest; 0 for recorded traffic.
        recorded: Recorded traffic that says all of it instead.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fills: Mapping[str, str] = field(default_factory=dict)
    inputs: Path | None = None
    outputs: tuple[str, ...] = ()
    weight: float = 1.0
    line: int = 0
    recorded: TrafficEntry | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model with its reference and its signatures.

    Attributes:
        path: The model's file.
        providers: Execution providers of the reference, with their options.
        session_options: Session options of the reference, by attribute.
        config: Session config entries of the reference.
        steering_inputs: As for :class:`TunedSession`.
        reduced_precision: As for :class:`TunedSession`.
        candidates: Recipes to choose from; ``None`` to generate them.
        budget_s: Seconds for each signature; ``None`` for the policy's.
        signatures: What is to be decided.
        line: Line of the manifest; 0 for recorded traffic.
        scope: Level of the decisions.
    """

    path: Path
    providers: tuple[ProviderChoice, ...]
    session_options: Mapping[str, Any]
    config: Mapping[str, str]
    steering_inputs: tuple[str, ...]
    reduced_precision: tuple[str, ...]
    candidates: tuple[SessionRecipe, ...] | None
    budget_s: float | None
    signatures: tuple[SignatureEntry, ...]
    line: int
    scope: Scope = Scope.GRAPH


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is to be decided, under which policy, in which time.

    Attributes:
        path: Its file.
        models: Models with signatures.
        traffic: Directories or files of recorded traffic.
        policy: The policy; its ``budget_s`` holds for each signature.
        budget_s: Seconds in all; ``None`` for no limit.
    """

    path: Path
    models: tuple[ModelEntry, ...]
    traffic: tuple[Path, ...]
    policy: StackPolicy
    budget_s: float | None


def read_manifest(path: Path) -> Manifest:
    """Reads a manifest and checks all that can be checked without a model.

    Raises:
        TuneFailure: ``INVALID_INPUT`` that names file, line and field, what was wrong and what was expected.
    """
    document = read_document(path)
    fields = document.fields(("version", "budget", "policy", "traffic", "models"), ("version",))
    if fields["version"].plain() != _VERSION:
        raise fields["version"].expected(f"{_VERSION}, the version of the schema")
    if not {"models", "traffic"} & fields.keys():
        raise document.wrong("the document names neither models nor traffic; there is nothing to decide")
    base = path.parent
    return Manifest(
        path,
        tuple(_model(place, base) for place in _items(fields, "models")),
        tuple(base / place.text() for place in _items(fields, "traffic")),
        _policy(fields.get("policy")),
        fields["budget"].seconds() if "budget" in fields else None,
    )


def _items(fields: Mapping[str, Place], name: str) -> list[Place]:
    return fields[name].items() if name in fields else []


def _texts(fields: Mapping[str, Place], name: str) -> tuple[str, ...]:
    return tuple(place.text() for place in _items(fields, name))


def _policy(place: Place | None) -> StackPolicy:
    """Reads the policy; trials have processes of their own unless it says otherwise."""
    if place is None:
        return StackPolicy(isolation="process")
    fields = place.fields(("effort", *_POLICY_FIELDS, "budget"))
    changes: dict[str, Any] = {"isolation": "process"}
    effort = "default"
    for name, value in fields.items():
        if name == "effort":
            effort = value.text()
            if effort not in _EFFORTS:
                raise value.expected(", ".join(_EFFORTS))
        elif name == "budget":
            changes["budget_s"] = value.seconds()
        else:
            changes[name] = _policy_value(name, value)
    make = {"quick": StackPolicy.quick, "thorough": StackPolicy.thorough}.get(effort, StackPolicy)
    policy: StackPolicy = make(**changes)
    try:
        policy.validate()
    except TuneFailure as failure:
        named = next((fields[name] for name in fields if failure.message.startswith(name)), place)
        named.reraise(failure)
    return policy


def _policy_value(name: str, place: Place) -> Any:
    if name == "tolerance":
        return Tolerance(**_numbers(place, Tolerance))
    if name == "limits":
        return TrialLimits(**_numbers(place, TrialLimits))
    if name == "timing":
        try:
            return Timing[place.text().upper()]
        except KeyError:
            raise place.expected(" or ".join(member.name.lower() for member in Timing)) from None
    return place.plain()


def _numbers(place: Place, kind: type[Tolerance] | type[TrialLimits]) -> dict[str, Any]:
    names = [item.name for item in dataclasses.fields(kind)]
    return {name: value.plain() for name, value in place.fields(names).items()}


def _model(place: Place, base: Path) -> ModelEntry:
    fields = place.fields(
        (
            "path",
            "providers",
            "session_options",
            "config",
            "steering_inputs",
            "reduced_precision",
            "candidates",
            "budget",
            "signatures",
        ),
        ("path", "signatures"),
    )
    candidates = tuple(_recipe(item, base) for item in _items(fields, "candidates"))
    names = [recipe.name for recipe in candidates]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise fields["candidates"].wrong(f"has two candidates named {name!r}; names have to be unique")
    return ModelEntry(
        base / fields["path"].text(),
        _providers(fields.get("providers")),
        _plain_values(fields.get("session_options")),
        {name: _as_config(value) for name, value in _plain_values(fields.get("config")).items()},
        _texts(fields, "steering_inputs"),
        _texts(fields, "reduced_precision"),
        candidates if "candidates" in fields else None,
        fields["budget"].seconds() if "budget" in fields else None,
        tuple(_signature(item, base) for item in fields["signatures"].items()),
        place.line,
    )


def _providers(place: Place | None) -> tuple[ProviderChoice, ...]:
    if place is None:
        return (("CPUExecutionProvider", {}),)
    chosen: list[ProviderChoice] = []
    for item in place.items():
        if item.is_mapping:
            chosen += [(name, _config_values(options)) for name, options in item.entries().items()]
        else:
            chosen.append((item.text(), {}))
    return tuple(chosen)


def _config_values(place: Place) -> dict[str, str]:
    return {name: _as_config(value) for name, value in _plain_values(place).items()}


def _plain_values(place: Place | None) -> dict[str, Any]:
    return {} if place is None else {name: value.plain() for name, value in place.entries().items()}


def _as_config(value: Any) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def _recipe(place: Place, base: Path) -> SessionRecipe:
    fields = place.fields(_RECIPE_FIELDS, ("name",))
    given: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "providers":
            given[name] = list(_providers(value))
        elif name == "shapes":
            given[name] = {key: _shape(shape) for key, shape in value.entries().items()}
        elif name == "model":
            given[name] = str(base / value.text())
        elif name == "custom_op_libraries":
            given[name] = [str(base / item.text()) for item in value.items()]
        elif name == "ep_libraries":
            given[name] = {key: str(base / path.text()) for key, path in value.entries().items()}
        elif name in ("config", "run_config"):
            given[name] = _config_values(value)
        elif name == "session_options":
            given[name] = _plain_values(value)
        else:
            given[name] = value.plain()
    try:
        return SessionRecipe(**given)
    except TuneFailure as failure:
        place.reraise(failure)


def _shape(place: Place) -> tuple[int, ...]:
    return tuple(item.whole(0) for item in place.items()) if not place.is_empty_list else ()


def _signature(place: Place, base: Path) -> SignatureEntry:
    fields = place.fields(("dims", "shapes", "fill", "inputs", "outputs", "weight"))
    return SignatureEntry(
        {name: value.whole(1) for name, value in _entries(fields, "dims").items()},
        {name: _shape(value) for name, value in _entries(fields, "shapes").items()},
        {name: _fill(value) for name, value in _entries(fields, "fill").items()},
        base / fields["inputs"].text() if "inputs" in fields else None,
        _texts(fields, "outputs"),
        fields["weight"].positive() if "weight" in fields else 1.0,
        place.line,
    )


def _entries(fields: Mapping[str, Place], name: str) -> dict[str, Place]:
    return fields[name].entries() if name in fields else {}


def _fill(place: Place) -> str:
    value = place.plain()
    return str(value).lower() if isinstance(value, bool) else str(value)


def entries_of_traffic(traffic: Iterable[TrafficEntry]) -> tuple[ModelEntry, ...]:
    """Returns recorded traffic as entries; calls that can't be tuned, or whose model came as bytes, are left out."""
    models: dict[str, ModelEntry] = {}
    for entry in traffic:
        use = entry.use
        if entry.refused or not entry.workload or not use.model:
            continue
        model = models.get(use.text()) or ModelEntry(
            Path(use.path),
            use.providers,
            use.session_options,
            use.config,
            (),
            (),
            None,
            None,
            (),
            0,
            use.scope,
        )
        signature = SignatureEntry(weight=entry.weight, recorded=entry)
        models[use.text()] = replace(model, signatures=(*model.signatures, signature))
    return tuple(models.values())
