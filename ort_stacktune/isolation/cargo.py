"""Owns the way of a set of trials into another process: its description as JSON, its arrays as plain bytes.

Both lie in one file without a name, so that nothing stays behind however either process ends. Must never use
pickle, and never carry what would not arrive exactly as it was: that is refused with a sentence.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from ort_stacktune.failures import FailureKind, ReferenceFailure, TuneFailure
from ort_stacktune.ort.callers import Feeds
from ort_stacktune.ort.devices import Memory
from ort_stacktune.ort.ep_caches import EpCaches
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.provider_options import AcceptedOptions
from ort_stacktune.ort.recipes import SessionRecipe
from ort_stacktune.ort.request import OutputTarget, Request, RunSettings
from ort_stacktune.signature import Array
from ort_stacktune.store.checks import Unreadable
from ort_stacktune.vocabulary import Timing

_NUMBERS = "fiubc"

# Options of execution providers that point into the process that sets them.
_ADDRESSES = frozenset(
    {"dawnProcTable", "gpu_external_alloc", "gpu_external_empty_cache", "gpu_external_free"}
    | {"user_compute_stream", "webgpuDevice", "webgpuInstance"}
)


@dataclass(frozen=True, slots=True)
class Served:
    """What the live session made of the live input.

    Attributes:
        outputs: Its outputs; ``None`` where it raised.
        error: What it raised, in words.
    """

    outputs: list[object] | None
    error: str = ""

    def again(self, *_: object) -> list[object]:
        """Does what the live session did."""
        if self.outputs is None:
            raise RuntimeError(self.error)
        return self.outputs


@dataclass(frozen=True, slots=True)
class TrialSet:
    """What the trials of one request need; the fields are the arguments of ``SessionTrials``.

    Attributes:
        recipes: All candidates, the reference included.
        reference: Position of the reference.
        model: The reference's model.
        request: What is repeated, all of its inputs in host memory.
        steering: Inputs whose values belong to the signature.
        probes: Further feeds to validate on.
        timing: Clock asked for.
        concurrency: Callers at one time.
        zeros_are_safe: Whether a zero may be drawn.
        dims: Declared dimensions of the inputs.
        ep_caches: Where execution providers may keep files.
        served: What the live session gives for the live input; ``None`` where there is no such session.
    """

    recipes: Sequence[SessionRecipe]
    reference: int
    model: ModelSource
    request: Request
    steering: frozenset[str] = frozenset()
    probes: Sequence[Feeds] = ()
    timing: Timing = Timing.END_TO_END
    concurrency: int = 1
    zeros_are_safe: bool = False
    dims: Mapping[str, Sequence[int | str | None]] | None = None
    ep_caches: EpCaches | None = None
    served: Served | None = None


@dataclass(frozen=True, slots=True)
class Cargo:
    """A set of trials, packed.

    Attributes:
        file: Holds all of it.
        start: Where in it the description begins.
        size: Bytes of the description.
    """

    file: IO[bytes]
    start: int
    size: int


def why_not_elsewhere(recipes: Sequence[SessionRecipe]) -> str | None:
    """Returns why some recipes make sense in this process only, or ``None``."""
    for recipe in recipes:
        for provider, options in recipe.provider_list:
            for name in sorted(_ADDRESSES & set(options)):
                if options[name] not in ("", "0"):
                    return f"option {name} of {provider} is an address in this process"
    return None


def pack(trials: TrialSet) -> Cargo:
    """Packs a set of trials; arrays are copied as they are now.

    Raises:
        TuneFailure: ``UNAVAILABLE`` where something of it can't travel.
        OSError: Where there is no room for it.
    """
    file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    try:
        hold = _Hold(file)
        model = trials.model
        text = json.dumps(
            {
                "recipes": [_recipe_json(recipe) for recipe in trials.recipes],
                "reference": trials.reference,
                "model": model.path if model.data is None else hold.stow(memoryview(model.data)),
                "request": _request_json(trials.request, hold),
                "steering": sorted(trials.steering),
                "probes": [_feeds_json(probe, hold) for probe in _fitting(trials)],
                "timing": trials.timing.name,
                "concurrency": trials.concurrency,
                "zeros_are_safe": trials.zeros_are_safe,
                "dims": {name: list(dims) for name, dims in (trials.dims or {}).items()},
                "ep_caches": None
                if trials.ep_caches is None
                else {
                    "directory": str(trials.ep_caches.directory),
                    "environment": trials.ep_caches.environment,
                    "read_only": trials.ep_caches.read_only,
                },
                "served": None if trials.served is None else _served_json(trials.served, hold),
            },
            allow_nan=False,
        ).encode()
        start, size = hold.stow(memoryview(text))
    except BaseException:
        file.close()
        raise
    return Cargo(file, start, size)


def unpack(cargo: Cargo) -> TrialSet:
    """Returns the set of trials. Recipes are made when they are first asked for: what that does may end a process."""
    hold = _Hold(cargo.file)
    item = json.loads(hold.fetch(cargo.start, cargo.size))
    model = item["model"]
    return TrialSet(
        recipes=_Recipes(item["recipes"]),
        reference=item["reference"],
        model=ModelSource(path=model)
        if isinstance(model, str)
        else ModelSource(data=bytes(hold.fetch(*model))),
        request=_request(item["request"], hold),
        steering=frozenset(item["steering"]),
        probes=[_feeds(probe, hold) for probe in item["probes"]],
        timing=Timing[item["timing"]],
        concurrency=item["concurrency"],
        zeros_are_safe=item["zeros_are_safe"],
        dims=item["dims"],
        ep_caches=_ep_caches(item["ep_caches"]),
        served=None if item["served"] is None else _served(item["served"], hold),
    )


def _ep_caches(item: Any) -> EpCaches | None:
    return None if item is None else EpCaches(Path(item["directory"]), item["environment"], item["read_only"])


class _Hold:
    """Bytes in a file, by their place in it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size

    def stow(self, data: memoryview) -> tuple[int, int]:
        start, rest = self._size, data
        while rest.nbytes:
            rest = rest[
                os.pwrite(self._file.fileno(), rest[: 1 << 30], self._size + data.nbytes - len(rest)) :
            ]
        self._size += data.nbytes
        return start, data.nbytes

    def fetch(self, start: int, size: int) -> bytearray:
        if not 0 <= start <= start + size <= self._size:
            raise Unreadable(f"there are no {size} bytes at {start}")
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = os.preadv(self._file.fileno(), [rest[: 1 << 30]], start + size - len(rest))
            if not count:
                raise Unreadable(f"there are no {size} bytes at {start}")
            rest = rest[count:]
        return data


class _Recipes(Sequence[SessionRecipe]):
    """Recipes that are made when they are first asked for."""

    def __init__(self, descriptions: list[dict[str, Any]]) -> None:
        self._descriptions = descriptions
        self._made: dict[int, SessionRecipe] = {}

    def __len__(self) -> int:
        return len(self._descriptions)

    def __getitem__(self, index: Any) -> Any:
        if index not in self._made:
            self._made[index] = _recipe(self._descriptions[index])
        return self._made[index]


def _recipe_json(recipe: SessionRecipe) -> dict[str, object]:
    described = {field.name: _plain(getattr(recipe, field.name)) for field in fields(recipe) if field.init}
    return {**described, "revision": recipe.revision}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value


def _recipe(described: Mapping[str, Any]) -> SessionRecipe:
    given = dict(described)
    revision = given.pop("revision")
    if given["providers"] is not None:
        # They were judged when the recipe was made.
        given["providers"] = [(name, AcceptedOptions(options)) for name, options in given["providers"]]
    try:
        recipe = SessionRecipe(**given)
    except TuneFailure as failure:
        raise TuneFailure(FailureKind.REJECTED, failure.message) from failure
    if recipe.revision != revision:
        raise TuneFailure(
            FailureKind.REJECTED,
            "a file that its recipe names has changed since the recipe was made; make the recipe anew",
        )
    return recipe


def _request_json(request: Request, hold: _Hold) -> dict[str, object]:
    settings = request.settings
    return {
        "feeds": _feeds_json(request.feeds, hold),
        "outputs": [
            [target.name, None if target.given is None else list(target.given), _memory_json(target.memory)]
            for target in request.outputs
        ],
        "bound": request.bound,
        "settings": [settings.only_execute_path_to_fetches, dict(settings.config), settings.given],
        "placed": {name: _memory_json(memory) for name, memory in request.placed.items()},
    }


def _request(item: Mapping[str, Any], hold: _Hold) -> Request:
    return Request(
        _feeds(item["feeds"], hold),
        tuple(
            OutputTarget(name, None if given is None else (given[0], tuple(given[1])), Memory(*memory))
            for name, given, memory in item["outputs"]
        ),
        item["bound"],
        RunSettings(*item["settings"]),
        {name: Memory(*memory) for name, memory in item["placed"].items()},
    )


def _memory_json(memory: Memory) -> list[object]:
    return [memory.kind, memory.id]


def _fitting(trials: TrialSet) -> Iterator[Feeds]:
    """Yields the probes that have the live inputs' names; others are never run."""
    for probe in trials.probes:
        if set(probe) == set(trials.request.feeds):
            arrays = {name: np.asarray(value) for name, value in probe.items()}
            if all(array.dtype.kind in _NUMBERS for array in arrays.values()):
                yield arrays


def _feeds_json(feeds: Mapping[str, Any], hold: _Hold) -> dict[str, object]:
    # The order of the names is kept: it is the order in which they are fed.
    return {name: _array_json(array, hold) for name, array in feeds.items()}


def _feeds(item: Mapping[str, Any], hold: _Hold) -> Feeds:
    return {name: _array(described, hold) for name, described in item.items()}


def _array_json(array: Array, hold: _Hold) -> list[object]:
    if array.dtype.kind not in _NUMBERS:
        raise _cannot_travel(f"an array of {array.dtype}")
    start, _ = hold.stow(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return [array.dtype.str, list(array.shape), start]


def _array(described: Sequence[Any], hold: _Hold) -> Array:
    text, shape, start = described
    dtype = np.dtype(text)
    array: Array = np.frombuffer(hold.fetch(start, dtype.itemsize * math.prod(shape)), dtype).reshape(shape)
    return array


def _served_json(served: Served, hold: _Hold) -> dict[str, object]:
    outputs = served.outputs
    return {
        "outputs": None if outputs is None else [_output_json(output, hold) for output in outputs],
        "error": served.error,
    }


def _served(item: Mapping[str, Any], hold: _Hold) -> Served:
    outputs = item["outputs"]
    return Served(None if outputs is None else [_output(output, hold) for output in outputs], item["error"])


def _output_json(value: object, hold: _Hold) -> list[object]:
    """Describes an output so that what comes of it has the same types, part by part."""
    if value is None:
        return ["none"]
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return ["number", _array_json(np.asarray(value), hold)]
    if type(value) is np.ndarray and value.dtype.kind in _NUMBERS:
        return ["array", _array_json(value, hold)]
    if type(value) is np.ndarray and all(type(each) is str for each in value.ravel().tolist()):
        return ["texts", value.dtype.str, list(value.shape), value.ravel().tolist()]
    if type(value) is float:
        return ["float", value.hex()]
    if type(value) in (str, int, bool):
        return ["plain", value]
    if type(value) is list:
        return ["list", [_output_json(each, hold) for each in value]]
    if type(value) is dict:
        return ["dict", [[_output_json(key, hold), _output_json(each, hold)] for key, each in value.items()]]
    raise _cannot_travel(f"an output of type {type(value).__name__}")


def _output(described: Sequence[Any], hold: _Hold) -> object:
    make: Mapping[str, Callable[..., object]] = {
        "none": lambda: None,
        "number": lambda array: _array(array, hold)[()],
        "array": lambda array: _array(array, hold),
        "texts": lambda dtype, shape, texts: np.array(texts, dtype).reshape(shape),
        "float": float.fromhex,
        "plain": lambda value: value,
        "list": lambda parts: [_output(part, hold) for part in parts],
        "dict": lambda pairs: {_output(key, hold): _output(part, hold) for key, part in pairs},
    }
    return make[described[0]](*described[1:])


def output_bytes(value: object) -> int:
    """Returns the bytes of outputs, whatever they are made of."""
    if isinstance(value, list | tuple):
        return sum(map(output_bytes, value))
    if isinstance(value, dict):
        return sum(map(output_bytes, value)) + sum(map(output_bytes, value.values()))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return sum(map(output_bytes, value.ravel().tolist()))
    if isinstance(value, str | bytes):
        return len(value)
    return int(getattr(value, "nbytes", 8))


def _cannot_travel(what: str) -> TuneFailure:
    return ReferenceFailure(
        FailureKind.UNAVAILABLE,
        f"{what} can't be handed to another process exactly, so this request can't be tried in one;"
        " use isolation='inline' for it",
    )
