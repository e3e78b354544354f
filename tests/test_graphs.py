"""Holds the builders to their docstrings: each model is run with ONNX Runtime and compared with numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphs

X = np.array([[1, -2, 3, -4], [-5, 6, -7, 8], [0, 0.5, -0.5, 2]], np.float32)


def run(model: onnx.ModelProto | str, **feeds: object) -> list:
    source = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


ALL = {
    "argmax": graphs.argmax(),
    "branching": graphs.branching(),
    "counted": graphs.counted(),
    "gather_fails": graphs.gather_fails(),
    "heavy": graphs.heavy(1),
    "int_division": graphs.int_division(),
    "mlp": graphs.mlp(),
    "nan_maker": graphs.nan_maker(),
    "optional_input": graphs.optional_input(),
    "overridable": graphs.overridable(),
    "positive_rows": graphs.positive_rows(),
    "random_op": graphs.random_op(),
    "scalar": graphs.scalar(),
    "sequence_output": graphs.sequence_output(),
    "sliced": graphs.sliced(),
    "slowed": graphs.slowed(graphs.sum_of()),
    "string_identity": graphs.string_identity(),
    "sum_of": graphs.sum_of(3),
    "with_state": graphs.with_state(),
}


@pytest.mark.parametrize("name", ALL)
def test_every_model_is_valid_and_loads_in_the_oldest_supported_runtime(name: str) -> None:
    model = ALL[name]
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version <= 10
    assert all(opset.version <= 21 for opset in model.opset_import)
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", graphs.__all__)
def test_every_builder_says_what_goes_in_and_what_comes_out(name: str) -> None:
    doc = getattr(graphs, name).__doc__
    assert "outputs" in doc.lower()
    assert "Inputs: " in doc or "Args:" in doc


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_sum_of_adds_all_inputs_up(n: int, dtype: type) -> None:
    feeds = {f"x{i}": (X * (i + 1)).astype(dtype) for i in range(n)}
    (y,) = run(graphs.sum_of(n, dtype), **feeds)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, sum(feeds.values()))


def test_sum_of_one_is_relu_and_takes_no_rows_too() -> None:
    np.testing.assert_array_equal(run(graphs.sum_of(), x0=X)[0], np.maximum(X, 0))
    assert run(graphs.sum_of(), x0=X[:0])[0].shape == (0, 4)


def test_mlp_is_the_same_for_the_same_seed_and_follows_its_formula() -> None:
    assert graphs.mlp(3, 8) == graphs.mlp(3, 8)
    assert graphs.mlp(3, 8) != graphs.mlp(3, 8, seed=1)
    model = graphs.mlp(3, 8)
    weights = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    y = x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        y = np.maximum(y @ weight + bias, 0)
    np.testing.assert_allclose(run(model, x=x)[0], y, rtol=1e-5, atol=1e-6)


def test_branching_computes_something_else_in_each_branch() -> None:
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
    model = graphs.branching()
    np.testing.assert_allclose(run(model, x=x, mode=np.array(0))[0], x + 1)
    weight = onnx.numpy_helper.to_array(model.graph.initializer[1])
    y = x
    for _ in range(8):
        y = np.tanh(y @ weight)
    np.testing.assert_allclose(run(model, x=x, mode=np.array(1))[0], y, rtol=1e-4, atol=1e-5)


def test_counted_takes_as_many_turns_as_it_is_told() -> None:
    y = X
    for times in range(4):
        np.testing.assert_allclose(run(graphs.counted(), x=X, times=np.array(times))[0], y)
        y = y / 2 + 1


def test_with_state_returns_the_state_for_the_next_step() -> None:
    y, state = run(graphs.with_state(), x=X, state=X[::-1])
    np.testing.assert_allclose(state, X[::-1] / 2 + X, rtol=1e-6)
    np.testing.assert_allclose(y, np.tanh(state), rtol=1e-5)


def test_random_op_draws_anew_in_every_run_and_a_seed_fixes_the_stream() -> None:
    session = ort.InferenceSession(graphs.random_op().SerializeToString())
    assert not np.array_equal(session.run(None, {"x": X})[0], session.run(None, {"x": X})[0])
    np.testing.assert_array_equal(run(graphs.random_op(7), x=X)[0], run(graphs.random_op(7), x=X)[0])


def test_argmax_names_the_largest_logit() -> None:
    x = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    label, logits = run(graphs.argmax(), x=x)
    assert (label.dtype, label.shape, logits.shape) == (np.int64, (5,), (5, 16))
    np.testing.assert_array_equal(label, logits.argmax(1))


def test_strings_sequences_and_scalars_come_back() -> None:
    words = np.array(["a", "ünïcode", ""], object)
    np.testing.assert_array_equal(run(graphs.string_identity(), x=words)[0], words)
    (rows,) = run(graphs.sequence_output(), x=X)
    np.testing.assert_array_equal(np.stack(rows), X)
    assert run(graphs.scalar(), x=np.array(3, np.float32))[0].shape == ()
    assert run(graphs.scalar(), x=np.array(3, np.float32))[0] == 6


def test_an_optional_input_may_be_there_or_none() -> None:
    bias = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(graphs.optional_input(), x=X, bias=bias)[0], X + bias)
    np.testing.assert_array_equal(run(graphs.optional_input(), x=X, bias=None)[0], X)


def test_an_overridable_initializer_has_a_default() -> None:
    np.testing.assert_array_equal(run(graphs.overridable(), x=X)[0], X * 2)
    np.testing.assert_array_equal(run(graphs.overridable(), x=X, scale=np.float32([3]))[0], X * 3)


def test_values_decide_the_shape_of_sliced_and_positive_rows() -> None:
    np.testing.assert_array_equal(run(graphs.sliced(), x=X, count=np.array([2]))[0], X[:2])
    np.testing.assert_array_equal(run(graphs.positive_rows(), x=X)[0], X[:1])
    assert run(graphs.positive_rows(), x=X[1:])[0].shape == (0, 4)


def test_nan_maker_makes_nan_and_infinity() -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(graphs.nan_maker(), x=X)[0], np.log(X), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_int_division_rounds_towards_zero(dtype: type) -> None:
    a, b = np.array([7, -7, 9], dtype), np.array([2, 2, 3], dtype)
    np.testing.assert_array_equal(run(graphs.int_division(dtype), a=a, b=b)[0], [3, -3, 3])


def test_gather_fails_only_when_it_runs() -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(graphs.gather_fails().SerializeToString(), options)
    np.testing.assert_array_equal(session.run(None, {"x": X, "index": np.array([2, 0])})[0], X[[2, 0]])
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, {"x": X, "index": np.array([99])})


def test_weights_weigh_what_they_should_inside_or_outside_of_the_file(tmp_path: Path) -> None:
    inside = graphs.heavy(3)
    path = tmp_path / "model.onnx"
    outside = graphs.external(path, 3)
    assert inside.ByteSize() == pytest.approx(3 * 2**20, rel=0.01)
    assert outside.ByteSize() < 10_000
    assert path.stat().st_size < 10_000
    assert path.with_name("model.onnx.data").stat().st_size == 3 * 2**20
    x = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(2, 512)
    np.testing.assert_array_equal(run(inside, x=x)[0], run(str(path), x=x)[0])


@pytest.mark.parametrize(
    ("base", "feeds"),
    [
        (graphs.sum_of(2), {"x0": X, "x1": X}),
        (graphs.sum_of(2), {"x0": X[:0], "x1": X[:0]}),
        (graphs.nan_maker(), {"x": X}),
        (graphs.scalar(), {"x": np.array(3, np.float32)}),
        (graphs.argmax(), {"x": np.ones((3, 8), np.float32)}),
    ],
    ids=["numbers", "nothing", "NaN", "scalar", "labels"],
)
def test_slowed_gives_exactly_what_its_base_gives(base: onnx.ModelProto, feeds: dict) -> None:
    before = base.SerializeToString()
    for ours, theirs in zip(run(graphs.slowed(base, 20), **feeds), run(base, **feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert base.SerializeToString() == before


def test_no_link_of_slowed_is_optimised_away(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    slow = graphs.slowed(graphs.sum_of(), 50).SerializeToString()
    ort.InferenceSession(slow, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    assert sum("MatMul" in node.op_type for node in nodes) == 50
    assert sum(node.op_type == "Tanh" for node in nodes) == 50


def test_slowed_says_why_it_can_not_slow_strings() -> None:
    with pytest.raises(ValueError, match="no tensor of numbers"):
        graphs.slowed(graphs.string_identity())
