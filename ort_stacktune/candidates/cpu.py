"""Owns the candidates that change session options only: threads, spinning, optimisation, order, shapes.

They keep the reference's providers; each changes one thing, or two that are known to belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ort_stacktune.ort.recipes import SessionRecipe, variant

_SPINNING = "session.intra_op.allow_spinning"


def pools(reference: SessionRecipe, cores: int, callers: int) -> Iterator[SessionRecipe]:
    """Yields candidates with a session for each caller.

    Args:
        reference: The reference's recipe.
        cores: Cores this process may use.
        callers: Callers at one time; nothing is yielded for one.
    """
    if callers < 2:
        return
    for threads in dict.fromkeys((max(1, cores // callers), 1)):
        yield variant(
            reference,
            f"{callers}-sessions+threads-{threads}",
            instances=callers,
            session_options={"intra_op_num_threads": threads},
        )


def proposals(
    reference: SessionRecipe, shapes: Mapping[str, tuple[int, ...]], dynamic: bool, cores: int
) -> Iterator[SessionRecipe]:
    """Yields session-option candidates, the most promising first.

    Args:
        reference: The reference's recipe.
        shapes: Exact shape of every fed input.
        dynamic: Whether the model leaves any of them open.
        cores: Cores this process may use. ONNX Runtime's own default ignores affinity and quota.
    """
    one_thread = {"intra_op_num_threads": 1}
    if dynamic:
        yield variant(reference, "fixed-shapes", shapes=shapes)
    yield variant(reference, "threads-1", session_options=one_thread)
    if dynamic:
        yield variant(reference, "fixed-shapes+threads-1", shapes=shapes, session_options=one_thread)
    if cores > 1:
        yield variant(reference, f"threads-{cores}", session_options={"intra_op_num_threads": cores})
        yield variant(reference, "no-spinning", config={_SPINNING: "0"})
    if cores > 3:
        half = cores // 2
        yield variant(reference, f"threads-{half}", session_options={"intra_op_num_threads": half})
    yield variant(
        reference, "level-extended", session_options={"graph_optimization_level": "ORT_ENABLE_EXTENDED"}
    )
    yield variant(reference, "level-basic", session_options={"graph_optimization_level": "ORT_ENABLE_BASIC"})
    if cores > 1:
        yield variant(reference, "small-blocks", config={"session.dynamic_block_base": "4"})
        yield variant(
            reference,
            "parallel-branches",
            session_options={"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": 2},
        )
