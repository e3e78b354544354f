"""Owns the making of sessions from recipes.

A session that quietly runs elsewhere than asked must never leave this module; what shows where it runs is in
:mod:`ort_stacktune.ort.placement`.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.captured import CapturedSession, captures
from ort_stacktune.ort.ep_caches import EpCache, EpCaches
from ort_stacktune.ort.faults import failure_of
from ort_stacktune.ort.faults import in_short as in_short
from ort_stacktune.ort.graph import frozen_dims, with_fixed_shapes
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.model import ModelSource, external_locations
from ort_stacktune.ort.options import ENUMS
from ort_stacktune.ort.placement import Placement, placement, refuse_absent, refuse_other_use
from ort_stacktune.ort.plugins import add_providers, register
from ort_stacktune.ort.pool import SessionPool
from ort_stacktune.ort.provider_options import config_of
from ort_stacktune.ort.provider_table import CPU as CPU
from ort_stacktune.ort.recipes import SessionRecipe, variant

FATAL_ONLY = 4

_NO_FALLBACK = "session.disable_cpu_ep_fallback"


@dataclass(frozen=True, slots=True)
class MadeSession:
    """A session and where its nodes went.

    Attributes:
        session: The ``onnxruntime.InferenceSession``, or what stands for one or several of them.
        nodes: Execution provider -> number of nodes it runs; empty where this ORT doesn't tell.
        files: Where its providers keep files of theirs, if anywhere.
    """

    session: Any
    nodes: Mapping[str, int]
    files: EpCache | None = None


def make_session(
    recipe: SessionRecipe,
    model: ModelSource,
    reference: SessionRecipe,
    *,
    trial: bool,
    check_placement: bool = True,
    caches: EpCaches | None = None,
) -> MadeSession:
    """Makes a session and checks that it runs where its recipe says.

    Args:
        recipe: What to make.
        model: The reference's model, for a recipe without one of its own.
        reference: The reference's recipe, for a recipe without providers of its own.
        trial: Whether it is made to be measured: its idle threads then stop spinning at the end of each
            run, since they would disturb the other side of the pair, and it logs nothing.
        check_placement: False for the reference alone: wherever it runs is right by definition, and its
            library may have failed to load on the user's own terms.
        caches: Where providers may keep files; ``None`` for nowhere.

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
    register(recipe.ep_libraries)
    files = _files(recipe, source, caches, trial) if check_placement else None
    sessions = [_made(recipe, source, trial, files) for _ in range(recipe.instances)]
    nodes = placement(sessions[0])
    if check_placement:
        refuse_absent(recipe, sessions[0].get_providers())
        nodes = nodes or _full_use(recipe, source)
        refuse_other_use(recipe, nodes)
        if captures(recipe.provider_list):
            # Not around the reference: what it captures is its user's to refill.
            sessions = [CapturedSession(session, recipe, nodes) for session in sessions]
    if not trial:
        # It stays, so what only its making needed should not: several times the model with some versions.
        give_back_memory()
    counts = {provider: operators.total() for provider, operators in nodes.items()}
    return MadeSession(sessions[0] if len(sessions) == 1 else SessionPool(sessions), counts, files)


def _files(
    recipe: SessionRecipe, source: ModelSource, caches: EpCaches | None, trial: bool
) -> EpCache | None:
    if caches is None:
        return None
    return (caches.for_trial if trial else caches.published)(recipe, source.digest())


def _full_use(recipe: SessionRecipe, source: ModelSource) -> Placement:
    """Shows by a session that may use one provider only that it runs every node; empty where it is the CPU.

    Some builds record nothing for a provider that took the whole graph.

    Raises:
        TuneFailure: ``REJECTED`` where there can be no such session.
    """
    first = (*recipe.provider_list, (CPU, {}))[0]
    if first[0] == CPU:
        return {}
    alone = variant(recipe, recipe.name, providers=[first], config={_NO_FALLBACK: "1"})
    try:
        _made(alone, source, trial=True)
    except TuneFailure as failure:
        raise TuneFailure(
            FailureKind.REJECTED,
            f"this ONNX Runtime does not tell which nodes {first[0]} runs, and it can't run all of them:"
            f" {failure.message}",
        ) from failure
    facts = source.graph()
    return {first[0]: Counter(facts.op_types if facts else {"node": 1})}


def _made(recipe: SessionRecipe, source: ModelSource, trial: bool, files: EpCache | None = None) -> Any:
    providers = (recipe.provider_list if files is None else files.providers) or ((CPU, {}),)
    try:
        options = session_options(recipe, trial)
        model = _fix_shapes(recipe, source, options)
        return onnxruntime().InferenceSession(
            model,
            options,
            providers=add_providers(options, providers),
            enable_fallback=0,
        )
    except TuneFailure:
        raise
    except Exception as error:
        raise failure_of(error, "its session could not be made: ") from error


def session_options(recipe: SessionRecipe, trial: bool) -> Any:
    """Returns new ``onnxruntime.SessionOptions`` as a recipe says, its shapes left out, and its providers.

    Options of providers that read them from config entries are in.

    Args:
        recipe: What to make.
        trial: As for :func:`make_session`.
    """
    ort = onnxruntime()
    options = ort.SessionOptions()
    for name, value in recipe.session_options.items():
        setattr(options, name, getattr(getattr(ort, ENUMS[name]), value) if name in ENUMS else value)
    config = {**recipe.config, **config_of(recipe.provider_list)}
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
