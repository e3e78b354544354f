"""What the two processes of a trial say to each other arrives as it was, and nothing else is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuning import CPU, save

import graphs
from ort_stacktune import FailureKind, Fault, SessionRecipe, Timing, Tolerance, TuneFailure, Validation
from ort_stacktune.failures import NotReproduced, ReferenceFailure
from ort_stacktune.isolation import why_not_elsewhere
from ort_stacktune.isolation.board import Board, Phase
from ort_stacktune.isolation.cargo import Served, TrialSet, pack, unpack
from ort_stacktune.isolation.messages import (
    LENGTH,
    Answer,
    Call,
    Command,
    Value,
    decode_answer,
    decode_command,
    encode_answer,
    encode_command,
)
from ort_stacktune.ort.devices import Memory
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.provider_options import AcceptedOptions
from ort_stacktune.ort.request import OutputTarget, Request, RunSettings
from ort_stacktune.store.checks import Unreadable
from ort_stacktune.vocabulary import FirstCosts


def body(frame: bytes) -> bytes:
    assert LENGTH.unpack(frame[:4])[0] == len(frame) - 4
    return frame[4:]


def crossed(trials: TrialSet) -> TrialSet:
    cargo = pack(trials)
    with cargo.file:
        return unpack(cargo)


def trial_set(**changes: Any) -> TrialSet:
    base: dict[str, Any] = {
        "recipes": (SessionRecipe("reference", providers=CPU),),
        "reference": 0,
        "model": ModelSource(path="/models/a.onnx"),
        "request": Request({"x": np.zeros(1, np.float32)}, (OutputTarget("y"),)),
    }
    return TrialSet(**{**base, **changes})


def test_a_command_arrives_to_the_last_bit_of_its_tolerance() -> None:
    tolerance = Tolerance(0.1 + 0.2, 5e-324, 2**40)
    command = Command(7, Call.VALIDATE, 3, 12, True, tolerance)
    assert decode_command(body(encode_command(command))) == command


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (Call.VALIDATE, Validation.UNSUPPORTED),
        (Call.MEASURE, 123456789),
        (Call.FACTS, {"nodes": "OpenVINO 3 of 4"}),
        (Call.ALL_COSTS, FirstCosts(1, 2, None, 4)),
        (Call.RELEASE, None),
    ],
)
def test_an_answer_arrives_with_its_type(call: Call, value: Value) -> None:
    answer = decode_answer(body(encode_answer(Answer(5, value))), Command(5, call))
    assert answer == Answer(5, value)
    assert type(answer.value) is type(value)


@pytest.mark.parametrize("kind", [TuneFailure, ReferenceFailure, NotReproduced])
def test_a_failure_arrives_with_its_kind_its_fault_and_who_is_to_blame(kind: type[TuneFailure]) -> None:
    sent = kind(FailureKind.UNAVAILABLE, "it says \udcff", Fault.OUTPUT)
    received = decode_answer(body(encode_answer(Answer(5, failure=sent))), Command(5, Call.MEASURE)).failure
    assert received is not None
    assert type(received) is kind
    assert (received.kind, received.message, received.fault) == (
        FailureKind.UNAVAILABLE,
        "it says \\udcff",
        Fault.OUTPUT,
    )


GOOD: dict[str, Any] = {"number": 5, "value": 10, "failure": None}
FAILURE: dict[str, Any] = {"kind": "REJECTED", "message": "m", "fault": None, "blame": "candidate"}


@pytest.mark.parametrize(
    ("spoilt", "word"),
    [
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b'{"number": 5, "value": 10, "value": 11, "failure": null}', "twice"),
        (GOOD | {"number": 6}, "command 6"),
        (GOOD | {"value": 0}, "value"),
        (GOOD | {"value": 1.5}, "value"),
        (GOOD | {"value": True}, "value"),
        (GOOD | {"value": 2**63}, "value"),
        (GOOD | {"more": 1}, "more"),
        ({"number": 5, "value": 10}, "failure"),
        (GOOD | {"failure": FAILURE | {"kind": "NICE"}}, "kind"),
        (GOOD | {"failure": FAILURE | {"blame": "nobody"}}, "nobody"),
        (GOOD | {"failure": FAILURE | {"fault": "BOREDOM"}}, "fault"),
        ([], "object"),
    ],
)
def test_an_answer_that_is_not_exactly_one_is_not_believed(spoilt: Any, word: str) -> None:
    data = spoilt if isinstance(spoilt, bytes) else json.dumps(spoilt).encode()
    with pytest.raises(Unreadable, match=word):
        decode_answer(data, Command(5, Call.MEASURE))


@pytest.mark.parametrize(
    "array",
    [
        np.float16([1.5, np.nan, -0.0, np.inf]),
        np.array(3, np.int64),
        np.zeros((0, 4), np.uint8),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10, dtype=np.int16)[::3],
        np.array([True, False]),
        np.array([1, 2], ">i4"),
    ],
)
def test_an_input_arrives_with_every_bit_of_it(array: np.ndarray[Any, Any]) -> None:
    received = crossed(trial_set(request=Request({"x": array}, ()))).request.feeds["x"]
    assert isinstance(received, np.ndarray)
    assert received.dtype.str == array.dtype.str
    assert received.shape == array.shape
    assert received.tobytes() == array.tobytes()


def test_a_request_and_all_that_trials_need_arrive(tmp_path: Path) -> None:
    path = save(graphs.mlp(), tmp_path / "m.onnx")
    recipes = (
        SessionRecipe("reference", providers=CPU),
        SessionRecipe(
            "all of it",
            model=path,
            providers=[("CPUExecutionProvider", AcceptedOptions({"of_another_version": "0"}))],
            session_options={"intra_op_num_threads": 2, "enable_mem_pattern": False},
            config={"session.intra_op.allow_spinning": "0"},
            run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
            workspace_bytes=12,
            shapes={"x": [2, 16]},
            instances=2,
        ),
    )
    request = Request(
        {"b": np.ones(2, np.int32), "a": np.ones(3, np.float64)},
        (OutputTarget("y", ("f4", (2, 16)), Memory("cuda", 1)), OutputTarget("z")),
        True,
        RunSettings(True, {"k": "v"}, True),
        {"a": Memory("cuda", 1)},
    )
    sent = trial_set(
        recipes=recipes,
        request=request,
        steering=frozenset({"a", "b"}),
        probes=[{"b": np.zeros(2, np.int32), "a": np.zeros(3)}, {"c": np.zeros(1)}],
        timing=Timing.DEVICE,
        concurrency=3,
        zeros_are_safe=True,
        dims={"a": (1, "N", None)},
    )
    got = crossed(sent)
    assert list(got.recipes) == list(recipes)
    assert [recipe.revision for recipe in got.recipes] == [recipe.revision for recipe in recipes]
    assert list(got.request.feeds) == ["b", "a"]
    for field in ("outputs", "bound", "settings", "placed"):
        assert getattr(got.request, field) == getattr(request, field)
    assert (got.steering, got.timing, got.concurrency, got.zeros_are_safe) == (
        sent.steering,
        Timing.DEVICE,
        3,
        True,
    )
    assert {name: list(dims) for name, dims in (got.dims or {}).items()} == {"a": [1, "N", None]}
    # The probe with another input can never be run.
    assert [sorted(probe) for probe in got.probes] == [["a", "b"]]


def test_a_model_arrives_as_the_path_or_the_bytes_that_it_was() -> None:
    assert crossed(trial_set()).model == ModelSource(path="/models/a.onnx")
    data = os.urandom(100_000)
    assert crossed(trial_set(model=ModelSource(data=data))).model.data == data


def test_what_the_live_session_gave_arrives_with_its_types() -> None:
    outputs: list[object] = [
        None,
        np.arange(4, dtype=np.float32).reshape(2, 2),
        np.float32(1.5),
        np.array([["a", "bc"]], object),
        [{1: 0.25, 2: float("nan")}, {"x": np.zeros(2, np.int64)}],
        "text",
        3,
        True,
    ]
    served = crossed(trial_set(served=Served(outputs))).served
    assert served is not None
    got = served.again()
    assert repr(got) == repr(outputs)
    assert [type(each) for each in got] == [type(each) for each in outputs]


def test_an_error_of_the_live_session_is_raised_again() -> None:
    served = crossed(trial_set(served=Served(None, "Fail: no"))).served
    assert served is not None
    with pytest.raises(RuntimeError, match="Fail: no"):
        served.again()


def test_an_output_that_can_not_travel_is_the_requests_own_affair_and_is_named() -> None:
    with pytest.raises(ReferenceFailure, match="of type object can't be handed to another process") as caught:
        pack(trial_set(served=Served([object()])))
    assert caught.value.kind is FailureKind.UNAVAILABLE


def test_a_recipe_whose_file_has_changed_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    path = save(graphs.mlp(seed=0), tmp_path / "m.onnx")
    cargo = pack(trial_set(recipes=(SessionRecipe("r", model=path, providers=CPU),)))
    save(graphs.mlp(seed=1), tmp_path / "m.onnx")
    with cargo.file:
        recipes = unpack(cargo).recipes
    with pytest.raises(TuneFailure, match="has changed") as caught:
        recipes[0]
    assert caught.value.kind is FailureKind.REJECTED


def test_a_recipe_with_an_address_of_this_process_stays_here() -> None:
    class Recipe:
        provider_list = (("CUDAExecutionProvider", {"user_compute_stream": "94839"}),)

    assert why_not_elsewhere([Recipe()]) == (  # type: ignore[list-item]
        "option user_compute_stream of CUDAExecutionProvider is an address in this process"
    )
    assert why_not_elsewhere(trial_set().recipes) is None


def test_a_board_shows_one_process_what_another_is_at(tmp_path: Path) -> None:
    with (tmp_path / "board").open("w+b") as file:
        file.truncate(Board.BYTES)
        here, there = Board(file.fileno()), Board(file.fileno())
        assert here.look().phase is Phase.START
        with there.showing(Phase.RUN, 300):
            seen = here.look()
            assert (seen.phase, seen.candidate) == (Phase.RUN, 300)
            there.show(Phase.RUN, 300)
            assert here.look() != seen
        assert here.look().phase is Phase.OWN
        here.close()
        there.close()
