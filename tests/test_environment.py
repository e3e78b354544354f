from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ort_stacktune import environment, nvidia
from ort_stacktune.environment import (
    describe,
    forget_environment,
    runtime_environment,
)
from ort_stacktune.failures import FailureKind, TuneFailure
from ort_stacktune.identity import parse_fields
from ort_stacktune.machine import processor, usable_cores
from ort_stacktune.ort.loader import installed_builds, onnxruntime

ROOT = Path(__file__).resolve().parent.parent
HOST = ["CPUExecutionProvider"]
CUDA = "CUDAExecutionProvider"
WEBGPU = ["WebGpuExecutionProvider"]

X86 = """processor\t: {number}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R)  Xeon(R) Platinum 8481C
cpu MHz\t\t: {number}00.5
flags\t\t: {flags}

"""
ARM = """processor\t: {number}
BogoMIPS\t: 50.00
Features\t: fp asimd sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
CPU revision\t: 1

"""


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in os.environ:
        if name.startswith("ORT_STACKTUNE_"):
            monkeypatch.delenv(name)
    forget_environment()
    yield
    forget_environment()


def facts(providers: list[str]) -> dict[str, str]:
    """Returns the labels and texts in a fingerprint."""
    parts = parse_fields(runtime_environment(providers=providers).fingerprint)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def elsewhere(code: str, **variables: str) -> Any:
    """Runs code in another process and returns the JSON it prints."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from ort_stacktune.environment import *; from ort_stacktune.machine import usable_cores\n"
            f"import json, os\n{code}",
        ],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


# --- the fingerprint ------------------------------------------------------------------------------


def test_the_fingerprint_holds_the_build_the_processor_and_the_cores() -> None:
    found = facts(HOST)
    ((name, version),) = installed_builds()
    assert found["ONNX Runtime package"] == f"{name} {version}"
    assert found["ONNX Runtime build"] == onnxruntime().get_build_info()
    assert found["execution providers"].split(", ") == onnxruntime().get_available_providers()
    assert "onnxruntime_pybind11_state" in found["libraries"]
    for label in ("system", "processor", "processor features", "logical cores", "cores by affinity"):
        assert found[label]
    assert found["cores by affinity"] == str(usable_cores().affinity)


def test_the_same_question_is_answered_by_the_same_object() -> None:
    everything = onnxruntime().get_available_providers()
    assert runtime_environment() is runtime_environment(providers=everything)
    assert runtime_environment() is runtime_environment(providers=tuple(reversed(everything)))


def test_a_machine_without_devices_is_known_well_enough_to_store_choices() -> None:
    known = runtime_environment(providers=HOST)
    assert known.persistent
    assert known.execution_context == "isolated-single-device"


def test_another_process_gets_the_same_fingerprint() -> None:
    there = elsewhere(
        "print(json.dumps(runtime_environment(providers=['CPUExecutionProvider']).fingerprint))"
    )
    assert there == runtime_environment(providers=HOST).fingerprint


def test_an_unknown_driver_holds_for_one_process_only() -> None:
    code = (
        "known = runtime_environment(providers=['WebGpuExecutionProvider'])\n"
        "assert known is runtime_environment(providers=['WebGpuExecutionProvider'])\n"
        "print(json.dumps([known.fingerprint, known.persistent]))"
    )
    (first, stored), (second, _) = elsewhere(code), elsewhere(code)
    assert not stored
    assert first != second
    assert parse_fields(first)[:-1] == parse_fields(second)[:-1]


@pytest.mark.parametrize("name", ["Dml", "CoreML", "ROCM", "MIGraphX", "QNN", "CANN", "SomebodysPlugin"])
def test_the_driver_of_other_devices_is_unknown(name: str) -> None:
    assert not runtime_environment(providers=[*HOST, f"{name}ExecutionProvider"]).persistent


def test_a_driver_tag_supplies_the_identity_of_an_unknown_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = set()
    for tag in ("mesa 25.1", "mesa 25.2"):
        monkeypatch.setenv("ORT_STACKTUNE_DRIVER_TAG", tag)
        forget_environment()
        known = runtime_environment(providers=WEBGPU)
        assert known.persistent
        fingerprints.add(known.fingerprint)
    assert len(fingerprints) == 2


def test_a_build_that_does_not_name_its_commit_is_unknown_unless_tagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nameless = "ORT Build Info: git-branch=, git-commit-id=, build type=Release"
    monkeypatch.setattr(onnxruntime(), "get_build_info", lambda: nameless)
    assert not runtime_environment(providers=HOST).persistent
    assert "ORT_STACKTUNE_BUILD_TAG" in describe(providers=HOST)["choices can be stored"]
    monkeypatch.setenv("ORT_STACKTUNE_BUILD_TAG", "built here, 5")
    forget_environment()
    assert runtime_environment(providers=HOST).persistent
    assert facts(HOST)["build tag"] == "built here, 5"
    monkeypatch.delenv("ORT_STACKTUNE_BUILD_TAG")
    monkeypatch.delattr(onnxruntime(), "get_build_info")
    forget_environment()
    assert facts(HOST)["ONNX Runtime build"] == "unknown"


def test_tags_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_STACKTUNE_CONTEXT_TAG", "shared with the renderer")
    assert runtime_environment(providers=HOST).execution_context == "shared with the renderer"
    monkeypatch.setenv("ORT_STACKTUNE_CONTEXT_TAG", "something else")
    monkeypatch.setenv("ORT_STACKTUNE_DRIVER_TAG", "too late")
    later = runtime_environment(providers=WEBGPU)
    assert later.execution_context == "shared with the renderer"
    assert not later.persistent


def test_variables_that_change_the_code_change_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = runtime_environment(providers=HOST).fingerprint
    names = (
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS",
        "ONEDNN_MAX_CPU_ISA",
        "ORT_LOAD_CONFIG_FROM_MODEL",
        "OV_CPU_CAPS",
    )
    for name in names:
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            forget_environment()
            assert facts(HOST)[name] == "1"
    forget_environment()
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert runtime_environment(providers=HOST).fingerprint == plain


@pytest.mark.skipif(sys.platform == "win32", reason="bytes that are no text occur in POSIX variables only")
def test_a_variable_that_is_no_text_is_no_error() -> None:
    os.environb[b"OMP_NUM_THREADS"] = b"\xff"
    try:
        assert facts(HOST)["OMP_NUM_THREADS"]
    finally:
        del os.environb[b"OMP_NUM_THREADS"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity to set")
def test_fewer_cores_are_another_machine() -> None:
    code = (
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "parts = runtime_environment(providers=['CPUExecutionProvider']).fingerprint\n"
        "print(json.dumps([parts, usable_cores().affinity, usable_cores().count]))"
    )
    fingerprint, affinity, count = elsewhere(code)
    assert (affinity, count) == (1, 1)
    if usable_cores().affinity > 1:
        assert fingerprint != runtime_environment(providers=HOST).fingerprint


def test_threads_that_ask_at_once_get_one_answer() -> None:
    barrier = threading.Barrier(8)
    answers = []

    def ask() -> None:
        barrier.wait()
        answers.append(runtime_environment(providers=WEBGPU))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(answer) for answer in answers}) == 1


def test_what_is_remembered_is_bounded() -> None:
    for number in range(200):
        runtime_environment(providers=[f"Provider{number}"])
    assert len(environment._probed) <= 64


@pytest.mark.parametrize("providers", [CUDA, [(CUDA, {})], [None]])
def test_anything_but_names_of_providers_is_bad_input(providers: Any) -> None:
    with pytest.raises(TuneFailure, match="expected a list of execution providers' names") as caught:
        runtime_environment(providers=providers)
    assert caught.value.kind is FailureKind.INVALID_INPUT


def test_the_description_is_text_and_says_what_to_do_about_gaps() -> None:
    told = describe(providers=HOST)
    assert next(iter(told)) == "ONNX Runtime package"
    assert told["usable cores"] == str(usable_cores().count)
    assert told["choices can be stored"] == "yes"
    told = describe(providers=WEBGPU)
    assert told["choices can be stored"] == (
        "no: the driver behind WebGpuExecutionProvider can't be read; set ORT_STACKTUNE_DRIVER_TAG to name it"
    )


# --- the processor --------------------------------------------------------------------------------


def test_the_processor_is_told_by_model_and_features_and_not_by_its_clock(tmp_path: Path) -> None:
    seen = {}
    for name, flags in {"a": "fpu avx2 amx", "b": "amx fpu avx2", "c": "fpu avx2"}.items():
        text = "".join(X86.format(number=number, flags=flags) for number in range(3))
        write(tmp_path / name, "proc/cpuinfo", text)
        seen[name] = processor(tmp_path / name)
    assert "model name Intel(R) Xeon(R) Platinum 8481C" in seen["a"][0]
    assert seen["a"] == seen["b"]
    assert seen["a"][0] == seen["c"][0]
    assert seen["a"][1] != seen["c"][1]
    assert seen["a"][1].startswith("3 flags, digest ")


def test_every_kind_of_core_belongs_to_the_processor(tmp_path: Path) -> None:
    parts = ("0xd05", "0xd41", "0xd05")
    write(tmp_path, "proc/cpuinfo", "".join(ARM.format(number=n, part=part) for n, part in enumerate(parts)))
    assert "CPU part 0xd05 / 0xd41" in processor(tmp_path)[0]


@pytest.mark.parametrize("text", ["", "vendor_id\t: GenuineIntel\nmodel name\t: unknown\nflags\t: fpu\n"])
def test_a_processor_without_a_model_is_unknown(tmp_path: Path, text: str) -> None:
    write(tmp_path, "proc/cpuinfo", text)
    known = environment._machine_facts(tmp_path)
    assert dict(known.entries)["processor"] == "unknown"
    assert known.gaps == ("the processor's model can't be read",)


# --- cores ----------------------------------------------------------------------------------------

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    budget = usable_cores(root=tmp_path)
    assert budget.quota is None
    assert budget.count == budget.affinity >= 1


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({"": "max 100000", "a": "max 100000", "a/b": "150000 100000"}, 1.5),
        ({"a": "50000 100000", "a/b": "150000 100000"}, 0.5),
        ({"a": "150000 100000", "a/b": "max 100000"}, 1.5),
        ({"": "120000 100000", "a/b": "400000 100000"}, 1.2),
        ({"a/b": "max 100000"}, None),
        ({"c": "50000 100000"}, None),
        ({"a/b": ""}, None),
        ({"a/b": "100000 0"}, None),
    ],
)
def test_the_tightest_quota_on_the_way_up_wins(
    tmp_path: Path, limits: dict[str, str], quota: float | None
) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path, "proc/self/mountinfo", V2_MOUNT)
    for group, text in limits.items():
        write(tmp_path / "sys/fs/cgroup" / group, "cpu.max", f"{text}\n")
    budget = usable_cores(root=tmp_path)
    assert budget.quota == quota
    assert budget.count == max(1, min(budget.affinity, int(quota or budget.affinity)))


def test_quotas_of_version_1_are_found(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/a/b\n0::/elsewhere\n")
    write(tmp_path, "proc/self/mountinfo", V1_MOUNTS)
    for group, microseconds in {"a": "-1", "a/b": "250000"}.items():
        write(tmp_path / "sys/fs/cgroup/cpu,cpuacct" / group, "cpu.cfs_quota_us", f"{microseconds}\n")
        write(tmp_path / "sys/fs/cgroup/cpu,cpuacct" / group, "cpu.cfs_period_us", "100000\n")
    assert usable_cores(root=tmp_path).quota == 2.5


@pytest.mark.parametrize(
    ("mounted", "own", "place"),
    [
        ("/docker/4f", "/docker/4f", ""),
        ("/docker/4f", "/docker/4f/worker", "worker"),
        ("/", "/../other", ""),
        ("/docker/4f", "/docker/4f5/worker", ""),
    ],
)
def test_a_container_finds_its_quota_below_what_is_mounted_there(
    tmp_path: Path, mounted: str, own: str, place: str
) -> None:
    write(tmp_path, "proc/self/cgroup", f"0::{own}\n")
    write(tmp_path, "proc/self/mountinfo", V2_MOUNT.replace(" / ", f" {mounted} ", 1))
    write(tmp_path / "sys/fs/cgroup" / place, "cpu.max", "300000 100000\n")
    assert usable_cores(root=tmp_path).quota == 3.0


def test_mount_points_with_spaces_are_found(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "proc/self/mountinfo", V2_MOUNT.replace("/sys/fs/cgroup", r"/control\040groups"))
    write(tmp_path, "control groups/cpu.max", "300000 100000\n")
    assert usable_cores(root=tmp_path).quota == 3.0


def test_nonsense_where_the_control_groups_are_listed_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "\n::\nnonsense\n0::/a\n")
    write(tmp_path, "proc/self/mountinfo", "\n - \n1 2 3 - cgroup2\n" + V2_MOUNT)
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", "many few\n")
    assert usable_cores(root=tmp_path).quota is None


# --- devices --------------------------------------------------------------------------------------


def test_devices_count_only_where_their_provider_is_asked_for() -> None:
    assert not [label for label in facts(HOST) if "NVIDIA" in label]
    assert "NVIDIA driver" in facts([*HOST, CUDA])


def test_a_gap_says_what_lets_it_be_read_and_a_tag_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = [nvidia.Gap("CUDA runtime"), nvidia.Gap("NVIDIA driver", "install nvidia-ml-py")]
    monkeypatch.setattr(nvidia, "nvidia_facts", lambda *_: ([("NVIDIA driver", "unknown")], gaps))
    assert environment._device_facts([CUDA], "").gaps == (
        "the CUDA runtime can't be read; set ORT_STACKTUNE_DRIVER_TAG to name it",
        "the NVIDIA driver can't be read; install nvidia-ml-py, or set ORT_STACKTUNE_DRIVER_TAG to name it",
    )
    tagged = environment._device_facts([CUDA], "580 on H200")
    assert tagged.gaps == ()
    assert dict(tagged.entries)["driver tag"] == "580 on H200"
