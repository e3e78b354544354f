"""Owns the making of sessions from recipes, and the proof that a session is what was asked for.

A session that quietly runs elsewhere than asked must never leave this module: one EP measured under the
name of another is a wrong answer to every later question.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.graph import frozen_dims, with_fixed_shapes
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.model import ModelSource, external_locations
from ort_stacktune.ort.options import ENUMS
from ort_stacktune.ort.pool import SessionPool
from ort_stacktune.ort.recipes import Provider, SessionRecipe

CPU = "CPUExecutionProvider"
FATAL_ONLY = 4

_ORT_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_FIRST_CHARACTERS = 120
_LAST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class MadeSession:
    """A session and where its nodes went.

    Attributes:
        session: The ``onnxruntime.InferenceSession``, or a pool of them.
        nodes: Execution provider -> number of nodes it runs; empty where this ORT doesn't tell.
    """

    session: Any
    nodes: Mapping[str, int]


def make_session(
    recipe: SessionRecipe,
    model: ModelSource,
    reference: SessionRecipe,
    *,
    trial: bool,
    check_placement: bool = True,
) -> MadeSession:
    """Makes a session and checks that it runs where its recipe says.

    Args:
        recipe: What to make.
        model: The reference's model, for a recipe without one of its own.
        reference: The reference's recipe, for a recipe without providers of its own.
        trial: Whether it is made to be measured: its idle threads then stop spinning at the end of each
            run, since they would disturb the other side of the pair, and it logs nothing.
        check_placement: False for the reference alone: wherever it runs is right by definition.

    Raises:
        TuneFailure: ``REJECTED`` where it can't be made or runs elsewhere than asked.
    """
    source = model if recipe.model is None else ModelSource.of(recipe.model)
    if recipe.model is not None and source.digest() != recipe.model_digest:
        raise TuneFailure(
            FailureKind.REJECTED,
            "its model's file has changed since the recipe was made; make the recipe anew",
        )
    recipe = recipe.inheriting(reference)
    sessions = [_made(recipe, source, trial) for _ in range(recipe.instances)]
    nodes = node_counts(sessions[0])
    if check_placement:
        _check_placement(recipe, sessions[0], nodes)
    if not trial:
        # It stays, so what only its making needed should not: several times the model with some versions.
        give_back_memory()
    counts = {provider: sum(operators.values()) for provider, operators in nodes.items()}
    return MadeSession(sessions[0] if len(sessions) == 1 else SessionPool(sessions), counts)


def _made(recipe: SessionRecipe, source: ModelSource, trial: bool) -> Any:
    try:
        options = _session_options(recipe, trial)
        return onnxruntime().InferenceSession(
            _fix_shapes(recipe, source, options),
            options,
            providers=[(name, dict(given)) for name, given in recipe.provider_list] or [(CPU, {})],
            enable_fallback=0,
        )
    except TuneFailure:
        raise
    except Exception as error:
        raise TuneFailure(
            FailureKind.REJECTED, f"its session could not be made: {in_short(error)}"
        ) from error


def _session_options(recipe: SessionRecipe, trial: bool) -> Any:
    ort = onnxruntime()
    options = ort.SessionOptions()
    for name, value in recipe.session_options.items():
        setattr(options, name, getattr(getattr(ort, ENUMS[name]), value) if name in ENUMS else value)
    config = dict(recipe.config)
    # A session of ours is only ever served after its placement was checked, so it has to be recorded.
    config["session.record_ep_graph_assignment_info"] = "1"
    if trial:
        config["session.force_spinning_stop"] = "1"
        options.log_severity_level = FATAL_ONLY
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    for library in recipe.custom_op_libraries:
        options.register_custom_ops_library(library)
    return options


def _fix_shapes(recipe: SessionRecipe, source: ModelSource, options: Any) -> str | bytes:
    """Fixes the graph to the recipe's shapes, by name where names suffice, else by editing it."""
    if not recipe.shapes:
        return source.argument()
    facts = source.graph()
    if facts is None:
        raise TuneFailure(FailureKind.REJECTED, "its graph can't be read, so its shapes can't be fixed")
    shapes = {name: tuple(shape) for name, shape in recipe.shapes.items()}
    if unknown := sorted(shapes.keys() - {fact.name for fact in facts.inputs}):
        raise TuneFailure(
            FailureKind.REJECTED, f"it fixes the shape of {unknown[0]!r}, which is no input of the model"
        )
    by_name = frozen_dims(facts, shapes)
    covered = by_name is not None and all(
        isinstance(dim, int) or (dim is not None and dim in by_name)
        for fact in facts.inputs
        if fact.name in shapes
        for dim in fact.dims or ()
    )
    if by_name is not None and covered:
        for dimension, size in by_name.items():
            options.add_free_dimension_override_by_name(dimension, size)
        return source.argument()
    return _edited_bytes(source, shapes)


def _edited_bytes(source: ModelSource, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    model = source.proto()
    if model is None or external_locations(model):
        # From bytes, external data would be looked for in the working directory.
        raise TuneFailure(
            FailureKind.REJECTED,
            "its dimensions have no usable names and its weights are external, so its shapes can't be fixed",
        )
    data: bytes = with_fixed_shapes(model, shapes).SerializeToString()
    return data


def node_counts(session: Any) -> dict[str, Counter[str]]:
    """Returns execution provider -> operator type -> nodes, empty where this ORT doesn't tell."""
    ask = getattr(session, "get_provider_graph_assignment_info", None)
    if ask is None:
        return {}
    counts: dict[str, Counter[str]] = {}
    try:
        assigned = ask()
    except Exception:  # noqa: BLE001 - a build that records nothing says so in its own ways
        return {}
    for subgraph in assigned:
        operators = counts.setdefault(subgraph.ep_name, Counter())
        operators.update(node.op_type for node in subgraph.get_nodes())
    return counts


def _check_placement(recipe: SessionRecipe, session: Any, nodes: Mapping[str, Counter[str]]) -> None:
    asked: tuple[Provider, ...] = recipe.provider_list
    if not asked:
        return
    first = asked[0][0]
    active = session.get_providers()
    if first not in active:
        raise TuneFailure(
            FailureKind.REJECTED,
            f"asked for {first} but the session runs on {', '.join(active)}; a library it needs did not load",
        )
    if not nodes:
        if first != CPU:
            raise TuneFailure(
                FailureKind.REJECTED, f"this ONNX Runtime does not tell whether {first} runs any node"
            )
        return
    if first not in nodes:
        raise TuneFailure(FailureKind.REJECTED, f"{first} is active but runs none of the nodes")
    allowed = {name for name, _ in asked}
    strays = {provider: operators for provider, operators in nodes.items() if provider not in allowed}
    if strays:
        listed = "; ".join(
            f"{provider} runs {', '.join(f'{op} x{n}' for op, n in operators.most_common(5))}"
            for provider, operators in strays.items()
        )
        raise TuneFailure(
            FailureKind.REJECTED,
            f"{first} does not take every node: {listed}; list that provider too to accept partial use",
        )


def in_short(error: BaseException) -> str:
    """Returns an error's class and what it says at its beginning and at its end, for a report.

    Behind ONNX Runtime's own first line, an execution provider puts its reason last.
    """
    lines = [line.strip() for line in _ORT_PREFIX.sub("", str(error)).splitlines() if line.strip()]
    text = "" if not lines else lines[0][:_FIRST_CHARACTERS]
    if len(lines) > 1 or (lines and len(lines[0]) > _FIRST_CHARACTERS):
        text += f" ... {lines[-1][-_LAST_CHARACTERS:]}"
    return f"{type(error).__name__}: {text}".rstrip(": ")


def give_back_memory() -> None:
    """Returns freed memory to the system after sessions were closed.

    glibc keeps what a closed session freed; without the trim, ten losers of a 100 MB model would leave a
    gigabyte behind.
    """
    gc.collect()
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
