"""What users rely on when inputs are made up for their model."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.feeds import FeedRequest, make_feeds, read_npz, shape_text
from ort_stacktune.ort.graph import Dims, InputFact

IMAGE = InputFact("x", "tensor(float)", ("batch", 3, None, "width"))
RATE = InputFact("sr", "tensor(int64)", ())


def fact(name: str, kind: str = "float", dims: Dims | None = (2,)) -> InputFact:
    return InputFact(name, f"tensor({kind})", dims)


def refused(inputs: list[InputFact], overridable: tuple[InputFact, ...] = (), **request: Any) -> str:
    with pytest.raises(TuneFailure) as caught:
        make_feeds(inputs, FeedRequest(**request), overridable)
    assert caught.value.kind is FailureKind.INVALID_INPUT
    return caught.value.message


def test_all_that_is_missing_is_asked_for_at_once_and_by_name() -> None:
    assert refused([IMAGE, RATE]) == (
        "input 'x' has the free dimensions 'batch', 'width' and an unnamed one at axis 2;"
        " input 'sr' takes int64 values, which can't be guessed:"
        " pass --fill sr=VALUE --shape x=?x3x?x? (a size for each ?), or --inputs FILE.npz"
    )


def test_what_is_missing_in_a_manifest_is_asked_for_as_manifests_say_it() -> None:
    assert refused([IMAGE, RATE], written="manifest").endswith(
        ": add fill: {sr: VALUE} shapes: {x: [?, 3, ?, ?]} (a size for each ?), or inputs: FILE.npz"
    )
    inputs = [fact("a", dims=("n", 4))]
    assert "add dims: {n: SIZE}, or inputs: FILE.npz" in refused(inputs, written="manifest")


def test_named_dimensions_are_asked_for_once_however_many_inputs_have_them() -> None:
    inputs = [fact("a", dims=("n", 4)), fact("b", "int32", ("n", "k"))]
    assert refused(inputs) == (
        "input 'a' has the free dimension 'n'; input 'b' has the free dimensions 'n' and 'k' and takes int32"
        " values, which can't be guessed: pass --dim n=SIZE --dim k=SIZE --fill b=VALUE, or --inputs FILE.npz"
    )


def test_what_is_known_already_is_filled_in_where_the_rest_is_asked_for() -> None:
    assert "--shape x=8x3x?x?" in refused([IMAGE], dims={"batch": 8})


def test_a_question_mark_names_no_dimension() -> None:
    inputs = [fact("x", dims=(None, 3, "?", "?"))]
    assert "has unnamed free dimensions at axes 0, 2 and 3" in refused(inputs)
    assert refused(inputs, dims={"?": 4}) == "the model has no named dimension '?'; it has none"


def test_an_input_of_unknown_rank_is_asked_for() -> None:
    assert "input 'x' is of undeclared rank: pass --shape x=?x?..." in refused([fact("x", dims=None)])
    assert make_feeds([fact("x", dims=None)], FeedRequest(shapes={"x": (2, 5)}))["x"].shape == (2, 5)


def test_floats_are_standard_normal_and_the_same_in_every_process() -> None:
    x = make_feeds([fact("x", dims=(100, 100))], FeedRequest())["x"]
    assert x.dtype == np.float32
    assert abs(float(x.mean())) < 0.05
    assert abs(float(x.std()) - 1) < 0.05
    assert x[0, 0] == np.random.default_rng((0, 0)).standard_normal(1, np.float32)[0]


def test_another_seed_gives_other_values() -> None:
    one, two = (make_feeds([fact("x")], FeedRequest(seed=seed))["x"] for seed in (1, 2))
    assert not np.array_equal(one, two)


def test_the_values_of_an_input_do_not_depend_on_what_is_said_of_another() -> None:
    inputs = [fact("a"), fact("b")]
    plain = make_feeds(inputs, FeedRequest())
    filled = make_feeds(inputs, FeedRequest(fills={"a": "zeros"}))
    assert np.array_equal(plain["b"], filled["b"])
    assert not np.array_equal(plain["a"], plain["b"])


@pytest.mark.parametrize(
    ("kind", "fill", "expected"),
    [
        ("float", "zeros", [0, 0, 0]),
        ("int64", "ones", [1, 1, 1]),
        ("int64", "16000", [16000] * 3),
        ("int8", "-128", [-128] * 3),
        ("float16", "0.5", [0.5] * 3),
        ("double", "-1e300", [-1e300] * 3),
        ("uint8", "arange", [0, 1, 2]),
        ("float", "arange", [0, 1, 2]),
        ("bool", "true", [True] * 3),
        ("bool", "zeros", [False] * 3),
    ],
)
def test_an_input_is_filled_with_what_the_user_says(kind: str, fill: str, expected: list[Any]) -> None:
    x = make_feeds([fact("x", kind, (3,))], FeedRequest(fills={"x": fill}))["x"]
    assert x.tolist() == expected
    assert np.issubdtype(x.dtype, np.floating) == (kind in ("float", "float16", "double"))


def test_uniform_values_lie_between_zero_and_one() -> None:
    x = make_feeds([fact("x", "float16", (1000,))], FeedRequest(fills={"x": "uniform"}))["x"]
    assert x.dtype == np.float16
    assert 0 <= x.min() < 0.1
    assert 0.9 < x.max() <= 1


@pytest.mark.parametrize(
    ("kind", "fill", "sentence"),
    [
        ("int64", "normal", "fill 'normal' is for floating inputs and input 'x' takes int64"),
        ("int64", "1.5", "expected a number of type int64 or one of zeros, ones, normal, uniform, arange"),
        ("uint8", "256", "expected a number from 0 to 255"),
        ("uint8", "-1", "expected a number from 0 to 255"),
        ("float16", "1e6", "expected a number from -65504.0 to 65504.0"),
        ("float", "nan", "expected a number from -3.4"),
        ("float", "inf", "expected a number from -3.4"),
        ("float", "lots", "expected a number of type float32 or one of"),
        ("bool", "2", "expected true, false, zeros or ones"),
    ],
)
def test_a_fill_that_does_not_suit_the_input_is_refused(kind: str, fill: str, sentence: str) -> None:
    assert sentence in refused([fact("x", kind)], fills={"x": fill})


def test_counting_beyond_the_type_is_refused() -> None:
    message = refused([fact("x", "uint8", (300,))], fills={"x": "arange"})
    assert message == "fill 'arange' for input 'x' counts to 299, which uint8 can't hold"


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"dims": {"foo": 1}}, "the model has no named dimension 'foo'; it has 'batch', 'width'"),
        ({"shapes": {"foo": (1,)}}, "the model has no input 'foo'; it has 'x', 'sr'"),
        ({"fills": {"foo": "ones"}}, "the model has no input 'foo'; it has 'x', 'sr'"),
        ({"arrays": {"foo": np.zeros(1)}}, "the model has no input 'foo'; it has 'x', 'sr'"),
        ({"dims": {"batch": 0}}, "size 0 for 'batch' is not usable; expected a whole number of 1 or more"),
        ({"shapes": {"x": (1, 3, -2, 4)}}, "size -2 for 'x' is not usable"),
        ({"shapes": {"x": (1, 4, 2, 2)}}, "shape 1x4x2x2 for input 'x' contradicts the ?x3x?x?"),
        ({"shapes": {"x": (1, 3)}}, "shape 1x3 for input 'x' contradicts the ?x3x?x?"),
        ({"shapes": {"sr": (1,)}}, "shape 1 for input 'sr' contradicts the scalar"),
    ],
)
def test_a_wrong_name_or_size_is_refused_with_what_the_model_has(
    request_: dict[str, Any], sentence: str
) -> None:
    assert sentence in refused([IMAGE, RATE], **request_)


def test_given_arrays_come_before_everything_else() -> None:
    given = np.full((2, 3, 4, 5), 7, np.float32)
    request = FeedRequest(
        dims={"batch": 9}, shapes={"x": (1, 3, 1, 1)}, fills={"x": "ones", "sr": "8000"}, arrays={"x": given}
    )
    feeds = make_feeds([IMAGE, RATE], request)
    assert feeds["x"] is given
    assert list(feeds) == ["x", "sr"]
    assert feeds["sr"].shape == ()
    assert feeds["sr"] == 8000


def test_a_size_that_one_input_shows_holds_for_the_others() -> None:
    inputs = [fact("x", dims=("n", 3)), fact("y", dims=("n", 2)), fact("z", dims=("k",))]
    by_array = FeedRequest(dims={"k": 1}, arrays={"x": np.zeros((5, 3), np.float32)})
    assert make_feeds(inputs, by_array)["y"].shape == (5, 2)
    assert make_feeds(inputs, FeedRequest(dims={"k": 1}, shapes={"x": (4, 3)}))["y"].shape == (4, 2)


def test_two_sizes_for_one_name_decide_nothing() -> None:
    inputs = [fact("x", dims=("n",)), fact("y", dims=("n",)), fact("z", dims=("n",))]
    assert "input 'z' has the free dimension 'n'" in refused(inputs, shapes={"x": (1,), "y": (2,)})


def test_a_given_array_of_another_type_or_shape_is_refused_with_the_remedy() -> None:
    assert refused([RATE], arrays={"sr": np.array(1.0)}) == (
        "the array for input 'sr' is float64; the model takes int64: convert it with .astype('int64')"
    )
    assert "float32 in foreign byte order" in refused([fact("x")], arrays={"x": np.zeros(2, ">f4")})
    assert refused([IMAGE], arrays={"x": np.zeros((1, 4, 2, 2), np.float32)}) == (
        "the array for input 'x' has shape 1x4x2x2; the model takes ?x3x?x?"
    )


def test_optional_inputs_are_left_out_unless_given() -> None:
    optional = InputFact("bias", "optional(tensor(float))", None)
    assert list(make_feeds([fact("x"), optional], FeedRequest())) == ["x"]
    bias = np.zeros(4, np.float32)
    assert make_feeds([fact("x"), optional], FeedRequest(arrays={"bias": bias}))["bias"] is bias
    assert "takes float32" in refused([optional], arrays={"bias": np.zeros(4)})


@pytest.mark.parametrize("kind", ["tensor(string)", "seq(tensor(float))", "tensor(bfloat16)", ""])
def test_an_input_that_can_not_be_tuned_is_refused_whatever_is_said_of_it(kind: str) -> None:
    inputs = [InputFact("s", kind, (2,))]
    assert "only tensors of numbers can be tuned" in refused(inputs)
    assert "only tensors of numbers can be tuned" in refused(inputs, fills={"s": "ones"})
    assert "only tensors of numbers can be tuned" in refused(inputs, arrays={"s": np.zeros(2)})


def test_only_given_arrays_reach_initializers() -> None:
    scale = fact("scale", dims=(1,))
    given = np.ones(1, np.float32)
    assert list(make_feeds([fact("x")], FeedRequest(), (scale,))) == ["x"]
    assert make_feeds([fact("x")], FeedRequest(arrays={"scale": given}), (scale,))["scale"] is given
    assert "the model has no input 'scale'" in refused([fact("x")], (scale,), fills={"scale": "ones"})


def test_sizes_beyond_memory_are_a_clear_failure() -> None:
    message = refused([fact("x", dims=("n", "n"))], dims={"n": 10**12})
    assert "does not fit into memory; use smaller sizes" in message


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", **{"x:0": np.ones((2, 3), np.float32), "n": np.array(5)})
    arrays = read_npz(str(tmp_path / "in.npz"))
    assert arrays["x:0"].shape == (2, 3)
    assert arrays["n"] == 5


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a file of inputs was executed",))


def test_nothing_in_a_file_of_inputs_is_executed(tmp_path: Path) -> None:
    (tmp_path / "bomb.npz").write_bytes(pickle.dumps(_Bomb()))
    np.savez(tmp_path / "objects.npz", allow_pickle=True, x=np.array([{}], object))
    for name in ("bomb.npz", "objects.npz"):
        with pytest.raises(TuneFailure, match="is no file of plain arrays of numbers"):
            read_npz(str(tmp_path / name))


def test_a_file_that_holds_no_named_arrays_is_a_clear_failure(tmp_path: Path) -> None:
    np.save(tmp_path / "single.npy", np.zeros(3))
    np.savez(tmp_path / "whole.npz", x=np.arange(1000))
    (tmp_path / "empty.npz").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "texts.npz", "w") as archive:
        archive.writestr("x", "no array")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:500])
    with pytest.raises(TuneFailure, match="holds a single array; save inputs by name"):
        read_npz(str(tmp_path / "single.npy"))
    for name in ("empty.npz", "cut.npz", "texts.npz"):
        with pytest.raises(TuneFailure, match="is no file of plain arrays of numbers"):
            read_npz(str(tmp_path / name))
    with pytest.raises(TuneFailure, match=r"can't be read: No such file"):
        read_npz(str(tmp_path / "missing.npz"))


def test_shapes_read_as_people_write_them() -> None:
    assert shape_text((1, 3, None, "width")) == "1x3x?x?"
    assert shape_text(()) == "scalar"
