"""Holds every pair to its word: valid, right by ONNX's own evaluator, and one function in ONNX Runtime.

The evaluator knows no operators of ONNX Runtime's own; what it gives for the unfused model is the truth for both.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from graphs import twins

SIZE = st.integers(1, 9)
FEW = st.integers(1, 3)
HEAD = st.sampled_from([4, 8, 16])
ACTIVATION = st.sampled_from(["Relu", "Tanh", "Sigmoid"])
ATTENTION = {"batch": FEW, "length": SIZE, "heads": FEW, "size": HEAD}
RECURRENCE = {"batch": FEW, "length": st.integers(1, 5), "features": SIZE, "hidden": SIZE}
NORM = {"batch": FEW, "length": SIZE, "width": st.sampled_from([8, 24, 64]), "skip": st.booleans()}

# What a builder takes besides dtype, opset and seed, and the operators that make its fused model one.
PAIRS: dict[str, tuple[dict, set[str]]] = {
    "causal_attention": (ATTENTION, {"Attention"}),
    "conv_block": (
        {
            "batch": FEW,
            "channels": SIZE,
            "filters": SIZE,
            "side": st.integers(3, 9),
            "kernel": st.sampled_from([1, 3]),
            "activation": ACTIVATION,
        },
        {"FusedConv"},
    ),
    "cross_attention": (ATTENTION | {"other_length": SIZE}, {"MultiHeadAttention"}),
    "embedding": (
        {"batch": FEW, "length": SIZE, "width": st.sampled_from([8, 24, 64]), "words": st.integers(1, 50)},
        {"EmbedLayerNormalization"},
    ),
    "encoder_block": (
        ATTENTION | {"inner": st.integers(8, 40)},
        {"Attention", "SkipLayerNormalization", "BiasGelu"},
    ),
    "gelu": (
        {"rows": SIZE, "width": st.integers(1, 40), "tanh": st.booleans(), "bias": st.booleans()},
        {"Gelu", "BiasGelu", "FastGelu"},
    ),
    "grouped_query_attention": (
        ATTENTION
        | {
            "size": st.sampled_from([8, 16]),
            "heads": st.sampled_from([2, 4, 6]),
            "groups": st.sampled_from([1, 2]),
        },
        {"GroupQueryAttention"},
    ),
    "gru": (RECURRENCE, {"GRU"}),
    "head_by_head": (ATTENTION, {"MultiHeadAttention"}),
    "layer_norm": (NORM, {"LayerNormalization", "SkipLayerNormalization"}),
    "lstm": (RECURRENCE, {"LSTM"}),
    "matmul_activation": (
        {"rows": SIZE, "inner": SIZE, "columns": SIZE, "activation": ACTIVATION},
        {"FusedGemm"},
    ),
    "matmul_nbits": (
        {
            "rows": FEW,
            "inner": st.sampled_from([32, 64, 96]),
            "columns": st.integers(1, 40),
            "bits": st.sampled_from([4, 8]),
            "block": st.sampled_from([16, 32]),
            "accuracy_level": st.sampled_from([0, 1, 4]),
            "stored": st.booleans(),
        },
        {"MatMulNBits"},
    ),
    "qdq_matmul": ({"rows": SIZE, "inner": st.integers(1, 40), "columns": SIZE}, {"QLinearMatMul"}),
    "rms_norm": (NORM, {"SkipSimplifiedLayerNormalization"}),
    "rotary_embedding": (
        {"batch": FEW, "length": SIZE, "heads": FEW, "size": HEAD, "positions": st.integers(9, 20)},
        {"RotaryEmbedding"},
    ),
    "self_attention": (ATTENTION, {"Attention"}),
}
OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
ALL = ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def run(model: onnx.ModelProto, feeds: dict, level: ort.GraphOptimizationLevel = ALL) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def evaluated(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    return ReferenceEvaluator(model).run(None, feeds)


def has_own_operators(model: onnx.ModelProto) -> bool:
    return any(node.domain for node in model.graph.node)


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], pair: twins.Twin) -> None:
    assert len(ours) == len(theirs) == len(pair.unfused.graph.output)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        assert np.isfinite(other).all()
        np.testing.assert_allclose(
            mine.astype(np.float64), other.astype(np.float64), rtol=pair.rtol, atol=pair.atol
        )


def assert_one_function(pair: twins.Twin, seed: int = 0, judged_by: onnx.ModelProto | None = None) -> None:
    feeds = pair.feeds(seed)
    truth = evaluated(judged_by or pair.unfused, feeds)
    fused = run(pair.fused, feeds)
    assert_close(run(pair.unfused, feeds, OFF), truth, pair)
    assert_close(fused, truth, pair)
    assert_close(fused, run(pair.unfused, feeds), pair)
    if judged_by is None and not has_own_operators(pair.fused):
        assert_close(evaluated(pair.fused, feeds), truth, pair)


def small(name: str, **given: object) -> twins.Twin:
    sizes = {
        "batch": 2,
        "length": 4,
        "heads": 2,
        "size": 8,
        "width": 16,
        "features": 5,
        "hidden": 6,
        "rows": 3,
        "inner": 32,
        "columns": 12,
        "channels": 3,
        "filters": 4,
        "side": 6,
        "words": 20,
        "positions": 12,
    }
    takes = PAIRS[name][0]
    return twins.BUILDERS[name](**{key: sizes[key] for key in sizes if key in takes}, **given)


def test_every_builder_is_held_to_its_word_here() -> None:
    assert set(PAIRS) == set(twins.BUILDERS) == set(twins.__all__) - {"BUILDERS", "Twin"}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", PAIRS)
def test_both_of_a_pair_give_what_the_reference_evaluator_gives_at_any_size(name: str, dtype: type) -> None:
    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.fixed_dictionaries(PAIRS[name][0]), st.integers(0, 2**16))
    def check(sizes: dict, seed: int) -> None:
        drawn = {} if name == "rotary_embedding" else {"seed": seed}
        assert_one_function(twins.BUILDERS[name](**sizes, **drawn, dtype=dtype), seed)

    check()


@pytest.mark.parametrize("opset", [17, 18, 19, 20, 21])
@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_valid_and_one_function_in_every_opset_that_is_offered(name: str, opset: int) -> None:
    pair = small(name, opset=opset)
    for model in (pair.unfused, pair.fused):
        onnx.checker.check_model(model, full_check=True)
        assert model.ir_version <= 10
        assert {entry.domain: entry.version for entry in model.opset_import}[""] == opset
    # The evaluator has QuantizeLinear from 19 on, where it does the same in float32.
    evaluator_lacks = name == "qdq_matmul" and opset < 19
    assert_one_function(pair, judged_by=small(name).unfused if evaluator_lacks else None)


@pytest.mark.parametrize("name", PAIRS)
def test_one_is_written_in_single_operators_and_the_other_in_fused_ones(name: str) -> None:
    pair = small(name)
    fused = {node.op_type for node in pair.fused.graph.node}
    unfused = {node.op_type for node in pair.unfused.graph.node}
    assert fused & PAIRS[name][1]
    assert not unfused & PAIRS[name][1]
    assert not has_own_operators(pair.unfused)
    assert len(pair.unfused.graph.node) > len(pair.fused.graph.node) or name in ("matmul_nbits", "qdq_matmul")


@pytest.mark.parametrize("name", PAIRS)
def test_both_of_a_pair_have_the_same_inputs_and_outputs(name: str) -> None:
    pair = small(name)
    assert list(pair.unfused.graph.input) == list(pair.fused.graph.input)
    assert list(pair.unfused.graph.output) == list(pair.fused.graph.output)


@pytest.mark.parametrize("name", [name for name in PAIRS if name != "rotary_embedding"])
def test_a_pair_is_the_same_for_the_same_seed_and_its_tolerance_tells_other_weights_apart(name: str) -> None:
    pair, again, other = small(name), small(name), small(name, seed=1)
    assert pair.unfused == again.unfused
    assert pair.fused == again.fused
    feeds = pair.feeds()
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_close(run(other.fused, feeds), run(pair.unfused, feeds), pair)


def test_feeds_are_the_same_for_a_seed_grow_with_the_amplitude_and_hold_legal_numbers() -> None:
    pair = twins.embedding(batch=3, length=50, width=8, words=5)
    ids = pair.feeds(3)
    assert set(ids) == {"input_ids", "segment_ids"}
    assert (ids["input_ids"].min(), ids["input_ids"].max(), ids["segment_ids"].max()) == (0, 4, 1)
    pair = twins.layer_norm(length=4, width=8, dtype=np.float16)
    assert pair.feeds(1)["x"].dtype == np.float16
    np.testing.assert_array_equal(pair.feeds(1)["x"], pair.feeds(1)["x"])
    np.testing.assert_allclose(pair.feeds(1, 8.0)["x"], pair.feeds(1)["x"] * 8, rtol=1e-2)


def test_no_position_of_causal_and_grouped_attention_sees_a_later_one() -> None:
    for name in ("causal_attention", "grouped_query_attention"):
        pair = small(name)
        feeds = pair.feeds()
        other = {"x": feeds["x"].copy()}
        other["x"][:, -1] += 1
        for model in (pair.unfused, pair.fused):
            before, after = run(model, feeds)[0], run(model, other)[0]
            np.testing.assert_allclose(before[:, :-1], after[:, :-1], rtol=1e-5, atol=1e-6)
            assert not np.allclose(before[:, -1], after[:, -1])


def test_stored_weights_of_few_bits_are_rounded_further_by_the_default_session_alone() -> None:
    """A reference may be the inaccurate one: by default it rounds the input of such a product as well."""
    pair = small("matmul_nbits", bits=4, stored=True)
    feeds = pair.feeds()
    (truth,) = evaluated(pair.unfused, feeds)
    np.testing.assert_allclose(run(pair.unfused, feeds, OFF)[0], truth, rtol=1e-4, atol=1e-5)
    assert np.abs(run(pair.unfused, feeds)[0] - truth).max() > 1e-3


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: twins.layer_norm(dtype=np.float64), "float32 or float16"),
        (lambda: twins.gelu(opset=16), "opset 17 to 21"),
        (lambda: twins.grouped_query_attention(heads=5, groups=2), "multiple of 2"),
        (lambda: twins.grouped_query_attention(size=12), "multiple of 8"),
        (lambda: twins.rotary_embedding(size=7), "even"),
        (lambda: twins.conv_block(kernel=2), "odd"),
        (lambda: twins.qdq_matmul(dtype=np.float16, opset=18), "give 19"),
        (lambda: twins.matmul_nbits(inner=33), "multiple of 32"),
        (lambda: twins.matmul_nbits(stored=True, opset=20), "give 21"),
    ],
)
def test_a_builder_says_what_is_wrong_and_what_to_give(build: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_the_size_that_is_measured_are_one_function(name: str) -> None:
    assert_one_function(twins.BUILDERS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("length", [512, 1024])
def test_the_long_encoder_block_is_one_function(length: int) -> None:
    assert_one_function(twins.encoder_block(length=length))
