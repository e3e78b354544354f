"""Brings SwiftShader, a Vulkan device in software, so that the WebGPU provider runs without a GPU.

It is taken out of Debian's package `chromium-common`, without installing that. Prints the path for
`VK_ICD_FILENAMES`. Where it can't be had, says why on standard error and ends with status 3.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "chromium-common"
NEEDED = ("vk_swiftshader_icd.json", "libvk_swiftshader.so", "libvulkan.so.1")
CAN_NOT_BE_HAD = 3


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=Path(".swiftshader"), help="folder to bring it into")
    into = parser.parse_args().into.resolve()
    description = into / NEEDED[0]
    if not description.is_file():
        try:
            bring(into)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"SwiftShader can't be had: {in_words(error)}", file=sys.stderr)
            return CAN_NOT_BE_HAD
    print(description)
    return 0


def bring(into: Path) -> None:
    """Downloads the package and puts the files of SwiftShader into a folder, all of them or none.

    Raises:
        OSError: This is no such system, or a tool is missing.
        subprocess.SubprocessError: A tool failed.
    """
    if sys.platform != "linux" or not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise OSError(f"it comes from a package of Debian's, and {platform.system()} here has no apt-get")
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=".swiftshader-") as scratch:
        folder = Path(scratch)
        run(["apt-get", "download", PACKAGE], folder)
        archive = next(folder.glob(f"{PACKAGE}_*.deb"), None)
        if archive is None:
            raise OSError(f"apt-get brought no package {PACKAGE}")
        run(["dpkg-deb", "--extract", archive.name, "content"], folder)
        found = {path.name: path for path in folder.glob("content/**/*") if path.name in NEEDED}
        if NEEDED[0] not in found or NEEDED[1] not in found:
            raise OSError(f"the package {PACKAGE} of this release holds no SwiftShader")
        ready = folder / "ready"
        ready.mkdir()
        for path in found.values():
            path.rename(ready / path.name)
        shutil.rmtree(into, ignore_errors=True)
        ready.rename(into)


def run(command: list[str], folder: Path) -> None:
    """Runs a tool in a folder; what it says is part of the error where it fails."""
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=600)


def in_words(error: Exception) -> str:
    """Returns what went wrong in one line."""
    if isinstance(error, subprocess.CalledProcessError):
        last = (str(error.stderr).strip().splitlines() or ["no message"])[-1]
        return f"{' '.join(map(str, error.cmd))} failed ({last})"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
