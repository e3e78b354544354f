from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from ort_stacktune.ort.loader import installed_builds, onnxruntime

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(np.__file__).resolve().parent.parent


def distribution(site: Path, name: str, release: str, files: str | None) -> None:
    """Puts the metadata of an installed distribution into a site directory, without its files."""
    folder = site / f"{name.replace('-', '_')}-{release}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    if files is not None:
        (folder / "RECORD").write_text(f"{files},,\n")


class Environment:
    """A real virtual environment with all that is installed here but ONNX Runtime."""

    def __init__(self, home: Path) -> None:
        venv.create(home, with_pip=False, symlinks=True)
        self._python = home / "bin" / "python"
        self.site = next(home.glob("lib/python*/site-packages"))
        for entry in HERE.iterdir():
            if not entry.name.lower().startswith("onnxruntime") and not (self.site / entry.name).exists():
                (self.site / entry.name).symlink_to(entry)

    def with_module(self, text: str) -> None:
        (self.site / "onnxruntime").mkdir()
        (self.site / "onnxruntime" / "__init__.py").write_text(text)

    def says(self, code: str) -> str:
        """Runs code there and returns what it printed, or the last line of its traceback."""
        done = subprocess.run(
            [self._python, "-c", code],
            cwd=self.site,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]

    def complaint(self) -> str:
        said = self.says("from ort_stacktune.ort.loader import onnxruntime; onnxruntime()")
        assert said.startswith("ImportError: ")
        return said


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    if sys.platform == "win32":
        pytest.skip("builds its environment of symbolic links")
    return Environment(tmp_path / "environment")


def test_the_installed_build_is_found_and_imported_once() -> None:
    ((name, release),) = installed_builds()
    assert release == version(name)
    assert onnxruntime() is onnxruntime()
    assert onnxruntime() is sys.modules["onnxruntime"]


def test_importing_the_package_loads_no_onnx_runtime() -> None:
    code = (
        "import sys, ort_stacktune, ort_stacktune.ort.loader, ort_stacktune.environment\n"
        "assert 'onnxruntime' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_without_onnx_runtime_the_package_imports_and_says_what_to_install(environment: Environment) -> None:
    assert environment.says("import ort_stacktune; print(ort_stacktune.StackPolicy().samples)") == "7"
    said = environment.complaint()
    assert "not installed" in said
    for extra, purpose in (("cpu", "any machine"), ("openvino", "Intel"), ("gpu", "NVIDIA")):
        assert f"ort-stacktune[{extra}]" in said
        assert purpose in said
    said = environment.says("from ort_stacktune import TunedSession")
    assert said.startswith("ImportError: ONNX Runtime is not installed")


def test_two_builds_are_named_with_the_way_out(environment: Environment) -> None:
    environment.with_module("class InferenceSession: ...")
    distribution(environment.site, "onnxruntime", "1.32.0", "onnxruntime/__init__.py")
    distribution(environment.site, "ONNXRuntime-GPU", "1.31.1", None)
    said = environment.complaint()
    assert "onnxruntime 1.32.0, ONNXRuntime-GPU 1.31.1" in said
    assert "remove all but one, then reinstall the one that stays" in said


def test_a_plugin_beside_a_build_is_no_second_build(environment: Environment) -> None:
    environment.with_module("class InferenceSession: ...")
    distribution(environment.site, "onnxruntime", "1.32.0", "onnxruntime/__init__.py")
    distribution(environment.site, "onnxruntime-qnn", "2.7.0", "onnxruntime_qnn/__init__.py")
    code = "from ort_stacktune.ort.loader import *; onnxruntime(); print(installed_builds())"
    assert environment.says(code) == "(('onnxruntime', '1.32.0'),)"


def test_an_empty_module_is_to_be_reinstalled(environment: Environment) -> None:
    (environment.site / "onnxruntime" / "capi").mkdir(parents=True)
    distribution(environment.site, "onnxruntime-openvino", "1.24.1", "onnxruntime/__init__.py")
    said = environment.complaint()
    assert "no InferenceSession" in said
    assert "pip install --force-reinstall onnxruntime-openvino==1.24.1" in said


def test_an_empty_module_without_a_distribution_is_to_be_removed(environment: Environment) -> None:
    (environment.site / "onnxruntime" / "capi").mkdir(parents=True)
    said = environment.complaint()
    assert "remove what is left" in said
    assert 'pip install "ort-stacktune[cpu]"' in said


def test_a_build_whose_libraries_are_missing_says_which_and_is_to_be_reinstalled(
    environment: Environment,
) -> None:
    environment.with_module("raise ImportError('libcublas.so.13: cannot open shared object file')")
    distribution(environment.site, "onnxruntime-gpu", "1.31.1", "onnxruntime/__init__.py")
    said = environment.complaint()
    assert "libcublas.so.13: cannot open shared object file" in said
    assert "reinstall onnxruntime-gpu 1.31.1" in said


def test_files_of_a_distribution_that_are_gone_are_to_be_reinstalled(environment: Environment) -> None:
    distribution(environment.site, "onnxruntime", "1.32.0", "onnxruntime/__init__.py")
    assert "reinstall onnxruntime 1.32.0" in environment.complaint()


def test_half_removed_metadata_is_no_build(environment: Environment) -> None:
    (environment.site / "onnxruntime_gpu-1.31.1.dist-info").mkdir()
    assert "not installed" in environment.complaint()


def test_after_a_repair_the_same_process_can_go_on(environment: Environment) -> None:
    code = (
        "import importlib, pathlib, ort_stacktune.ort.loader as loader\n"
        "try: loader.onnxruntime()\n"
        "except ImportError: pass\n"
        "home = pathlib.Path('onnxruntime'); home.mkdir()\n"
        "(home / '__init__.py').write_text('class InferenceSession: ...')\n"
        "importlib.invalidate_caches()\n"
        "print(loader.onnxruntime().InferenceSession.__name__)"
    )
    assert environment.says(code) == "InferenceSession"
