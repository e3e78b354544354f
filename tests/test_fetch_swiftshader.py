from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent / "tools/fetch_swiftshader.py"


def fetch(into: Path, path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--into", str(into)]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


def test_without_the_tools_for_it_the_reason_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    done = fetch(tmp_path / "swiftshader", str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert "apt-get" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_is_told_in_the_words_of_the_tool(tmp_path: Path) -> None:
    for name in ("apt-get", "dpkg-deb"):
        script = tmp_path / name
        script.write_text("#!/bin/sh\necho 'E: there is no network' >&2\nexit 100\n")
        script.chmod(0o755)
    done = fetch(tmp_path / "into" / "swiftshader", f"{tmp_path}:/bin:/usr/bin")
    assert done.returncode == 3
    assert "there is no network" in done.stderr
    assert list((tmp_path / "into").iterdir()) == []


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    description = tmp_path / "vk_swiftshader_icd.json"
    description.write_text("{}")
    done = fetch(tmp_path, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"{description}\n")
