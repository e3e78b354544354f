from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tuning import floats, tuned_pair

import graphs
from ort_stacktune import StackTuner, TuneFailure
from ort_stacktune.serving import Lane
from ort_stacktune.signature import describe_workload


def _expected(raw: ort.InferenceSession, x: object) -> object:
    return raw.run(None, {"x": x})[0]


def test_one_binding_serves_whichever_session_is_selected(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    binding = tuned.io_binding()
    assert isinstance(binding, ort.IOBinding)
    for rows in (1, 2, 1, 2):
        x = floats(rows, 16)
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        for _ in range(2):
            tuned.run_with_iobinding(binding)
            np.testing.assert_allclose(
                binding.copy_outputs_to_cpu()[0], _expected(raw, x), rtol=1e-5, atol=1e-6
            )
            np.testing.assert_allclose(
                binding.get_outputs()[0].numpy(), _expected(raw, x), rtol=1e-5, atol=1e-6
            )
    assert tuner.stats().tunes == 2
    assert tuner.stats().memory_hits >= 4


def test_buffers_that_the_caller_brings_are_filled(tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())
    x, out = floats(2, 16), np.zeros((2, 16), np.float32)
    value = ort.OrtValue.ortvalue_from_numpy(x.copy())
    ways = {
        "ort value": lambda b: b.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(out)),
        "pointer": lambda b: b.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data),
    }
    for bind_output in ways.values():
        binding = tuned.io_binding()
        binding.bind_ortvalue_input("x", value)
        bind_output(binding)
        for seed in (1, 2):
            fresh = floats(2, 16, seed=seed)
            value.update_inplace(fresh)
            out.fill(0)
            tuned.run_with_iobinding(binding)
            np.testing.assert_allclose(
                binding.copy_outputs_to_cpu()[0], _expected(raw, fresh), rtol=1e-5, atol=1e-6
            )
    np.testing.assert_allclose(out, _expected(raw, floats(2, 16, seed=2)), rtol=1e-5, atol=1e-6)


def test_an_input_bound_by_pointer_is_read_at_every_run(tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())
    x = floats(2, 16)
    binding = tuned.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y")
    for seed in (1, 2, 3):
        x[:] = floats(2, 16, seed=seed)
        tuned.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], _expected(raw, x), rtol=1e-5, atol=1e-6)


def test_state_kept_in_place_is_left_to_the_reference_and_advances_once_a_run(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.with_state())
    inputs = {i.name: i for i in raw.get_inputs()}
    outputs = [o.name for o in raw.get_outputs()]
    feed = {n: floats(*[d if isinstance(d, int) else 1 for d in i.shape]) for n, i in inputs.items()}
    state_in, state_out = list(inputs)[1], outputs[1]
    expected_state = feed[state_in].copy()
    shared = ort.OrtValue.ortvalue_from_numpy(feed[state_in].copy())
    binding = tuned.io_binding()
    binding.bind_cpu_input(next(iter(inputs)), feed[next(iter(inputs))])
    binding.bind_ortvalue_input(state_in, shared)
    binding.bind_output(outputs[0])
    binding.bind_ortvalue_output(state_out, shared)
    for _ in range(3):
        tuned.run_with_iobinding(binding)
        feed[state_in] = expected_state
        expected_state = raw.run([state_out], feed)[0]
        np.testing.assert_allclose(shared.numpy(), expected_state, rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 0


def test_a_value_that_steers_is_read_again_at_every_run_of_a_binding(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.branching())
    x, mode = floats(1, 16), np.array(0)
    binding = tuned.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("mode", mode)
    binding.bind_output("y")
    for value in (0, 1, 0, 1):
        mode[...] = value
        tuned.run_with_iobinding(binding)
        expected = raw.run(None, {"x": x, "mode": mode})[0]
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected, rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 2


def test_a_choice_taken_back_is_not_served_to_a_binding_either(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    binding, x = tuned.io_binding(), floats(1, 16)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    tuned.run_with_iobinding(binding)
    tuner.invalidate(binding.route.decision, ban_candidate=True)
    tuned.run_with_iobinding(binding)
    assert binding.route.session is None
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], _expected(raw, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decided", [False, True])
def test_binding_errors_are_the_raw_ones(decided: bool, tmp_path: Path) -> None:
    tuned, raw, _ = tuned_pair(tmp_path, graphs.mlp())

    def errors(session: ort.InferenceSession) -> list[type[BaseException] | None]:
        found: list[type[BaseException] | None] = []
        for act in (
            lambda b: b.bind_cpu_input("nope", floats(1, 16)),
            lambda b: b.bind_output("nope"),
            lambda b: session.run_with_iobinding(b),
            lambda b: (
                b.bind_cpu_input("x", floats(1, 15)),
                b.bind_output("y"),
                session.run_with_iobinding(b),
            ),
            lambda b: (
                b.bind_cpu_input("x", floats(1, 16).astype(np.float64)),
                b.bind_output("y"),
                session.run_with_iobinding(b),
            ),
        ):
            try:
                act(session.io_binding())
            except Exception as error:
                found.append(type(error))
            else:
                found.append(None)
        return found

    if decided:
        tuned.tune({"x": floats(1, 16)})
    assert errors(tuned) == errors(raw)


def test_bindings_made_by_hand_run_on_the_reference(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp(), StackTuner())
    binding, x = ort.IOBinding(tuned), floats(1, 16)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    tuned.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], _expected(raw, x), rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 0


class Foreign:
    """An array of another library, as DLPack passes it on."""

    def __init__(self, array: object) -> None:
        self.__dlpack__ = array.__dlpack__  # type: ignore[attr-defined]
        self.__dlpack_device__ = array.__dlpack_device__  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [np.asarray, ort.OrtValue.ortvalue_from_numpy, Foreign], ids=str)
def test_an_array_is_bound_by_its_name_alone_and_kept_alive(make: Any, tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    binding = tuned.io_binding()
    for seed in range(3):
        x = floats(2, 16, seed=seed)
        binding.bind_input("x", make(x.copy()))
        binding.bind_output("y")
        gc.collect()
        tuned.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], _expected(raw, x), rtol=1e-5, atol=1e-6)
    assert tuner.stats().tunes == 1


def test_an_array_bound_as_an_output_is_filled(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    binding, x, out = tuned.io_binding(), floats(2, 16), np.zeros((2, 16), np.float32)
    binding.bind_input("x", x)
    binding.bind_output("y", out)
    tuned.run_with_iobinding(binding)
    np.testing.assert_allclose(out, _expected(raw, x), rtol=1e-5, atol=1e-6)
    assert "y f4[2x16]" in describe_workload(tuner.reports()[0].workload)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        ([1.0, 2.0], "list"),
        (np.zeros((16, 2), np.float32).T, "contiguous"),
        (np.broadcast_to(np.float32(0), (2, 16)), "writeable"),
    ],
    ids=["list", "strides", "read only"],
)
def test_what_can_not_be_bound_as_an_output_is_refused_with_the_reason(
    array: Any, reason: str, tmp_path: Path
) -> None:
    tuned, _, _ = tuned_pair(tmp_path, graphs.mlp())
    with pytest.raises(TuneFailure, match=reason):
        tuned.io_binding().bind_output("y", array)


def test_a_binding_bound_again_is_served_without_asking_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    binding = tuned.io_binding()

    def serve(rows: int, seed: int) -> None:
        x = floats(rows, 16, seed=seed)
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        tuned.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], _expected(raw, x), rtol=1e-5, atol=1e-6)

    for rows in (1, 2):
        serve(rows, 0)
    monkeypatch.setattr(Lane, "resolve", lambda *_, **__: pytest.fail("it was asked again"))
    for seed in range(1, 4):
        serve(1 + seed % 2, seed)
    assert tuner.stats().memory_hits >= 3
    monkeypatch.undo()
    tuner.invalidate(binding.route.decision, ban_candidate=True)
    serve(1 + 3 % 2, 5)
    assert binding.route.session is None


def test_state_bound_in_place_later_is_not_served_by_an_earlier_choice(tmp_path: Path) -> None:
    tuned, _, _ = tuned_pair(tmp_path, graphs.mlp())
    x, y = floats(2, 16), np.zeros((2, 16), np.float32)
    binding = tuned.io_binding()
    for out in (y, x):
        binding.bind_input("x", x)
        binding.bind_output("y", out)
        tuned.run_with_iobinding(binding)
        assert (binding.route is None) is (out is x)


def test_outputs_outlive_a_choice_that_was_taken_back(tmp_path: Path) -> None:
    tuned, raw, tuner = tuned_pair(tmp_path, graphs.mlp())
    binding, x = tuned.io_binding(), floats(2, 16)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    tuned.run_with_iobinding(binding)
    (value,), decision = binding.get_outputs(), binding.route.decision
    del binding
    tuner.invalidate(decision, ban_candidate=True)
    assert tuned._lane().live_winners() == 0
    gc.collect()
    np.testing.assert_allclose(value.numpy(), _expected(raw, x), rtol=1e-5, atol=1e-6)
