"""What users rely on when stored choices are exported, imported, compared and validated from the shell."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from test_bundle import a_store, answer, held
from tuning import CPU, floats

import graphs
from ort_stacktune import Candidate, Problem, SessionRecipe, StackPolicy, StackTuner, TunedSession, cache_key
from ort_stacktune.cli.comparing import compare_choices
from ort_stacktune.cli.differences import difference, difference_from_here
from ort_stacktune.cli.main import main
from ort_stacktune.environment import environment_like, forget_environment, runtime_environment
from ort_stacktune.identity import fields, parse_fields
from ort_stacktune.question import parts_of_key
from ort_stacktune.signature import CallSignature, TensorSignature
from ort_stacktune.store import Record, RecordStore
from ort_stacktune.vocabulary import CandidateReport, RuntimeEnvironment, Scope

Run = Callable[..., tuple[int, str, str]]


def shape(*sizes: int) -> str:
    """Returns the signature of a request with one input of this shape."""
    given = TensorSignature("x", "f4", sizes)
    return CallSignature((given,), (TensorSignature("y", "", None),)).text()


WORKLOAD = shape(1, 3)
OPERATION = fields(("onnx", "detector", "0123456789abcdef0123456789abcdef"))
QUICK = StackPolicy(budget_s=20.0, max_relative_mad=10.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_STACKTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process; returns its status, answer and what else it said."""

    def run_(*arguments: str | Path) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return run_


def a_choice(
    workload: str = WORKLOAD,
    *,
    winner: str = "threads-1",
    environment: str = "",
    reference_ns: int = 3_000_000,
    ratio: float = 0.5,
    names: tuple[str, ...] = ("reference", "threads-1", "no-spinning"),
    revision: str = "1",
    pairs: int = 20,
    age_s: float = 60.0,
    context: str = "isolated-single-device",
) -> Record:
    """Returns the record of a question asked in an environment, by default in this one."""
    environment = environment or runtime_environment().fingerprint
    candidates = [Candidate(name, revision) for name in names]
    problem = Problem(Scope.GRAPH, OPERATION, environment, workload, context)
    record = answer(cache_key(problem, candidates, 0, StackPolicy()), winner, pairs)
    report = replace(
        record.report,
        operation=OPERATION,
        environment=environment,
        workload=workload,
        execution_context=context,
        candidates=tuple(
            CandidateReport(
                name,
                samples=0 if name == "reference" else pairs // (len(names) - 1),
                ratio=1.0 if name == "reference" else ratio,
                verified=True,
                interval=None if name == "reference" else (ratio * 0.97, ratio * 1.03),
            )
            for name in names
        ),
    )
    return replace(
        record,
        report=report,
        created_s=time.time() - age_s,
        winner_revision=revision,
        reference_ns=reference_ns,
        selected_ns=reference_ns if winner == "reference" else round(reference_ns * ratio),
        ratio=1.0 if winner == "reference" else ratio,
    )


def other_environment(**changes: str) -> str:
    """Returns this environment's identity with some fields changed."""
    parts = dict(zip(*[iter(_parts(runtime_environment().fingerprint))] * 2, strict=True))
    assert set(changes) <= set(parts) | {"x"}
    return fields(part for pair in {**parts, **changes}.items() for part in pair)


def _parts(text: str) -> list[str]:
    return parse_fields(text)


def put(directory: Path, *records: Record) -> Path:
    store = RecordStore(directory, warn=pytest.fail)
    for record in records:
        assert store.put(record)
    return directory


# --- export and import ----------------------------------------------------------------------------


def test_what_one_machine_exports_another_imports(tmp_path: Path, run: Run) -> None:
    put(tmp_path / "cache", a_choice())
    bundle = tmp_path / "choices.bundle"
    status, out, err = run("cache", "export", bundle)
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"Exported 1 record from {tmp_path / 'cache'}."
    assert f"Written to {bundle}, {bundle.stat().st_size} bytes" in out
    there = tmp_path / "there"
    status, out, err = run("cache", "import", bundle, "--cache", there)
    assert (status, err) == (0, "")
    assert out.splitlines() == [f"Imported 1 of 1 record from {bundle} into {there}.", "  1 new"]
    assert held(a_store(there)) == held(a_store(tmp_path / "cache"))
    status, out, _ = run("cache", "import", bundle, "--cache", there, "--json")
    answered = json.loads(out)
    assert status == 0
    assert answered["counts"] == {"ADDED": 0, "SAME": 1, "BETTER": 0, "WORSE": 0, "WON": 0, "LOST": 0}
    assert answered["other_environments"] == []


def test_an_export_leaves_out_what_can_not_be_relied_on_and_says_so(tmp_path: Path, run: Run) -> None:
    put(tmp_path / "cache", a_choice(), a_choice(shape(2, 3)))
    bad = a_store(tmp_path / "cache").path_of(a_choice().key)
    bad.write_text("damaged")
    status, out, err = run("cache", "export", tmp_path / "bundle")
    assert status == 1
    assert "Exported 1 record" in out
    assert f"{bad} is left out because its first line is not the header of a record" in err
    status, out, _ = run("cache", "export", tmp_path / "bundle", "--json")
    assert status == 1
    assert [each["path"] for each in json.loads(out)["unreadable"]] == [str(bad)]


def test_an_import_lists_conflicts_and_what_stays(tmp_path: Path, run: Run) -> None:
    other = shape(7, 3)
    put(tmp_path / "a", a_choice(pairs=40), a_choice(other, winner="no-spinning", pairs=10))
    put(tmp_path / "cache", a_choice(winner="no-spinning", ratio=0.8, pairs=20), a_choice(other, pairs=30))
    run("cache", "export", tmp_path / "bundle", "--cache", tmp_path / "a")
    status, out, err = run("cache", "import", tmp_path / "bundle")
    assert (status, err) == (1, "")
    assert "Imported 1 of 2 records" in out
    assert "  1 with better evidence for another winner" in out
    assert "  1 with no better evidence for another winner" in out
    rows = [line.split()[1:] for line in out.splitlines() if line.endswith("1 min")]
    assert sorted(rows) == sorted(
        [
            ["bundle's", "20", "40", "1", "min", "1", "min"],
            ["the", "one", "here", "30", "10", "1", "min", "1", "min"],
        ]
    )
    assert (
        "here no-spinning 1.25x, in the bundle threads-1 2.00x, for detector 01234567: x f4[1x3] -> y" in out
    )
    status, out, _ = run("cache", "import", tmp_path / "bundle", "--json")
    merged = {each["fate"]: each for each in json.loads(out)["merged"]}
    assert status == 1
    assert merged["LOST"]["here"] == {"winner": "threads-1", "ratio": 0.5, "pairs": 30}
    assert merged["SAME"]["pairs"] == 40


def test_records_of_another_environment_are_named_by_the_first_field_that_differs(
    tmp_path: Path, run: Run
) -> None:
    version = {"ONNX Runtime package": "onnxruntime 1.99.0", "ONNX Runtime version": "1.99.0"}
    put(
        tmp_path / "a",
        a_choice(environment=other_environment(**version)),
        a_choice(shape(2, 3), environment=other_environment(**version)),
        a_choice(shape(3, 3), context="shared with a trainer"),
        a_choice(shape(4, 3), age_s=8 * 86400),
    )
    run("cache", "export", tmp_path / "bundle", "--cache", tmp_path / "a")
    status, out, err = run("cache", "import", tmp_path / "bundle")
    assert (status, err) == (0, "")
    package = dict(zip(*[iter(_parts(runtime_environment().fingerprint))] * 2, strict=True))[
        "ONNX Runtime package"
    ]
    assert "Of another environment, so that they never serve here:" in out
    assert f"  2 records: ONNX Runtime package: {package} here, onnxruntime 1.99.0 there" in out
    assert "  1 record: execution context: isolated-single-device here, shared with a trainer there" in out
    assert "1 record not of the last 7 days: only a policy with a longer ttl_s uses them." in out
    assert len(held(a_store(tmp_path / "cache"))) == 4
    assert "no" in run("cache", "list")[1]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("export OUT", "there is no cache directory"),
        ("import MISSING", "can't be read: No such file or directory"),
        ("import TEXT", "can't be used because its first line is not the header of a bundle"),
        ("import DIR", "can't be read: Is a directory"),
        ("export DIR --cache FULL", "is no file; name one for the bundle"),
        ("export OUT --cache EMPTY", "there is nothing to export: no choices are stored in"),
        ("import BUNDLE --cache OPEN", "the cache can't be used because"),
        ("import BUNDLE --cache TEXT/x", "a part of its path is a file"),
        ("diff MISSING FULL", "there is no cache directory or bundle"),
        ("diff TEXT FULL", "can't be used because its first line is not the header of a bundle"),
        ("verify TEXT --cache FULL", "can't be loaded"),
        ("verify MISSING --cache FULL", "does not exist"),
        ("verify --fill x=1 --cache FULL", "--fill is for validating winners; name their models"),
        ("verify MODEL --fill z=1 --cache FULL", "no model given has an input 'z'"),
        ("verify MODEL --traffic MISSING --cache FULL", "there is no recorded traffic in"),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_changes_nothing(
    command: str, sentence: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "TEXT").write_text("text")
    (tmp_path / "DIR").mkdir()
    (tmp_path / "OPEN").mkdir()
    (tmp_path / "OPEN").chmod(0o777)
    (tmp_path / "EMPTY").mkdir()
    onnx.save_model(graphs.mlp(), tmp_path / "MODEL")
    put(tmp_path / "FULL", a_choice())
    run("cache", "export", tmp_path / "BUNDLE", "--cache", tmp_path / "FULL")
    before = sorted(tmp_path.rglob("*"))
    words = [str(tmp_path / word) if word.split("/")[0].isupper() else word for word in command.split()]
    status, out, err = run("cache", *words)
    assert (status, out) == (2, "")
    assert sentence in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_bundle_imports_nothing(tmp_path: Path, run: Run) -> None:
    put(tmp_path / "a", a_choice(), a_choice(shape(2, 3)))
    bundle = tmp_path / "bundle"
    run("cache", "export", bundle, "--cache", tmp_path / "a")
    bundle.write_bytes(bundle.read_bytes()[:-2])
    status, _, err = run("cache", "import", bundle)
    assert status == 2
    assert "its checksum is wrong: the file was damaged, cut short or edited" in err
    assert not (tmp_path / "cache").exists()


# --- diff -----------------------------------------------------------------------------------------


def test_an_upgrade_is_compared_question_by_question(tmp_path: Path, run: Run) -> None:
    new = other_environment(**{"ONNX Runtime version": "9.9.9"})
    put(
        tmp_path / "before",
        a_choice(),
        a_choice(shape(2, 3)),
        a_choice(shape(3, 3)),
        a_choice(shape(4, 3)),
        a_choice(shape(5, 3)),
    )
    put(
        tmp_path / "after",
        a_choice(environment=new),
        a_choice(shape(2, 3), environment=new, winner="reference"),
        a_choice(shape(3, 3), environment=new, reference_ns=6_000_000),
        a_choice(shape(4, 3), environment=new, names=("reference", "threads-1", "openvino")),
        a_choice(shape(6, 3), environment=new),
    )
    status, out, err = run("cache", "diff", tmp_path / "before", tmp_path / "after")
    assert (status, err) == (1, "")
    lines = out.splitlines()
    below = {
        line.strip().partition(" for ")[2]: lines[number - 1]
        for number, line in enumerate(lines)
        if " for " in line
    }
    shown = {
        key.partition("[")[2].partition("]")[0]: row.split(maxsplit=1)[1]
        for key, row in below.items()
        if "[" in key
    }
    assert set(shown) == {"2x3", "3x3", "4x3", "5x3", "6x3"}
    assert " ".join(shown["2x3"].split()) == "changed 2.00x->1.00x * 3.00 ms->3.00 ms 1.50 ms->3.00 ms *"
    assert " ".join(shown["3x3"].split()) == "same 2.00x->2.00x 3.00 ms->6.00 ms * 1.50 ms->3.00 ms *"
    assert shown["5x3"].startswith("gone")
    assert shown["6x3"].startswith("new")
    version = ort.__version__
    assert (
        f"threads-1 -> reference for detector 01234567: x f4[2x3] -> y; ONNX Runtime version: {version}"
        in out
    )
    assert "new candidates: openvino; candidates gone: no-spinning" in " ".join(out.split())
    assert out.endswith(
        "Of 6 questions: 1 same, 1 choice changed, 2 speed moved, 1 candidates changed, 1 appeared, 1 vanished.\n"
    )


def test_what_changed_stays_on_one_line_of_a_narrow_terminal(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    put(tmp_path / "before", a_choice())
    put(tmp_path / "after", a_choice(winner="reference", reference_ns=6_000_000))
    status, out, _ = run("cache", "diff", tmp_path / "before", tmp_path / "after")
    assert status == 1
    assert out.splitlines()[0].endswith("selected")
    assert out.splitlines()[1].rstrip().endswith("ms *")


def test_the_same_choices_are_no_difference_in_a_directory_or_a_bundle(tmp_path: Path, run: Run) -> None:
    put(tmp_path / "cache", a_choice(), a_choice(shape(2, 3)))
    run("cache", "export", tmp_path / "bundle")
    status, out, err = run("cache", "diff", tmp_path / "bundle", tmp_path / "cache")
    assert (status, out, err) == (0, "The same choices for all 2 questions.\n", "")
    status, out, _ = run("cache", "diff", tmp_path / "bundle", tmp_path / "cache", "--json")
    assert (status, json.loads(out)["changes"]) == (0, [])


def test_a_cache_that_holds_both_environments_is_compared_with_the_old_bundle(
    tmp_path: Path, run: Run
) -> None:
    new = other_environment(**{"ONNX Runtime version": "9.9.9"})
    old = put(tmp_path / "old", a_choice())
    put(tmp_path / "cache", a_choice(environment=new, winner="no-spinning"), *held(a_store(old)).values())
    status, out, _ = run("cache", "diff", old, tmp_path / "cache", "--json")
    [change] = json.loads(out)["changes"]
    assert status == 1
    assert (change["before"]["winner"], change["after"]["winner"]) == ("threads-1", "no-spinning")
    assert change["environment"]["field"] == "ONNX Runtime version"
    assert change["environment"]["other"] == "9.9.9"


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"ratio": 0.51}, ()),
        ({"ratio": 0.58}, ("ratio", "selected")),
        ({"reference_ns": 3_100_000}, ()),
        ({"reference_ns": 3_500_000}, ("reference", "selected")),
    ],
)
def test_a_speed_has_moved_only_where_it_is_beyond_the_noise(
    changes: dict[str, Any], moved: tuple[str, ...]
) -> None:
    [change] = compare_choices([a_choice()], [a_choice(**changes)])
    assert tuple(sorted(change.moved)) == moved
    assert change.differs is bool(moved)


def test_a_recipe_that_changed_under_its_name_is_told() -> None:
    [change] = compare_choices([a_choice()], [a_choice(revision="2")])
    assert change.choice
    assert change.altered == ("reference", "threads-1", "no-spinning")


def test_every_key_can_be_taken_apart_again() -> None:
    key = a_choice().key
    parts = parts_of_key(key)
    assert parts is not None
    assert cache_key(parts.problem, parts.candidates, parts.reference, StackPolicy()) == key
    policy = StackPolicy(expected_calls=7, concurrency=3, workspace_limit=5, confidence=0.95)
    assert StackPolicy.of_accuracy_key(policy.accuracy_key()) == policy
    for text in ("", "a key", key[:-1], fields(("ort_stacktune/key/9", *_parts(key)[1:]))):
        assert parts_of_key(text) is None


def test_long_fields_are_told_apart_by_what_only_one_has() -> None:
    flags = " ".join(f"flag{number}" for number in range(60))
    one = RuntimeEnvironment(fields(("processor features", flags)), True, "")
    other = RuntimeEnvironment(fields(("processor features", flags.replace("flag7 ", "amx "))), True, "")
    differs = difference(one, other)
    assert differs is not None
    assert differs.words("here", "there") == "processor features: flag7 only here, amx only there"
    assert difference(one, one) is None
    assert difference(one, RuntimeEnvironment("another make", True, "")) is not None


# --- verify ---------------------------------------------------------------------------------------


def decided(
    tmp_path: Path, *shapes: tuple[int, ...], base: onnx.ModelProto | None = None
) -> tuple[Path, Path]:
    """Has the command line's own session decide; returns the model and the cache."""
    model = tmp_path / "model.onnx"
    onnx.save_model(base or graphs.mlp(), model)
    directory = tmp_path / "cache"
    # One thread, so that more than one candidate of this small model can lose.
    session = TunedSession(str(model), providers=CPU, tuner=StackTuner(QUICK, directory))
    for each in shapes:
        session.tune({"x": floats(*each)})
    return model, directory


def put_a_winner(directory: Path, wrong: bool = False) -> Record:
    """Turns a stored choice into one of a candidate, as a search elsewhere might have found."""
    store = a_store(directory)
    [record] = [each for each in held(store).values() if "2x16" in each.report.workload]
    parts = parts_of_key(record.key)
    assert parts is not None
    chosen = next(each for each in parts.candidates if each.name == "threads-1")
    won = replace(
        record,
        winner=chosen.name,
        winner_revision=chosen.revision,
        ratio=0.5,
        report=replace(record.report, winner=chosen.name),
    )
    assert store.put(won)
    return won


def test_verify_validates_the_winners_of_the_models_given(tmp_path: Path, run: Run) -> None:
    model, directory = decided(tmp_path, (2, 16), (3, 16))
    won = put_a_winner(directory)
    put(directory, a_choice())
    status, out, err = run("cache", "verify", model)
    assert (status, err) == (0, "")
    assert f"3 of 3 records in {directory} are good." in out
    assert "threads-1 for" in out
    assert "threads-1 for detector 01234567: x f4[1x3] -> y; its model was not given" in out
    assert "Of 3 stored winners: " in out
    status, out, _ = run("cache", "verify", model, "--json")
    winners = {each["workload"]: each for each in json.loads(out)["winners"]}
    assert winners[won.report.workload]["finding"] == "HOLDS"
    assert winners[WORKLOAD]["finding"] == "NOT_ASKED"
    assert held(a_store(directory))[won.key] == won


def test_verify_drops_a_winner_that_fails_here(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, directory = decided(tmp_path, (2, 16))
    won = put_a_winner(directory)
    # Trials in this process, where their comparison can be made to fail for a winner that is right.
    monkeypatch.setattr("ort_stacktune.cli.verifying.ISOLATION", "inline")
    monkeypatch.setattr("ort_stacktune.ort.trials.compare", _compare_badly_after_the_live_session())
    status, out, err = run("cache", "verify", model)
    assert (status, err) == (1, "")
    assert "dropped" in out
    assert "the stored choice 'threads-1' did not validate in this process" in " ".join(out.split())
    assert out.endswith("Of 1 stored winners: 1 dropped.\n")
    assert won.key not in held(a_store(directory))


def _compare_badly_after_the_live_session() -> Any:
    from ort_stacktune.failures import FailureKind, TuneFailure
    from ort_stacktune.verify import compare

    calls: list[int] = []

    def compare_(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise TuneFailure(FailureKind.REJECTED, "output 'y' differs")
        return compare(*arguments)

    return compare_


def test_verify_says_what_it_can_not_ask_again(tmp_path: Path, run: Run) -> None:
    model, directory = tmp_path / "model.onnx", tmp_path / "cache"
    onnx.save_model(graphs.mlp(), model)
    tuner = StackTuner(QUICK, directory)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    TunedSession(str(model), options, providers=CPU, tuner=tuner).tune({"x": floats(2, 16)})
    recipe = SessionRecipe("mine", session_options={"intra_op_num_threads": 1})
    TunedSession(str(model), providers=CPU, candidates=[recipe], tuner=tuner).tune({"x": floats(3, 16)})
    status, out, _ = run("cache", "verify", model, "--json")
    reasons = [each["reason"] for each in json.loads(out)["winners"]]
    assert status == 1
    assert reasons == [
        "its session had other providers or options; see --providers and --threads",
        "its candidates are not those generated here: an application brought its own",
    ]
    status, out, _ = run("cache", "verify", model, "--threads", "1", "--json")
    found = [each["finding"] for each in json.loads(out)["winners"]]
    assert found[0] in ("HOLDS", "REFERENCE")
    assert found[1] == "NOT_VERIFIED"


def test_verify_takes_steering_values_from_the_signature_and_asks_for_other_integers(
    tmp_path: Path, run: Run
) -> None:
    model, directory = tmp_path / "model.onnx", tmp_path / "cache"
    onnx.save_model(graphs.branching(), model)
    session = TunedSession(str(model), providers=CPU, tuner=StackTuner(QUICK, directory))
    session.tune({"x": floats(3, 16), "mode": np.array(1)})
    status, out, err = run("cache", "verify", model)
    assert (status, err) == (0, "")
    assert "=1" in out
    other = tmp_path / "gather.onnx"
    onnx.save_model(graphs.gather_fails(), other)
    inputs = {meta.name: meta for meta in ort.InferenceSession(str(other), providers=CPU).get_inputs()}
    feed = {
        "x": floats(2, *[d if isinstance(d, int) else 2 for d in inputs["x"].shape[1:]]),
        "index": np.array([1]),
    }
    TunedSession(str(other), providers=CPU, tuner=StackTuner(QUICK, tmp_path / "b")).tune(feed)
    status, out, _ = run("cache", "verify", other, "--cache", tmp_path / "b", "--json")
    [winner] = json.loads(out)["winners"]
    assert winner["finding"] in ("HOLDS", "REFERENCE", "NOT_VERIFIED")
    if winner["finding"] == "NOT_VERIFIED":
        assert status == 1
        assert "pass --fill index=VALUE, or --inputs FILE.npz" in winner["reason"]
    np.savez(tmp_path / "in.npz", **feed)
    for option in (["--fill", "index=1"], ["--inputs", tmp_path / "in.npz"]):
        status, out, _ = run("cache", "verify", other, "--cache", tmp_path / "b", *option, "--json")
        assert json.loads(out)["winners"][0]["finding"] in ("HOLDS", "REFERENCE")
        assert status == 0


def test_verify_replays_a_binding_with_the_outputs_that_its_caller_brought(tmp_path: Path, run: Run) -> None:
    model, directory = tmp_path / "model.onnx", tmp_path / "cache"
    onnx.save_model(graphs.mlp(), model)
    session = TunedSession(str(model), providers=CPU, tuner=StackTuner(QUICK, directory))
    binding = session.io_binding()
    binding.bind_cpu_input("x", floats(2, 16))
    binding.bind_ortvalue_output(
        "y", ort.OrtValue.ortvalue_from_numpy(session.run(None, {"x": floats(2, 16)})[0])
    )
    session.run_with_iobinding(binding)
    assert len(held(a_store(directory))) == 2
    status, out, err = run("cache", "verify", model)
    assert (status, err) == (0, "")
    assert "via binding" in out
    assert "could not be verified" not in out


def test_the_devices_of_a_records_providers_decide_what_this_environment_is(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "cache", a_choice())
    asked = []
    real = runtime_environment

    def watched(*, providers: Any = None) -> RuntimeEnvironment:
        asked.append(list(providers))
        return real(providers=providers)

    monkeypatch.setattr("ort_stacktune.environment.runtime_environment", watched)
    assert run("cache", "list")[1].splitlines()[1].endswith("yes")
    assert asked == [[]]


def test_a_record_of_a_device_is_of_this_environment_where_that_device_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORT_STACKTUNE_DRIVER_TAG", "driver 7")
    forget_environment()
    try:
        there = runtime_environment(providers=["WebGpuExecutionProvider"])
        assert there.fingerprint != runtime_environment(providers=[]).fingerprint
        assert environment_like(there.fingerprint) == there
        assert difference_from_here(a_choice(environment=there.fingerprint)) is None
        monkeypatch.setenv("ORT_STACKTUNE_DRIVER_TAG", "driver 8")
        forget_environment()
        differs = difference_from_here(a_choice(environment=there.fingerprint))
        assert differs is not None
        assert differs.words("here", "there") == "driver tag: driver 8 here, driver 7 there"
    finally:
        forget_environment()
