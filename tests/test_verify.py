from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.verify import compare
from ort_stacktune.vocabulary import Tolerance, Validation

ORT = onnxruntime()
EXACT = Tolerance(0.0, 0.0)

real_arrays = st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)
complex_arrays = hnp.arrays(np.complex64, hnp.array_shapes(max_side=4))
exact_arrays = st.one_of(
    hnp.arrays(np.int64, hnp.array_shapes(max_side=4)),
    hnp.arrays(np.uint8, hnp.array_shapes(max_side=4)),
    hnp.arrays(np.bool_, hnp.array_shapes(max_side=4)),
    hnp.arrays(object, hnp.array_shapes(max_side=3), elements=st.text(max_size=3)),
)


def verdict(reference: Any, candidate: Any, tolerance: Tolerance | None = None) -> Validation:
    """Compares one output named y."""
    return compare([reference], [candidate], ["y"], tolerance or Tolerance())


def rejection(reference: Any, candidate: Any, tolerance: Tolerance | None = None) -> str:
    """Returns the sentence one output named y was rejected with."""
    with pytest.raises(TuneFailure) as caught:
        verdict(reference, candidate, tolerance)
    assert caught.value.kind is FailureKind.REJECTED
    assert caught.value.message.startswith("output 'y'")
    return caught.value.message


def strings(*texts: object) -> Any:
    return np.array(texts, object)


@settings(deadline=None)
@given(st.one_of(real_arrays, complex_arrays, exact_arrays))
def test_an_output_agrees_with_itself_at_tolerance_zero(values: Any) -> None:
    judgeable = values.dtype.kind not in "fc" or values.size == 0 or np.isfinite(values).any()
    expected = Validation.PASSED if judgeable else Validation.UNSUPPORTED
    assert verdict(values, values.copy(), EXACT) is expected


@settings(deadline=None)
@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=6), elements=st.floats(-100, 100, width=32)),
    st.data(),
)
def test_one_element_beyond_the_tolerance_is_always_found(values: Any, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, values.size - 1))
    sign = data.draw(st.sampled_from([-1.0, 1.0]))
    changed = values.astype(np.float64)
    changed.flat[place] += sign * 1.01 * (1e-2 + 1e-3 * abs(changed.flat[place]))
    message = rejection(values, changed.astype(np.float32), Tolerance(1e-2, 1e-3))
    assert f"1 of {values.size} elements differ" in message


@settings(deadline=None)
@given(real_arrays.filter(lambda values: np.isfinite(values).any()), st.data())
def test_one_number_that_turns_nan_or_infinite_is_always_found(values: Any, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(np.flatnonzero(np.isfinite(values.reshape(-1))).tolist()))
    changed = values.copy()
    changed.flat[place] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    for one, other in ((values, changed), (changed, values)):
        assert "NaN or infinity" in rejection(one, other, Tolerance(1e9, 1e9))


@settings(deadline=None)
@given(hnp.arrays(np.int64, hnp.array_shapes(max_side=4)), st.data())
def test_one_integer_off_is_always_found(values: Any, data: st.DataObject) -> None:
    changed = values.copy()
    place = data.draw(st.integers(0, values.size - 1))
    changed.flat[place] = data.draw(
        st.integers(-(2**63), 2**63 - 1).filter(lambda n: n != values.flat[place])
    )
    apart = abs(int(changed.flat[place]) - int(values.flat[place]))
    assert f"1 of {values.size} elements differ by up to {apart}," in rejection(values, changed)


def test_the_sentence_says_how_many_how_far_and_what_was_allowed() -> None:
    reference = np.zeros(4096, np.float32)
    candidate = reference.copy()
    candidate[:12] = np.linspace(0.001, 0.031, 12)
    assert rejection(reference, candidate) == (
        "output 'y': 12 of 4096 elements differ by up to 3.1e-02 (allowed 1.0e-04 + 1.0e-03 x |reference|)"
    )


def test_the_allowance_grows_with_the_reference_and_not_with_the_candidate() -> None:
    tolerance = Tolerance(0.0, 0.5)
    assert verdict(np.float32([2.0]), np.float32([1.0]), tolerance) is Validation.PASSED
    assert "1 of 1" in rejection(np.float32([1.0]), np.float32([2.0]), tolerance)


def test_minus_zero_equals_zero() -> None:
    assert verdict(np.float32([0.0]), np.float32([-0.0]), EXACT) is Validation.PASSED


def test_complex_numbers_are_compared_by_their_distance() -> None:
    assert verdict(np.complex64([3 + 4j]), np.complex64([3.3 + 4.4j]), Tolerance(0.51, 0.0))
    assert "5.0e-01" in rejection(np.complex64([3 + 4j]), np.complex64([3.3 + 4.4j]), Tolerance(0.49, 0.0))
    swapped = np.complex64([complex(np.inf, np.nan), 0])
    assert "NaN or infinity" in rejection(np.complex64([complex(np.nan, np.inf), 0]), swapped)


def test_numbers_too_far_apart_to_subtract_are_rejected_without_a_warning() -> None:
    largest = np.finfo(np.float64).max
    assert "by up to inf" in rejection(np.array([largest]), np.array([-largest]), Tolerance(0.0, 10.0))
    assert verdict(np.array([largest]), np.array([largest]), Tolerance(0.0, 10.0)) is Validation.PASSED


def test_half_precision_that_overflows_is_rejected() -> None:
    assert "1 of 2" in rejection(np.float16([65504, 1]), np.float16([np.inf, 1]), Tolerance(1e6, 1e6))


@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        (np.zeros(3, np.float32), np.zeros(3, np.float64), ["dtype float64", "float32"]),
        (np.zeros(3, np.int32), np.zeros(3, np.int64), ["dtype int64", "int32"]),
        (np.zeros((20, 1, 8210)), np.zeros((1, 164200)), ["(1, 164200)", "(20, 1, 8210)"]),
        (np.zeros(1), np.zeros(()), ["shape ()", "(1,)"]),
        (np.zeros((0, 3)), np.zeros((0, 4)), ["(0, 4)", "(0, 3)"]),
        (np.zeros(1), [np.zeros(1)], ["type list", "ndarray"]),
        (None, np.zeros(1), ["type ndarray", "NoneType"]),
        (np.zeros(1), None, ["type NoneType", "ndarray"]),
        ([np.zeros(1)], [], ["0 entries", "1"]),
        ([np.zeros(1)], [np.zeros(2)], ["'y'[0] has shape (2,)"]),
        ({1: 0.5}, {"1": 0.5}, ["2 keys", "'1', 1"]),
        ({1: 0.5}, {True: 0.5}, ["2 keys", "1, True"]),
        ({"a": 0.5}, {"a": 1}, ["'y'['a'] is of type int", "float"]),
        ([{"a": 0.5, "b": 0.5}], [{"a": 0.5, "b": 0.75}], ["'y'[0]: 1 of 2 elements", "2.5e-01"]),
        ({"a": 1}, {"a": 2}, ["'y'['a']", "2 instead of 1"]),
        (np.uint64([0, 5]), np.uint64([2**64 - 1, 5]), ["1 of 2", f"by up to {2**64 - 1}"]),
        (np.int8([-128]), np.int8([127]), ["by up to 255", "127 instead of -128"]),
        (np.array([True, False]), np.array([True, True]), ["1 of 2", "True instead of False"]),
        (strings("a", "b"), strings("a", "c"), ["1 of 2", "'c' instead of 'b'"]),
        (strings("a"), strings(b"a"), ["b'a' instead of 'a'"]),
        (strings("x" * 500), strings("y" * 500), ["yyy... instead of 'xxx"]),
        (np.array(["a", "bb"]), np.array(["a", "bbb"]), ["'bbb' instead of 'bb'"]),
        (strings("a"), np.array(["a"]), ["dtype <U1", "object"]),
    ],
)
def test_what_differs_is_said(reference: Any, candidate: Any, words: list[str]) -> None:
    message = rejection(reference, candidate)
    for word in words:
        assert word in message


def test_another_number_of_outputs_is_rejected() -> None:
    with pytest.raises(TuneFailure, match="there are 1 outputs; the reference gives 2") as caught:
        compare([None, None], [None], ["a", "b"], EXACT)
    assert caught.value.kind is FailureKind.REJECTED


def test_names_that_do_not_match_the_outputs_are_bad_input() -> None:
    with pytest.raises(TuneFailure, match="1 output names for 2 outputs") as caught:
        compare([None, None], [None, None], ["a"], EXACT)
    assert caught.value.kind is FailureKind.INVALID_INPUT


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        np.zeros((0, 3), np.float32),
        np.float32(1.5),
        np.array("text"),
        np.array(["a", "bcd"]),
        strings(),
        strings("a", None, b"c"),
        [np.ones(2, np.float32), np.ones((), np.int64)],
        [{"a": 0.25, "b": float("nan")}, {"a": 0.5, "b": 0.5}],
        {3: "text", 4: [np.ones(1)]},
        np.arange(24, dtype=np.float32).reshape(2, 3, 4).T[::2, ::-1],
    ],
    ids=repr,
)
def test_every_kind_of_value_that_onnx_runtime_gives_agrees_with_itself(value: Any) -> None:
    assert verdict(value, value, EXACT) is Validation.PASSED


def test_the_order_of_a_maps_keys_does_not_matter() -> None:
    assert verdict({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}, EXACT) is Validation.PASSED


def test_layout_in_memory_does_not_matter() -> None:
    values = np.arange(100_000, dtype=np.float32).reshape(10, 100, 100)
    assert verdict(values, np.asfortranarray(values), EXACT) is Validation.PASSED
    wide = np.zeros((10, 100, 200), np.float32)
    wide[:, :, ::2] = values
    assert verdict(values, wide[:, :, ::2], EXACT) is Validation.PASSED
    changed = np.asfortranarray(values.copy())
    changed[3, 17, 99] += 1
    assert "1 of 100000" in rejection(values, changed, EXACT)


@pytest.mark.parametrize(
    "value", [(1, 2), object(), {1, 2}, np.zeros(1, "V4"), np.zeros(1, "M8[s]")], ids=str
)
def test_what_has_no_rule_is_unsupported(value: Any) -> None:
    assert verdict(value, value) is Validation.UNSUPPORTED


def test_an_output_without_a_finite_number_proves_nothing() -> None:
    nothing = np.array([np.nan, np.inf])
    assert verdict(nothing, nothing) is Validation.UNSUPPORTED
    assert compare([nothing, np.ones(1)], [nothing, np.ones(1)], ["a", "b"], EXACT) is Validation.UNSUPPORTED
    assert "2 of 2" in rejection(nothing, nothing[::-1])
    assert verdict([np.ones(1), nothing], [np.ones(1), nothing]) is Validation.UNSUPPORTED


@pytest.mark.parametrize("without_rule", [(1, 2), np.full(3, np.nan)], ids=["tuple", "NaN"])
@pytest.mark.parametrize("change", [lambda y: y + 1, lambda y: y[:1], lambda y: y.astype(np.float64)])
def test_a_wrong_output_beside_one_without_a_rule_is_rejected(
    without_rule: Any, change: Callable[[Any], Any]
) -> None:
    good = np.ones(2, np.float32)
    with pytest.raises(TuneFailure, match="output 'y'"):
        compare([without_rule, good], [without_rule, change(good)], ["x", "y"], Tolerance())


def test_outputs_that_exceed_the_limit_are_not_read() -> None:
    reference, candidate = np.zeros(128, np.float32), np.ones(128, np.float32)
    assert verdict(reference, candidate, Tolerance(max_bytes=1023)) is Validation.UNSUPPORTED
    assert "128 of 128" in rejection(reference, candidate, Tolerance(max_bytes=1024))
    nested = ([{"a": reference}], [{"a": candidate}])
    assert verdict(*nested, Tolerance(max_bytes=1023)) is Validation.UNSUPPORTED


def test_texts_count_with_their_length() -> None:
    long, other = strings("x" * 1000), strings("y" * 1000)
    assert verdict(long, other, Tolerance(max_bytes=1500)) is Validation.UNSUPPORTED
    assert "1 of 1" in rejection(long, other, Tolerance(max_bytes=3000))


def test_a_difference_in_structure_is_found_beyond_the_limit_too() -> None:
    assert "shape" in rejection(np.zeros(1000), np.zeros((1000, 1)), Tolerance(max_bytes=1))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.complex64, "<U4"])
def test_memory_does_not_grow_with_the_outputs(dtype: Any) -> None:
    reference = np.ones(4_000_000, dtype)
    candidate = reference.copy()
    tracemalloc.start()
    try:
        assert verdict(reference, candidate, Tolerance(max_bytes=2**30)) is Validation.PASSED
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_short_floats_are_compared_as_floats(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    reference = np.array([1.0, 2.0, 0.0], np.float32).astype(dtype)
    candidate = np.array([1.25, 2.0, -0.0], np.float32).astype(dtype)
    assert verdict(reference, candidate, Tolerance(0.25, 0.0)) is Validation.PASSED
    assert "1 of 3 elements differ by up to 2.5e-01" in rejection(reference, candidate)
    candidate[0] = np.nan
    assert "NaN or infinity" in rejection(reference, candidate)


def test_the_short_integers_are_compared_exactly() -> None:
    reference, candidate = np.array([-8, 7], ml_dtypes.int4), np.array([7, 7], ml_dtypes.int4)
    assert verdict(reference, reference) is Validation.PASSED
    assert "1 of 2 elements differ by up to 15" in rejection(reference, candidate)


def sparse_output(values: list[float], places: list[int], shape: tuple[int, int]) -> Any:
    """Returns what a session gives for a sparse output."""
    constant = helper.make_sparse_tensor(
        helper.make_tensor("s", TensorProto.FLOAT, [len(values)], values),
        helper.make_tensor("places", TensorProto.INT64, [len(places)], places),
        shape,
    )
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["s"], sparse_value=constant)],
        "sparse",
        [],
        [helper.make_sparse_tensor_value_info("s", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    session = ORT.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {})[0]


def test_sparse_outputs_are_compared_by_shape_indices_and_values() -> None:
    reference = sparse_output([1.0, 2.0], [0, 7], (3, 3))
    assert verdict(reference, sparse_output([1.0, 2.0], [0, 7], (3, 3)), EXACT) is Validation.PASSED
    assert "(values): 1 of 2" in rejection(reference, sparse_output([1.0, 2.5], [0, 7], (3, 3)))
    assert "(indices)" in rejection(reference, sparse_output([1.0, 2.0], [0, 8], (3, 3)))
    assert "(indices) has shape" in rejection(reference, sparse_output([1.0], [0], (3, 3)))
    assert "dense shape (3, 4)" in rejection(reference, sparse_output([1.0, 2.0], [0, 7], (3, 4)))
    assert verdict(reference, reference, Tolerance(max_bytes=8)) is Validation.UNSUPPORTED


def test_sparse_outputs_in_compressed_rows_are_compared_and_formats_never_mixed() -> None:
    cpu = ORT.OrtDevice.make("cpu", 0)
    shape = np.array([2, 2], np.int64)

    def compressed(column: int) -> Any:
        return ORT.SparseTensor.sparse_csr_from_numpy(
            shape, np.float32([1.0]), np.array([column], np.int64), np.array([0, 1, 1], np.int64), cpu
        )

    listed = ORT.SparseTensor.sparse_coo_from_numpy(shape, np.float32([1.0]), np.array([0], np.int64), cpu)
    assert verdict(compressed(0), compressed(0), EXACT) is Validation.PASSED
    assert "(inner): 1 of 1" in rejection(compressed(0), compressed(1))
    assert "sparse format ORT_SPARSE_COO" in rejection(compressed(0), listed)


def test_outputs_of_a_real_classifier_map_are_compared() -> None:
    graph = helper.make_graph(
        [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"])],
        "map",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
        [onnx.ValueInfoProto(name="y")],
    )
    kind = graph.output[0].type.sequence_type.elem_type.map_type
    kind.key_type = TensorProto.STRING
    kind.value_type.tensor_type.elem_type = TensorProto.FLOAT
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = ORT.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = np.float32([[0.25, 0.75], [0.5, 0.5]])
    (reference,) = session.run(None, {"x": values})
    assert verdict(reference, session.run(None, {"x": values})[0], EXACT) is Validation.PASSED
    values[1, 0] = 0.625
    assert "'y'[1]: 1 of 2 elements differ by up to 1.2e-01" in rejection(
        reference, session.run(None, {"x": values})[0]
    )
