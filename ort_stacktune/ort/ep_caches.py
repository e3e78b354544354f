"""Owns what execution providers keep on disk: compiled blobs, engines and timing caches.

Left to themselves, such caches collide between models of the same structure and go stale after upgrades. So each
candidate of each model in each environment has a directory of its own. A trial fills a private one, which is
published whole, by rename; a session that serves only reads what was published. Must never hand out a directory
that somebody may still be writing to.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ort_stacktune.identity import fields, text_digest
from ort_stacktune.ort.recipes import Provider, SessionRecipe

_log = logging.getLogger("ort_stacktune")

_FOLDER = "ep-v1"
_ABOUT = "about.json"
_PRIVATE = ".private-"
_ABANDONED_AFTER_S = 86400.0

# Provider -> the options that make it keep files, with {} for the directory.
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "OpenVINOExecutionProvider": {"cache_dir": "{}"},
    "TensorrtExecutionProvider": {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "{}",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "{}",
    },
    "NvTensorRTRTXExecutionProvider": {"nv_runtime_cache_path": "{}"},
    "CoreMLExecutionProvider": {"ModelCacheDirectory": "{}"},
    "MIGraphXExecutionProvider": {"migraphx_model_cache_dir": "{}"},
}


@dataclass(frozen=True, slots=True)
class EpCache:
    """The directory of one candidate, for one session.

    Attributes:
        providers: The recipe's providers with the options that point at the directory.
        directory: Where they read and write.
        final: Where it is to be published; the same where it was published before.
    """

    providers: tuple[Provider, ...]
    directory: Path
    final: Path

    def publish(self) -> None:
        """Makes what was written available to later sessions, unless others were first."""
        if self.directory == self.final:
            return
        try:
            if any(path.name != _ABOUT for path in self.directory.iterdir()):
                # A rename onto a directory that is not empty fails: whoever came first stays.
                self.directory.rename(self.final)
        except OSError:
            pass
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes what was written and not published."""
        if self.directory != self.final:
            shutil.rmtree(self.directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class EpCaches:
    """The directories of a cache directory.

    Attributes:
        directory: The directory of stored choices; those of providers lie in a folder of their own in it.
        environment: Fingerprint of the machine and its software.
        read_only: Whether nothing may be written, so that only what was published is used.
    """

    directory: Path
    environment: str
    read_only: bool = False

    @property
    def has_any(self) -> bool:
        """Whether anything was ever kept here."""
        return (self.directory / _FOLDER).is_dir()

    def published(self, recipe: SessionRecipe, model_digest: str) -> EpCache | None:
        """Returns the published directory of a candidate, ``None`` where there is none."""
        final = self._final(recipe, model_digest)
        if not _keeps_files(recipe) or not final.is_dir():
            return None
        return EpCache(_pointing_at(recipe, final), final, final)

    def for_trial(self, recipe: SessionRecipe, model_digest: str) -> EpCache | None:
        """Returns the published directory, or a private one to fill; ``None`` where nothing can be kept."""
        found = self.published(recipe, model_digest)
        if found is not None or self.read_only or not _keeps_files(recipe):
            return found
        folder = self.directory / _FOLDER
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            private = Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=folder))
            about = {"model": model_digest, "environment": self.environment, "created_s": time.time()}
            (private / _ABOUT).write_text(json.dumps(about, indent=1) + "\n")
        except OSError as error:
            _log.warning("execution providers keep no files under %s: %s", folder, error.strerror or error)
            return None
        return EpCache(_pointing_at(recipe, private), private, self._final(recipe, model_digest))

    def forget(self, recipe: SessionRecipe, model_digest: str) -> None:
        """Removes what was published for a candidate, which has lost."""
        final = self._final(recipe, model_digest)
        if not self.read_only and final.is_dir():
            _remove(final)

    def _final(self, recipe: SessionRecipe, model_digest: str) -> Path:
        identity = fields((model_digest, recipe.revision, self.environment))
        return self.directory / _FOLDER / text_digest(identity)


def _keeps_files(recipe: SessionRecipe) -> bool:
    return any(_missing_options(provider) for provider in recipe.provider_list)


def _missing_options(provider: Provider) -> Mapping[str, str]:
    """Returns the options to add to a provider: none where its user has chosen a place for its files.

    On the CPU, OpenVINO's blobs take disk and save no time: making a session of PP-OCR rec took 0.49 s without
    one and 0.56 s from one.
    """
    name, given = provider
    wanted = {} if given.get("device_type") == "CPU" else _OPTIONS.get(name, {})
    return {} if wanted.keys() & given.keys() else wanted


def _pointing_at(recipe: SessionRecipe, directory: Path) -> tuple[Provider, ...]:
    return tuple(
        (
            provider[0],
            {
                **provider[1],
                **{key: value.format(directory) for key, value in _missing_options(provider).items()},
            },
        )
        for provider in recipe.provider_list
    )


def prune_ep_caches(directory: Path, live: Collection[tuple[str, str]], now_s: float) -> int:
    """Removes what no stored choice needs any more, and what dead processes have left behind.

    Args:
        directory: The directory of stored choices.
        live: Model digest and environment of every stored choice.
        now_s: Unix time in seconds.

    Returns:
        How many directories were removed.
    """
    removed = 0
    for path in _entries(directory / _FOLDER):
        if path.name.startswith(_PRIVATE):
            stale = now_s - _modified_s(path, now_s) > _ABANDONED_AFTER_S
        else:
            stale = _about(path) not in live
        if stale:
            _remove(path)
            removed += 1
    return removed


def _remove(path: Path) -> None:
    # Renamed first, so that nobody finds half of it.
    doomed = path.with_name(f"{_PRIVATE}doomed-{os.getpid()}-{path.name.lstrip('.')}")
    try:
        path.rename(doomed)
    except OSError:
        doomed = path
    shutil.rmtree(doomed, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _about(path: Path) -> tuple[str, str]:
    try:
        about = json.loads((path / _ABOUT).read_text())
        return str(about["model"]), str(about["environment"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def _modified_s(path: Path, otherwise: float) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return otherwise
