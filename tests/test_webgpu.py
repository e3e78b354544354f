"""On the WebGPU provider, whose device memory is real even where its device is software."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tuning import floats, save

import graphs
from ort_stacktune import FailureKind, SessionRecipe, StackPolicy, StackTuner, TunedSession
from ort_stacktune.ort.callers import Caller
from ort_stacktune.ort.completion import waiting_for
from ort_stacktune.ort.devices import HOST, Memory
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.request import OutputTarget, Request
from ort_stacktune.ort.tensors import DeviceTensor, TrialMemory, read_back
from ort_stacktune.ort.trials import SessionTrials
from ort_stacktune.reading import CallReader
from ort_stacktune.vocabulary import Timing, Tolerance, Validation

WEBGPU = "WebGpuExecutionProvider"
BOTH = [WEBGPU, "CPUExecutionProvider"]
DEVICE = Memory("webgpu", 0)
# A run takes a tenth of a second on a device in software, so a search has to be short.
SHORT = StackPolicy(
    warmups=1, samples=3, max_samples=9, repeats=1, confidence=0.6, budget_s=60.0, max_relative_mad=10.0
)

pytestmark = [
    pytest.mark.webgpu,
    pytest.mark.skipif(WEBGPU not in ort.get_available_providers(), reason="this build has no WebGPU"),
]


def quiet() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def raw_session(model: onnx.ModelProto, providers: Any = BOTH) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), quiet(), providers=providers)


def on_device(array: np.ndarray[Any, Any]) -> Any:
    """Returns a value in the device's memory, made as a user would: as the output of a session."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "copy",
        [onnx.helper.make_tensor_value_info("x", kind, None)],
        [onnx.helper.make_tensor_value_info("y", kind, None)],
    )
    session = raw_session(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    )
    binding = session.io_binding()
    binding.bind_cpu_input("x", array)
    binding.bind_output("y", "webgpu")
    session.run_with_iobinding(binding)
    value = binding.get_outputs()[0]
    _KEPT.append((session, binding, value))
    return value


_KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def _let_go() -> Any:
    """A binding alive at the interpreter's exit crashes it, and these are the tests' own."""
    yield
    _KEPT.clear()


def tuned(
    tmp_path: Path, base: onnx.ModelProto, *, links: int = 12, candidates: Any = None
) -> tuple[TunedSession, StackTuner]:
    """Returns a session on WebGPU that does needless work, with a twin that does not."""
    slow = save(graphs.slowed(base, links=links), tmp_path / "slow.onnx")
    fast = SessionRecipe("fast", model=save(base, tmp_path / "fast.onnx"), providers=BOTH)
    tuner = StackTuner(SHORT)
    session = TunedSession(
        slow, quiet(), providers=BOTH, candidates=candidates or [fast], tuner=tuner, probes=()
    )
    return session, tuner


def expected(base: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    outputs: list[Any] = raw_session(base, ["CPUExecutionProvider"]).run(None, feeds)
    return outputs


def reading(session: ort.InferenceSession, feed: dict[str, Any]) -> Request:
    request = CallReader(session).of_run(None, feed, None)
    assert isinstance(request, Request), request
    return request


def trials_of(tmp_path: Path, request: Request, candidate: onnx.ModelProto, **keywords: Any) -> SessionTrials:
    reference = SessionRecipe("reference", model=save(graphs.mlp(), tmp_path / "r.onnx"), providers=BOTH)
    other = SessionRecipe("other", model=save(candidate, tmp_path / "c.onnx"), providers=BOTH)
    return SessionTrials((reference, other), 0, ModelSource.of(str(reference.model)), request, **keywords)


def in_place_of(target: str) -> Request:
    """Returns a request with a device-resident input and output."""
    given = ("f4", (2, 16)) if target == "given" else None
    feeds = reading(raw_session(graphs.mlp()), {"x": on_device(floats(2, 16))}).feeds
    return Request(feeds, (OutputTarget("y", given, DEVICE),), bound=True)


def detached() -> Request:
    """Returns such a request on copies in host memory, as a process elsewhere gets it."""
    target = OutputTarget("y", ("f4", (2, 16)), DEVICE)
    return Request({"x": floats(2, 16)}, (target,), bound=True, placed={"x": DEVICE})


def test_device_resident_inputs_and_outputs_are_tuned_and_right(tmp_path: Path) -> None:
    session, tuner = tuned(tmp_path, graphs.mlp())
    binding = session.io_binding()
    for rows, seed in ((2, 0), (2, 1), (3, 2), (2, 3)):
        x = floats(rows, 16, seed=seed)
        binding.bind_ortvalue_input("x", on_device(x))
        binding.bind_output("y", "webgpu", 0)
        session.run_with_iobinding(binding)
        session.run_with_iobinding(binding)
        out = binding.get_outputs()[0]
        assert out.device_name() != "cpu"
        want = expected(graphs.mlp(), {"x": x})[0]
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], want, rtol=1e-4, atol=1e-5)
    assert tuner.stats().tunes == 2
    assert binding.route.decision.name == "fast"
    assert {report.workload.count("webgpu:0") for report in tuner.reports()} == {2}


def test_one_binding_may_move_between_the_host_and_the_device(tmp_path: Path) -> None:
    session, tuner = tuned(tmp_path, graphs.mlp())
    binding, x = session.io_binding(), floats(2, 16)
    want = expected(graphs.mlp(), {"x": x})[0]
    for source, target in (("cpu", "cpu"), ("webgpu", "cpu"), ("cpu", "webgpu"), ("webgpu", "webgpu")):
        binding.bind_input("x", x if source == "cpu" else on_device(x))
        binding.bind_output("y", target)
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], want, rtol=1e-4, atol=1e-5)
    assert tuner.stats().tunes == 4


def test_buffers_that_the_caller_has_on_the_device_are_read_and_filled(tmp_path: Path) -> None:
    session, tuner = tuned(tmp_path, graphs.mlp())
    x, binding = floats(2, 16), session.io_binding()
    source, out = on_device(x), on_device(np.zeros((2, 16), np.float32))
    binding.bind_ortvalue_input("x", source)
    binding.bind_ortvalue_output("y", out)
    session.run_with_iobinding(binding)
    assert tuner.stats().tunes == 1
    np.testing.assert_allclose(out.numpy(), expected(graphs.mlp(), {"x": x})[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(source.numpy(), x)


def test_a_buffer_bound_by_its_handle_is_left_to_the_reference(tmp_path: Path) -> None:
    session, tuner = tuned(tmp_path, graphs.mlp(), links=2)
    source = on_device(floats(2, 16))
    for either in (session, raw_session(graphs.mlp())):
        binding = either.io_binding()
        binding.bind_input("x", "webgpu", 0, np.float32, (2, 16), source.data_ptr())
        binding.bind_output("y", "webgpu", 0)
        _KEPT.append((either, binding))
        with pytest.raises(RuntimeError, match="WebGPU buffers"):
            either.run_with_iobinding(binding)
    assert tuner.stats().tunes == 0


@pytest.mark.parametrize("call", ["run", "run_with_ort_values"])
def test_a_device_resident_feed_of_a_run_is_tuned(call: str, tmp_path: Path) -> None:
    session, tuner = tuned(tmp_path, graphs.mlp())
    x = floats(2, 16)
    for _ in range(2):
        (out,) = getattr(session, call)(None, {"x": on_device(x)})
        want = expected(graphs.mlp(), {"x": x})[0]
        np.testing.assert_allclose(np.asarray(out), want, rtol=1e-4, atol=1e-5)
    assert tuner.stats().tunes == 1
    assert "webgpu:0" in tuner.reports()[0].workload


@pytest.mark.parametrize("target", ["allocated", "given"])
def test_a_wrong_candidate_is_rejected(target: str, tmp_path: Path) -> None:
    trials = trials_of(tmp_path, in_place_of(target), graphs.mlp(seed=1))
    assert trials.validate(0, 0, Tolerance()) is Validation.PASSED
    with pytest.raises(Exception, match="'y'") as caught:
        trials.validate(0, 1, Tolerance())
    assert caught.value.kind is FailureKind.REJECTED  # type: ignore[attr-defined]
    trials.close()


def test_a_trial_leaves_the_callers_buffers_alone(tmp_path: Path) -> None:
    x, before = on_device(floats(2, 16)), on_device(np.ones((2, 16), np.float32))
    binding = TunedSession(save(graphs.mlp(), tmp_path / "m.onnx"), quiet(), providers=BOTH)
    request = reading(binding, {"x": x})
    bound = Request(request.feeds, (OutputTarget("y", ("f4", (2, 16)), DEVICE),), bound=True)
    trials = trials_of(tmp_path, bound, graphs.mlp())
    assert trials.validate(0, 1, Tolerance()) is Validation.PASSED
    assert trials.measure(1) > 0
    trials.close()
    np.testing.assert_array_equal(x.numpy(), floats(2, 16))
    np.testing.assert_array_equal(before.numpy(), np.ones((2, 16)))


def test_a_candidate_that_can_not_reach_the_memory_is_refused_by_name_before_it_is_made(
    tmp_path: Path,
) -> None:
    cpu = SessionRecipe(
        "cpu", model=save(graphs.mlp(), tmp_path / "cpu.onnx"), providers=["CPUExecutionProvider"]
    )
    session, tuner = tuned(tmp_path, graphs.mlp(), links=2, candidates=[cpu])
    Path(str(cpu.model)).write_bytes(b"never read")
    x = floats(2, 16)
    (out,) = session.run(None, {"x": on_device(x)})
    np.testing.assert_allclose(out, expected(graphs.mlp(), {"x": x})[0], rtol=1e-4, atol=1e-5)
    refused = next(each for each in tuner.reports()[0].candidates if each.name == "cpu")
    assert refused.rejection is FailureKind.REJECTED
    assert "webgpu:0" in refused.note
    assert "CPUExecutionProvider" in refused.note


def test_no_candidate_is_generated_that_can_not_reach_the_memory(tmp_path: Path) -> None:
    tuner = StackTuner(SHORT)
    session = TunedSession(save(graphs.mlp(), tmp_path / "m.onnx"), quiet(), providers=BOTH, tuner=tuner)
    on_host, resident = ({"x": x} for x in (floats(2, 16), on_device(floats(2, 16))))
    lane = session._lane()
    named = [
        {recipe.name for recipe in lane._plan(tuner, reading(session, feed)).recipes}
        for feed in (on_host, resident)
    ]
    assert named[1] < named[0]
    for recipe in lane._plan(tuner, reading(session, resident)).recipes:
        assert WEBGPU in dict(recipe.inheriting(lane.reference).provider_list)


def test_a_signature_is_read_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value, session = on_device(floats(2, 16)), raw_session(graphs.mlp())
    copies = counting_copies(monkeypatch)
    request = reading(session, {"x": value})
    text = request.signature(frozenset({"x"})).text()
    assert "webgpu:0" in text
    assert request.feeds["x"].shape == (2, 16)
    assert request.inputs_on_devices() == {"x": DEVICE}
    assert copies == []
    np.testing.assert_array_equal(request.detached().feeds["x"], floats(2, 16))
    assert copies != []


def counting_copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that grows by a name whenever something goes over to the host or comes from it."""
    copies: list[str] = []
    for owner, names in (
        (ort.IOBinding, ("copy_outputs_to_cpu", "bind_cpu_input")),
        (ort.OrtValue, ("numpy", "__array__", "update_inplace", "ortvalue_from_numpy")),
    ):
        for name in names:
            real = getattr(owner, name)

            def counted(*arguments: Any, _real: Any = real, _name: str = name, **keywords: Any) -> Any:
                copies.append(_name)
                return _real(*arguments, **keywords)

            monkeypatch.setattr(owner, name, counted)
    return copies


@pytest.mark.parametrize("target", ["allocated", "given"])
def test_nothing_is_copied_while_a_device_resident_request_is_timed(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = trials_of(tmp_path, in_place_of(target), graphs.mlp())
    trials.validate(0, 1, Tolerance())
    copies = counting_copies(monkeypatch)
    during: list[list[str]] = []
    real = Caller._work

    def watched(self: Caller, feeds: Any, number: int) -> Any:
        work = real(self, feeds, number)

        def counted(loops: int) -> None:
            before = len(copies)
            work(loops)
            during.append(copies[before:])

        return counted

    monkeypatch.setattr(Caller, "_work", watched)
    for number in range(4):
        trials.begin_round(number, as_served=False)
        assert trials.measure(number % 2) > 0
    assert during
    assert not any(during)
    for caller in trials._callers.values():
        values = caller._bindings[0]._binding.get_outputs()
        assert [value.device_name() for value in values] != ["cpu"]
        del values
    trials.close()


def test_clones_take_turns_and_are_made_once(tmp_path: Path) -> None:
    memory = TrialMemory({"x": DEVICE, "h": HOST}, ((WEBGPU, {}), ("CPUExecutionProvider", {})))
    one, two = ({"x": floats(2, 3, seed=seed), "h": floats(1)} for seed in (1, 2))
    first, second = memory.place(one), memory.place(two)
    assert memory.place(one) is first
    assert memory.place(two) is second
    assert first["h"] is one["h"]
    np.testing.assert_array_equal(first["x"].numpy(), one["x"])
    np.testing.assert_array_equal(second["x"].numpy(), two["x"])
    memory.close()


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_]
)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 3)], ids=str)
def test_whatever_numpy_has_a_type_for_is_placed_and_read_back_as_it_is(
    dtype: Any, shape: tuple[int, ...]
) -> None:
    array = np.asarray(np.random.default_rng(1).standard_normal(shape) * 3).astype(dtype)
    value = on_device(array)
    tensor = DeviceTensor(array.dtype, shape, DEVICE, ((WEBGPU, {}),), value, value.data_ptr())
    copy = read_back({"x": tensor})["x"]
    np.testing.assert_array_equal(copy, array)
    assert (copy.dtype, copy.shape) == (array.dtype, shape)


def test_what_waits_reads_one_number_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = TrialMemory({}, ((WEBGPU, {}),))
    wait = waiting_for(lambda: None, ((WEBGPU, {}),), lambda: memory.port_of(((WEBGPU, {}),)))
    copies = counting_copies(monkeypatch)
    assert wait is not None
    wait()
    assert copies == []
    memory.close()


def test_device_timing_is_unavailable_and_says_why(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, in_place_of("allocated"), graphs.mlp(), timing=Timing.DEVICE)
    with pytest.raises(Exception, match=WEBGPU) as caught:
        trials.measure(0)
    assert caught.value.kind is FailureKind.UNAVAILABLE  # type: ignore[attr-defined]
    trials.close()


def test_state_kept_in_place_on_the_device_advances_once_a_run(tmp_path: Path) -> None:
    session, tuner = tuned(tmp_path, graphs.with_state(), links=2)
    inputs, outputs = [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]
    x, state = floats(2, 4), floats(2, 4, seed=1)
    shared, binding = on_device(state), session.io_binding()
    binding.bind_cpu_input(inputs[0], x)
    binding.bind_ortvalue_input(inputs[1], shared)
    binding.bind_output(outputs[0])
    binding.bind_ortvalue_output(outputs[1], shared)
    for _ in range(3):
        session.run_with_iobinding(binding)
        state = expected(graphs.with_state(), {inputs[0]: x, inputs[1]: state})[1]
        np.testing.assert_allclose(shared.numpy(), state, rtol=1e-4, atol=1e-5)
    assert tuner.stats().tunes == 0


def test_a_value_that_steers_is_not_fetched_from_the_device(tmp_path: Path) -> None:
    session, tuner = tuned(tmp_path, graphs.branching(), links=2)
    x, mode = floats(1, 16), np.array(1)
    (out,) = session.run(None, {"x": x, "mode": on_device(mode)})
    want = expected(graphs.branching(), {"x": x, "mode": mode})[0]
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    assert tuner.stats().tunes == 0
    report = session.report({"x": x, "mode": on_device(mode)})
    assert report is not None
    assert "device's memory" in report.candidates[0].note


# What a script leaves behind at its end: a binding, its outputs, and a trial that nobody closed.
AT_EXIT = """
import sys
import numpy as np, onnx, onnxruntime as ort
from ort_stacktune import SessionRecipe, StackTuner, Tolerance, TunedSession
from test_webgpu import BOTH, SHORT, detached, quiet, trials_of, tuned
from pathlib import Path
import graphs
folder, what = Path(sys.argv[1]), sys.argv[2]
session, tuner = tuned(folder, graphs.mlp(), links=4)
binding = session.io_binding()
binding.bind_input("x", np.ones((2, 16), np.float32))
binding.bind_output("y", "webgpu", 0)
session.run_with_iobinding(binding)
assert tuner.stats().tunes == 1
if what == "outputs":
    left = binding.get_outputs()
if what == "choice gone":
    left = binding.get_outputs()
    decision = binding.route.decision
    del binding
    tuner.invalidate(decision, ban_candidate=True)
    assert session._lane().live_winners() == 0
    assert left[0].numpy().shape == (2, 16)
    del left, session
if what == "session gone":
    left = binding.get_outputs()
    del binding, session, tuner
    assert left[0].numpy().shape == (2, 16)
if what == "trial":
    trials = trials_of(folder, detached(), graphs.mlp())
    trials.measure(1)
if what == "failure":
    trials = trials_of(folder, detached(), graphs.mlp(seed=1))
    try:
        trials.validate(0, 1, Tolerance())
    except Exception as error:
        kept = error
    trials.close()
print("done")
"""


@pytest.mark.parametrize("what", ["binding", "outputs", "choice gone", "session gone", "trial", "failure"])
def test_the_interpreter_ends_well_with_whatever_is_left(what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(AT_EXIT), str(tmp_path), what],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert done.stdout.endswith("done\n"), done.stderr
    assert done.returncode == 0, done.stderr
