from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tuning import floats

from ort_stacktune.ort.request import OutputTarget, Request, RunSettings
from ort_stacktune.signature import describe_workload, feeds_of_other_shapes, further_draws

X = floats(2, 3)


def text(
    feeds: dict[str, Any],
    outputs: tuple[OutputTarget, ...] = (OutputTarget("y"),),
    steering: frozenset[str] = frozenset(),
    **keywords: Any,
) -> str:
    return Request(feeds, outputs, **keywords).signature(steering).text()


def test_requests_that_differ_in_anything_that_shapes_the_work_have_different_texts() -> None:
    given = OutputTarget("y", ("f4", (2, 3)))
    texts = [
        text({"x": X}),
        text({"z": X}),
        text({"x": X, "z": X}),
        text({"x": X.astype(np.float64)}),
        text({"x": X.astype(np.float16)}),
        text({"x": X.astype(">f4")}),
        text({"x": X.astype(np.int32)}),
        text({"x": X.astype(np.uint32)}),
        text({"x": X > 0}),
        text({"x": X.T}),
        text({"x": X[None]}),
        text({"x": X.ravel()}),
        text({"x": X[:1]}),
        text({"x": X[:0]}),
        text({"x": X[0, 0]}),
        text({}),
        text({"x": X}, (OutputTarget("z"),)),
        text({"x": X}, (OutputTarget("y"), OutputTarget("z"))),
        text({"x": X}, (OutputTarget("z"), OutputTarget("y"))),
        text({"x": X}, bound=True),
        text({"x": X}, (given,), bound=True),
        text({"x": X}, (OutputTarget("y", ("f2", (2, 3))),), bound=True),
        text({"x": X}, (OutputTarget("y", ("f4", (3, 2))),), bound=True),
        text({"x": X}, settings=RunSettings(only_execute_path_to_fetches=True)),
        text({"x": X}, settings=RunSettings(config={"gpu_graph_id": "1"})),
        text({"x": X}, settings=RunSettings(config={"gpu_graph_id": "2"})),
    ]
    assert len(set(texts)) == len(texts)


def test_the_order_of_the_feed_its_memory_order_and_its_values_mean_nothing() -> None:
    z = floats(4)
    assert text({"x": X, "z": z}) == text({"z": z, "x": X})
    assert text({"x": X}) == text({"x": np.asfortranarray(X)}) == text({"x": X * 2})
    assert text({"x": X}) == text({"x": X}, settings=RunSettings(given=True))


def test_equal_dtypes_of_other_numbers_are_one() -> None:
    kinds = [np.dtype(c) for c in "lq" if np.dtype(c).itemsize == 8]
    assert len({text({"x": np.zeros(2, kind)}) for kind in kinds}) == 1


@pytest.mark.parametrize(
    "values",
    [
        [np.array(16000), np.array(8000)],
        [np.array([True, False]), np.array([False, True])],
        [np.array([1, 23]), np.array([12, 3])],
        [np.array(0.1, np.float32), np.nextafter(np.float32(0.1), np.float32(1))],
        [np.arange(64), np.arange(64)[::-1]],
        [np.arange(64).reshape(8, 8), np.arange(64).reshape(8, 8).T],
    ],
    ids=["scalar", "truth", "digits", "float", "long", "long in another order"],
)
def test_values_that_steer_are_told_apart_exactly(values: list[Any]) -> None:
    steering = frozenset({"n"})
    texts = {text({"x": X, "n": np.asarray(value)}, steering=steering) for value in values}
    assert len(texts) == len(values)
    again = {text({"x": X, "n": np.array(value)}, steering=steering) for value in values}
    assert again == texts


def test_a_signature_is_described_in_words_a_person_reads() -> None:
    feeds = {"x": X, "sr": np.array(16000)}
    described = describe_workload(text(feeds, steering=frozenset({"sr"})))
    assert described == "sr i8[scalar]=16000, x f4[2x3] -> y"
    bound = describe_workload(text({"x": X}, (OutputTarget("y", ("f4", (2, 3))),), bound=True))
    assert bound == "x f4[2x3] -> y f4[2x3] via binding"


@pytest.mark.parametrize("other", ["", "anything", "3:abc,", "1:a,1:b,1:c,1:d,", "9:abc,", "ä→"])
def test_a_workload_text_of_another_make_is_shown_as_it_is(other: str) -> None:
    assert describe_workload(other) == other


FEEDS: dict[str, Any] = {
    "x": floats(3, 4),
    "half": floats(3, 4).astype(np.float16),
    "ids": np.array([[5, 2], [9, 2]]),
    "mask": np.ones((3, 4), bool),
    "zeros": np.zeros((2, 2), np.float32),
    "scalar": np.array(1.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "n": np.array([7]),
}


def test_further_inputs_have_the_same_signature_and_can_be_drawn_again() -> None:
    draws = further_draws(FEEDS, ["n"])
    assert len(draws) >= 2
    for draw, again in zip(draws, further_draws(FEEDS, ["n"]), strict=True):
        assert text(draw, steering=frozenset({"n"})) == text(FEEDS, steering=frozenset({"n"}))
        for name, array in draw.items():
            np.testing.assert_array_equal(array, again[name])
            assert not np.may_share_memory(array, FEEDS[name])


def test_further_integers_stay_among_the_live_ones_and_floats_go_beyond_them() -> None:
    draws = further_draws(FEEDS, [])
    for draw in draws:
        np.testing.assert_array_equal(np.sort(draw["ids"], None), np.sort(FEEDS["ids"], None))
    assert max(np.abs(draw["x"]).max() for draw in draws) > 2 * np.abs(FEEDS["x"]).max()


@pytest.mark.parametrize("name", ["zeros", "mask", "scalar"])
def test_an_input_of_one_value_throughout_is_drawn_afresh(name: str) -> None:
    assert any(not np.array_equal(draw[name], FEEDS[name]) for draw in further_draws(FEEDS, []))


def test_values_that_are_not_finite_do_not_stop_a_draw() -> None:
    odd = {"x": np.array([np.nan, np.inf, 1.0], np.float32), "all": np.full(3, np.nan, np.float32)}
    for draw in further_draws(odd, []):
        assert draw["x"].dtype == np.float32
        assert draw["all"].shape == (3,)


def test_other_shapes_double_one_open_dimension_wherever_its_name_occurs() -> None:
    feeds = {"x": floats(2, 3), "state": floats(5, 2), "n": np.array([1])}
    dims = {"x": ("N", "T"), "state": (5, "N"), "n": (1,)}
    others = list(feeds_of_other_shapes(feeds, dims))
    assert [{k: v.shape for k, v in other.items()} for other in others] == [
        {"x": (2, 6), "state": (5, 2), "n": (1,)},
        {"x": (4, 3), "state": (5, 4), "n": (1,)},
    ]


def test_there_is_no_other_shape_where_every_dimension_is_given() -> None:
    assert not list(feeds_of_other_shapes({"x": X}, {"x": (2, 3)}))
    assert not list(feeds_of_other_shapes({"x": X}, {"x": (None, 3)}))
    assert not list(feeds_of_other_shapes({"x": X[:0]}, {"x": ("N", 3)}))


def test_a_mask_of_ones_gets_zeros_only_where_no_integer_is_divided() -> None:
    mask = {"mask": np.ones((4, 16), np.int64)}
    assert all((draw["mask"] == 1).all() for draw in further_draws(mask, []))
    for draw in further_draws(mask, [], zeros_are_safe=True):
        assert set(np.unique(draw["mask"])) == {0, 1}
        assert draw["mask"].dtype == np.int64
