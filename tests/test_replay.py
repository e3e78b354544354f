"""What the way back from a signature relies on: the same request again, or a clear sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning import floats

from ort_stacktune.failures import TuneFailure
from ort_stacktune.identity import fields
from ort_stacktune.ort.graph import InputFact
from ort_stacktune.ort.request import OutputTarget, Request, RunSettings
from ort_stacktune.replay import feeds_for, request_for
from ort_stacktune.signature import (
    CallSignature,
    TensorSignature,
    array_of_value,
    parse_workload,
    tensor_signature,
)

X = InputFact("x", "tensor(float)", ("N", 3))
IDS = InputFact("ids", "tensor(int64)", ("N",))
MODE = InputFact("mode", "tensor(bool)", ())

names = st.text(min_size=1, max_size=8)
tensors = st.builds(
    TensorSignature,
    names,
    st.sampled_from(["f4", "i8", "b1", ""]),
    st.one_of(st.none(), st.lists(st.integers(0, 4096), max_size=4).map(tuple)),
    st.sampled_from(["cpu", "cuda:0"]),
    st.sampled_from(["", "1 2", "True"]),
)


@given(
    st.builds(
        CallSignature,
        st.lists(tensors, max_size=3).map(tuple),
        st.lists(tensors, max_size=3).map(tuple),
        st.sampled_from(["run", "binding"]),
        st.lists(names, max_size=2).map(tuple),
    )
)
def test_every_signature_can_be_read_back_from_its_text(signature: CallSignature) -> None:
    assert parse_workload(signature.text()) == signature


@pytest.mark.parametrize(
    "text", ["", "words", fields(("run",)), fields(("run", "x", "y", "")), fields(("run", "", "", "")) + " "]
)
def test_text_that_is_no_signature_is_refused(text: str) -> None:
    with pytest.raises(TuneFailure, match="no exact signature of a request"):
        parse_workload(text)


@pytest.mark.parametrize(
    "array",
    [
        np.array(7),
        np.array([1, -1, 640], np.int32),
        np.array([[True, False]]),
        np.array([0.1, -2.5e-7], np.float32),
        np.array([2**63 + 1], np.uint64),
    ],
)
def test_values_that_steer_are_read_back_exactly(array: np.ndarray) -> None:
    tensor = tensor_signature("x", array, with_value=True)
    found = array_of_value(tensor)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


def test_values_kept_as_a_digest_can_not_be_read_back() -> None:
    tensor = tensor_signature("x", np.arange(99), with_value=True)
    with pytest.raises(TuneFailure, match="the values of input 'x' can't be read back"):
        array_of_value(tensor)


def signature_of(feeds: dict[str, np.ndarray], steering: tuple[str, ...] = ()) -> CallSignature:
    return Request(feeds, (OutputTarget("y"),)).signature(frozenset(steering))


def test_feeds_are_made_of_the_exact_shapes_and_the_steering_values() -> None:
    live = {"x": floats(4, 3), "mode": np.array(True)}
    signature = signature_of(live, ("mode",))
    feeds = feeds_for(signature, [X, IDS, MODE])
    assert request_for(signature, feeds).signature(frozenset(("mode",))) == signature
    assert feeds["mode"]
    assert feeds["x"].std() > 0.1


def test_a_zero_size_input_needs_nothing_said() -> None:
    feeds = feeds_for(signature_of({"x": floats(0, 3)}), [X])
    assert (feeds["x"].shape, feeds["x"].dtype) == ((0, 3), np.float32)


def test_integers_are_asked_for_and_a_sample_of_the_signature_answers() -> None:
    live = {"x": floats(2, 3), "ids": np.array([5, 9])}
    signature = signature_of(live)
    with pytest.raises(TuneFailure, match="input 'ids' takes int64 values, which can't be guessed"):
        feeds_for(signature, [X, IDS])
    other = {"x": floats(3, 3), "ids": np.array([1, 2, 3])}
    found = feeds_for(signature, [X, IDS], samples=[other, {"x": floats(2, 3)}, live])
    np.testing.assert_array_equal(found["ids"], live["ids"])
    filled = feeds_for(signature, [X, IDS], fills={"ids": "4", "another model's": "1"})
    np.testing.assert_array_equal(filled["ids"], [4, 4])


def test_a_sample_with_another_steering_value_is_not_taken() -> None:
    signature = signature_of({"mode": np.array(True)}, ("mode",))
    assert feeds_for(signature, [MODE], samples=[{"mode": np.array(False)}])["mode"]


def test_a_signature_of_another_model_is_refused() -> None:
    with pytest.raises(TuneFailure, match="the model has no input 'z'"):
        feeds_for(signature_of({"z": floats(1)}), [X])
    with pytest.raises(TuneFailure, match="f8 for input 'x' is not what the model takes"):
        feeds_for(signature_of({"x": np.ones((2, 3))}), [X])
    with pytest.raises(TuneFailure, match="contradicts"):
        feeds_for(signature_of({"x": floats(2, 4)}), [X])


def test_bound_outputs_run_options_and_places_come_back() -> None:
    request = Request(
        {"x": floats(2, 3)},
        (OutputTarget("y", ("f4", (2, 3))), OutputTarget("z")),
        bound=True,
        settings=RunSettings(True, {"memory.enable_memory_arena_shrinkage": "cpu:0"}, given=True),
    )
    signature = request.signature(frozenset())
    assert request_for(signature, request.feeds).signature(frozenset()) == signature
    on_gpu = replace(signature, inputs=(replace(signature.inputs[0], device="cuda:1"),))
    assert request_for(on_gpu, request.feeds).signature(frozenset()) == on_gpu
    with pytest.raises(TuneFailure, match="is no memory that is known"):
        request_for(
            replace(signature, inputs=(replace(signature.inputs[0], device="cuda:x"),)), request.feeds
        )
