"""Holds the floors of the package: imports point down only, and importing does nothing but import."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ort_stacktune

PACKAGE = "ort_stacktune"
ROOT = Path(ort_stacktune.__file__).parent

WORDS, RULES, SERVICES, CONTROLLER, COMPOSITION, EDGE = range(6)

# Every module or package of ours and its floor. A new one has to be given its place here.
FLOORS = {
    "failures": WORDS,
    "identity": WORDS,
    "policy": WORDS,
    "vocabulary": WORDS,
    "contender": RULES,
    "search": RULES,
    "signature": RULES,
    "statistics": RULES,
    "verify": RULES,
    "candidates": SERVICES,
    "environment": SERVICES,
    "feeds": SERVICES,
    "isolation": SERVICES,
    "machine": SERVICES,
    "nvidia": SERVICES,
    "ort": SERVICES,
    "store": SERVICES,
    "traffic": SERVICES,
    "deferred": CONTROLLER,
    "installed": CONTROLLER,
    "question": CONTROLLER,
    "tuner": CONTROLLER,
    "bindings": COMPOSITION,
    "prewarm": COMPOSITION,
    "reading": COMPOSITION,
    "recording": COMPOSITION,
    "reference": COMPOSITION,
    "replay": COMPOSITION,
    "routes": COMPOSITION,
    "serving": COMPOSITION,
    "session": COMPOSITION,
    "tunables": COMPOSITION,
    "": EDGE,
    "__main__": EDGE,
    "cli": EDGE,
    "report": EDGE,
}

# Services know one another by these modules only.
BETWEEN_SERVICES = {
    ("candidates", "ort.provider_options"),
    ("candidates", "ort.provider_table"),
    ("candidates", "ort.recipes"),
    ("environment", "machine"),
    ("environment", "nvidia"),
    ("environment", "ort.loader"),
    ("feeds", "ort.graph"),
    ("isolation", "environment"),
    ("isolation", "machine"),
    ("isolation", "ort.callers"),
    ("isolation", "ort.devices"),
    ("isolation", "ort.ep_caches"),
    ("isolation", "ort.loader"),
    ("isolation", "ort.model"),
    ("isolation", "ort.provider_options"),
    ("isolation", "ort.recipes"),
    ("isolation", "ort.request"),
    ("isolation", "ort.sessions"),
    ("isolation", "ort.trials"),
    ("isolation", "store.checks"),
    ("nvidia", "machine"),
    ("nvidia", "ort.loader"),
    ("ort", "machine"),
    ("traffic", "store.checks"),
    ("traffic", "store.files"),
}

# The controller keeps records, has calls counted, and knows of no other service.
SERVICES_OF_THE_CONTROLLER = {"store", "traffic"}

# What reaches the clock, the disk, other threads or other processes.
IMPURE = {"io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "threading", "time"}


def _read() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), ast.parse(path.read_text())


MODULES = dict(_read())


def top(module: str) -> str:
    return module.partition(".")[0]


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields every import anywhere in a module, those for type checkers included: module and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can follow them"
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((str(word.value), "") for word in node.args if isinstance(word, ast.Constant))


def ours(tree: ast.Module) -> Iterator[str]:
    """Yields the modules of ours that a module imports, without the package's name."""
    for module, name in imported(tree):
        if module == PACKAGE:
            yield name if name in MODULES else ""
        elif module.startswith(f"{PACKAGE}."):
            inner = module.removeprefix(f"{PACKAGE}.")
            yield f"{inner}.{name}" if f"{inner}.{name}" in MODULES else inner


def test_every_module_has_a_floor() -> None:
    assert {top(name) for name in MODULES} - set(FLOORS) == set()


def test_imports_point_down_only() -> None:
    up = [
        f"{name} imports {other}"
        for name, tree in MODULES.items()
        for other in ours(tree)
        # The package itself names everything below, and a person's commands name the package.
        if FLOORS[top(other)] > FLOORS[top(name)]
    ]
    assert up == []


def test_services_do_not_know_one_anothers_insides() -> None:
    strange = [
        f"{name} imports {other}"
        for name, tree in MODULES.items()
        for other in ours(tree)
        if FLOORS[top(name)] == FLOORS[top(other)] == SERVICES
        and top(name) != top(other)
        and (top(name), other) not in BETWEEN_SERVICES
    ]
    assert strange == []


def test_the_controller_knows_no_session_and_no_device() -> None:
    strange = [
        f"{name} imports {other}"
        for name, tree in MODULES.items()
        for other in ours(tree)
        if FLOORS[top(name)] == CONTROLLER and FLOORS[top(other)] == SERVICES
        if other not in SERVICES_OF_THE_CONTROLLER
    ]
    assert strange == []


def test_rules_and_words_reach_neither_clock_nor_disk_nor_threads() -> None:
    strange = [
        f"{name} imports {module}"
        for name, tree in MODULES.items()
        if FLOORS[top(name)] in (WORDS, RULES)
        for module, _ in imported(tree)
        if top(module) in IMPURE
    ]
    assert strange == []


def test_only_sessions_candidates_and_their_composition_import_onnx_runtime() -> None:
    allowed = {name for name, floor in FLOORS.items() if floor == COMPOSITION} | {"ort", "candidates"}
    strange = [
        f"{name} imports {module}"
        for name, tree in MODULES.items()
        for module, _ in imported(tree)
        if top(module) == "onnxruntime" and top(name) not in allowed
    ]
    assert strange == []


def test_only_what_reads_models_imports_onnx() -> None:
    strange = [
        f"{name} imports {module}"
        for name, tree in MODULES.items()
        for module, _ in imported(tree)
        if top(module) == "onnx" and top(name) not in ("ort", "candidates")
    ]
    assert strange == []


# Runs in an interpreter of its own. It reports what the package itself does while it is imported: files
# opened, directories listed, processes started, environment variables looked up and clocks read.
WATCH = """
import importlib, json, os, sys, time

import numpy, xxhash
for name in json.loads(sys.argv[2]):
    importlib.import_module(name)

root = sys.argv[1] + os.sep
found = []
STDLIB = ("os.py", "<frozen os>", "_collections_abc.py", "<frozen _collections_abc>", "pathlib.py")

def ours(frame, *passing):
    while frame is not None and frame.f_code.co_filename.endswith(passing):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(root)

def audit(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.fsdecode(arguments[0])
        if not path.startswith((root, sys.base_prefix, sys.prefix)):
            found.append(f"opens {path}")
    elif event in ("os.listdir", "os.scandir", "subprocess.Popen", "socket.connect", "os.putenv"):
        if ours(sys._getframe(1), *STDLIB):
            found.append(f"{event} {arguments!r:.80}")

class Watched(type(os.environ)):
    def __init__(self, real):
        self.__dict__.update(real.__dict__)

    def __getitem__(self, key):
        if ours(sys._getframe(1), *STDLIB):
            found.append(f"reads the environment variable {key}")
        return super().__getitem__(key)

def watched(name, real):
    def read():
        if ours(sys._getframe(1)):
            found.append(f"reads {name}")
        return real()
    return read

for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"):
    setattr(time, name, watched(name, getattr(time, name)))
os.environ = Watched(os.environ)
sys.addaudithook(audit)
for name in json.loads(sys.argv[3]):
    importlib.import_module(name)
print(json.dumps({"found": found, "loaded": sorted(sys.modules)}))
"""


def _import_afresh(names: list[str], after: list[str]) -> tuple[list[str], set[str]]:
    """Imports modules in a process of its own; returns what they did to the world, and what was loaded."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(ROOT), json.dumps(after), json.dumps(names)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT.parent,
    )
    answer = json.loads(done.stdout)
    return answer["found"], set(answer["loaded"])


def _modules_of(*floors: int) -> list[str]:
    return [f"{PACKAGE}.{name}" for name in MODULES if name and FLOORS[top(name)] in floors]


def test_importing_the_package_is_cheap_and_touches_nothing() -> None:
    found, loaded = _import_afresh([PACKAGE], [])
    assert found == []
    assert {"onnx", "onnxruntime", "rich", "google.protobuf", "ml_dtypes"} & loaded == set()


def test_no_module_below_the_composition_touches_anything_or_loads_onnx_runtime_when_imported() -> None:
    found, loaded = _import_afresh(_modules_of(WORDS, RULES, SERVICES, CONTROLLER), ["onnx"])
    assert found == []
    assert "onnxruntime" not in loaded


def test_modules_that_load_onnx_runtime_touch_nothing_else_when_imported() -> None:
    names = [name for name in _modules_of(COMPOSITION, EDGE) if not name.endswith("__main__")]
    # What others read when they are imported is theirs. A session class can't be defined without its base,
    # so the first of these modules loads ONNX Runtime and looks which build there is.
    others = ["onnx", "rich.console", "rich.table", "rich.progress", f"{PACKAGE}.session"]
    found, _ = _import_afresh([name for name in names if name != f"{PACKAGE}.session"], others)
    assert found == []
