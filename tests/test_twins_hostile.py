"""Holds the hostile models to their docstrings, in ONNX Runtime and, where it can, ONNX's own evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

import graphs

X = np.array([[1, -2, 3, -4], [-5, 6, -7, 8], [0, 0.5, -0.5, 2]], np.float32)
KEEP = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
BUILDERS = {
    "distinct": {"x": np.float32([2, 1, 2, 3])},
    "expanded": {"x": np.array(3, np.float32), "shape": np.array([2, 5])},
    "growing_state": {"x": np.ones((1, 8), np.float32), "past": np.eye(3, 8, dtype=np.float32)},
    "masked_softmax": {"x": X, "keep": KEEP},
    "naive_softmax": {"x": X},
    "one_name_two_sizes": {"a": X, "b": X[:1]},
    "outer_sum": {"x": np.float32([1, 2, 3])},
    "shape_branch": {"x": X},
    "until_small": {"x": X},
    "unused_input": {"x": X, "spare": np.arange(3)},
}
RANDOM = {"free_noise": {"x": X}, "hidden_noise": {"x": X, "mode": np.array(1)}}


def run(model: onnx.ModelProto, **feeds: object) -> list:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("name", [*BUILDERS, *RANDOM])
def test_every_hostile_model_is_valid_and_loads_in_the_oldest_supported_runtime(name: str) -> None:
    model = getattr(graphs, name)()
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version <= 10
    assert all(opset.version <= 21 for opset in model.opset_import)
    assert len(run(model, **(BUILDERS | RANDOM)[name])) == len(model.graph.output)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_reference_evaluator_gives_the_same(name: str) -> None:
    model, feeds = getattr(graphs, name)(), BUILDERS[name]
    with np.errstate(all="ignore"):
        theirs = ReferenceEvaluator(model).run(None, feeds)
    for mine, other in zip(run(model, **feeds), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_free_noise_is_no_constant() -> None:
    session = ort.InferenceSession(
        graphs.free_noise().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    first, second = (session.run(None, {"x": X})[0] - X for _ in range(2))
    assert not np.array_equal(first, second)
    np.testing.assert_allclose(first, np.tile(first[:1], (3, 1)), atol=1e-5)
    assert first.min() > -1e-5
    assert first.max() < 1 + 1e-5


def test_hidden_noise_shows_in_one_branch_alone() -> None:
    model = graphs.hidden_noise()
    np.testing.assert_array_equal(run(model, x=X, mode=np.array(0))[0], X)
    assert not np.array_equal(run(model, x=X, mode=np.array(1))[0], X)


def test_shape_branch_follows_the_number_of_rows() -> None:
    for rows, expected in ((0, X[:0]), (1, -X[:1]), (3, 2 * X)):
        np.testing.assert_array_equal(run(graphs.shape_branch(), x=X[:rows])[0], expected)


@pytest.mark.parametrize(("most", "turns"), [(0.5, 0), (1, 0), (1.5, 1), (1000, 10), (np.inf, 64)])
def test_until_small_takes_as_long_as_the_data_ask_for(most: float, turns: int) -> None:
    x = np.full((2, 4), most, np.float32)
    y, done = run(graphs.until_small(), x=x)
    assert (done.shape, int(done)) == ((), turns)
    np.testing.assert_allclose(y, x / 2.0**turns)


def test_distinct_lists_values_and_how_often_they_occur() -> None:
    values, counts = run(graphs.distinct(), x=np.float32([2, 1, 2, 3, 2]))
    np.testing.assert_array_equal(values, [1, 2, 3])
    np.testing.assert_array_equal(counts, [1, 3, 1])


def test_growing_state_attends_to_all_rows_so_far() -> None:
    model = graphs.growing_state()
    rows = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    present = rows[:0]
    for step in range(5):
        y, present = run(model, x=rows[step : step + 1], past=present)
        np.testing.assert_array_equal(present, rows[: step + 1])
        power = np.exp(rows[step] @ present.T)
        np.testing.assert_allclose(y[0], power @ present / power.sum(), rtol=1e-4, atol=1e-5)


def test_a_value_asks_expanded_for_more_memory_than_there_is_and_gets_an_error() -> None:
    model = graphs.expanded()
    np.testing.assert_array_equal(
        run(model, x=np.array(3, np.float32), shape=np.array([2, 5]))[0], np.full((2, 5), 3)
    )
    with pytest.raises(Exception, match=r"(?i)alloc|memory"):
        run(model, x=np.array(3, np.float32), shape=np.array([2**23, 2**23]))


def test_outer_sum_is_small_at_both_ends() -> None:
    x = np.linspace(-1, 2, 300, dtype=np.float32)
    np.testing.assert_allclose(run(graphs.outer_sum(), x=x)[0], x * x.sum(), rtol=1e-4, atol=1e-3)


def test_naive_softmax_is_right_for_small_values_and_nan_for_large_ones() -> None:
    power = np.exp(X)
    np.testing.assert_allclose(
        run(graphs.naive_softmax(), x=X)[0], power / power.sum(1, keepdims=True), rtol=1e-5, atol=1e-7
    )
    assert np.isnan(run(graphs.naive_softmax(), x=X * 100)[0]).any(1).all()


def test_masked_softmax_is_nan_where_nothing_is_kept() -> None:
    (y,) = run(graphs.masked_softmax(), x=X, keep=KEEP)
    np.testing.assert_array_equal(np.isnan(y), [[False] * 4, [True] * 4, [False] * 4])
    assert y[0, 1] == 0


def test_an_unused_input_is_still_asked_for() -> None:
    np.testing.assert_array_equal(run(graphs.unused_input(), x=X, spare=np.arange(3))[0], 2 * X)
    with pytest.raises(ValueError, match="spare"):
        run(graphs.unused_input(), x=X)


def test_one_name_may_stand_for_several_sizes() -> None:
    np.testing.assert_array_equal(
        run(graphs.one_name_two_sizes(), a=X, b=X[:1])[0], np.concatenate([X, X[:1]])
    )
