"""Owns inputs that are made up for a model: from sizes, fills and arrays that a user names.

Pure but for :func:`read_npz`. Must never guess what can't be guessed: an open dimension or an integer is
asked for by name, everything that is missing in one sentence. Needs neither ONNX Runtime nor onnx.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ort_stacktune.failures import invalid
from ort_stacktune.signature import Array

if TYPE_CHECKING:
    from ort_stacktune.ort.graph import Dims, InputFact

FILLS = ("zeros", "ones", "normal", "uniform", "arange")
"""Words for the content of an input; a number fills it with that number."""

_DTYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """What a user says about the inputs of a model; names are the model's.

    Attributes:
        dims: Symbolic dimension -> size.
        shapes: Input -> whole shape.
        fills: Input -> one of :data:`FILLS`, or a number as text.
        arrays: Input -> array to feed as it is; whatever else is said of that input does not count.
        seed: Seed of the random fills.
        written: Where the user says it: as options of a command, or in a manifest.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fills: Mapping[str, str] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    seed: int = 0
    written: Literal["options", "manifest"] = "options"


def make_feeds(
    inputs: Sequence[InputFact], request: FeedRequest, overridable: Sequence[InputFact] = ()
) -> dict[str, Array]:
    """Returns an array for each input: the given one, or one made to order.

    Floating inputs are standard normal unless filled otherwise. Optional inputs are left out unless given.
    A size that a given array or shape shows for a named dimension holds for the other inputs too.

    Args:
        inputs: The inputs that the model declares.
        request: What is said about them.
        overridable: Initializers that may be fed; only given arrays reach them.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a name that the model does not have, for what contradicts its
            declaration, for an input of a type that can't be tuned, and with one sentence that names all
            that is missing.
    """
    _check_names(inputs, request, overridable)
    feedable = {fact.name: fact for fact in (*inputs, *overridable)}
    for name, array in request.arrays.items():
        _check_array(feedable[name], array)
    left = [fact for fact in inputs if fact.name not in request.arrays and not _optional(fact)]
    _check_types(left)
    sizes = {**_shown_sizes(feedable, request), **request.dims}
    gaps = _Gaps(request.written)
    shapes: dict[str, tuple[int, ...]] = {}
    for fact in left:
        shape = _shape(fact, request, sizes, gaps)
        if shape is not None:
            shapes[fact.name] = shape
        if fact.name not in request.fills and _dtype(fact).kind != "f":
            gaps.value(fact)
    gaps.raise_if_any()
    feeds = dict(request.arrays)
    for fact in left:
        # For each input its own stream: what is said about one must not change the values of another.
        seed = (request.seed, inputs.index(fact))
        feeds[fact.name] = _filled(fact, shapes[fact.name], request.fills.get(fact.name, "normal"), seed)
    return {name: feeds[name] for name in feedable if name in feeds}


def read_npz(path: str) -> dict[str, Array]:
    """Returns the arrays of a file that ``numpy.savez`` wrote, by name. Nothing in it is executed.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the file is missing, of another kind, damaged, or holds objects.
    """
    try:
        # Opened here, because numpy leaves a damaged archive open.
        with Path(path).open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise invalid(f"{path} holds a single array; save inputs by name: np.savez(FILE, x=array)")
            arrays = {name: loaded[name] for name in loaded.files}
        # What is no array in an archive comes as bytes.
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError
        return arrays
    except OSError as error:
        raise invalid(f"the inputs {path} can't be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        raise invalid(
            f"{path} is no file of plain arrays of numbers; save inputs by name: np.savez(FILE, x=array)"
        ) from error


def shape_text(dims: Dims) -> str:
    """Returns dimensions as people write them, such as ``1x3x?x?``; ``scalar`` for none."""
    return "x".join(str(dim) if isinstance(dim, int) else "?" for dim in dims) or "scalar"


class _Gaps:
    """Gathers what is missing, to be said in one sentence."""

    def __init__(self, written: Literal["options", "manifest"]) -> None:
        self._in_manifest = written == "manifest"
        self._problems: dict[str, list[str]] = {}
        self._options: dict[str, None] = {}
        self._shapes: list[str] = []

    def rank(self, fact: InputFact) -> None:
        """Takes an input whose number of dimensions is unknown."""
        self._add(fact, "is of undeclared rank")
        self._shapes.append(self._entry("shapes", fact.name, "[?, ?, ...]", "?x?..."))

    def dims(self, fact: InputFact, dims: Dims) -> None:
        """Takes the dimensions of an input, of which those that are no size are missing."""
        named = list(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))
        unnamed = [str(axis) for axis, dim in enumerate(dims) if dim is None]
        where = f"at ax{'i' if len(unnamed) == 1 else 'e'}s {_listed(unnamed)}"
        parts = [repr(name) for name in named]
        if unnamed and named:
            parts.append(f"{'an unnamed one' if len(unnamed) == 1 else 'unnamed ones'} {where}")
        noun = "dimension" if len(named) + len(unnamed) == 1 else "dimensions"
        if named:
            text = f"the free {noun} {_listed(parts)}"
        else:
            text = f"{'an ' if noun == 'dimension' else ''}unnamed free {noun} {where}"
        self._add(fact, f"has {text}")
        if unnamed:
            sizes = ", ".join(str(dim) if isinstance(dim, int) else "?" for dim in dims)
            self._shapes.append(self._entry("shapes", fact.name, f"[{sizes}]", shape_text(dims)))
        else:
            self._options.update(dict.fromkeys(self._entry("dims", name, "SIZE", "SIZE") for name in named))

    def value(self, fact: InputFact) -> None:
        """Takes an input whose values mean something."""
        self._add(fact, f"takes {_dtype(fact).name} values, which can't be guessed")
        self._options[self._entry("fill", fact.name, "VALUE", "VALUE")] = None

    def raise_if_any(self) -> None:
        """Raises the failure that names all of it, if there is anything."""
        if not self._problems:
            return
        problems = "; ".join(f"input {name!r} {' and '.join(told)}" for name, told in self._problems.items())
        remedies = " ".join([*self._options, *self._shapes])
        hint = " (a size for each ?)" if self._shapes else ""
        if self._in_manifest:
            raise invalid(f"{problems}: add {remedies}{hint}, or inputs: FILE.npz")
        raise invalid(f"{problems}: pass {remedies}{hint}, or --inputs FILE.npz")

    def _entry(self, field: str, name: str, in_manifest: str, as_option: str) -> str:
        """Returns how a user says something about an input or a dimension."""
        if self._in_manifest:
            return f"{field}: {{{name}: {in_manifest}}}"
        return f"--{field.removesuffix('s')} {name}={as_option}"

    def _add(self, fact: InputFact, problem: str) -> None:
        self._problems.setdefault(fact.name, []).append(problem)


def _check_names(inputs: Sequence[InputFact], request: FeedRequest, overridable: Sequence[InputFact]) -> None:
    names = [fact.name for fact in inputs]
    dims = [dim for fact in inputs for dim in _usable(fact.dims or ()) if isinstance(dim, str)]
    for what, given, known in (
        ("named dimension", request.dims, list(dict.fromkeys(dims))),
        ("input", request.shapes, names),
        ("input", request.fills, names),
        ("input", request.arrays, [*names, *(fact.name for fact in overridable)]),
    ):
        for name in given:
            if name not in known:
                has = ", ".join(map(repr, known)) or "none"
                raise invalid(f"the model has no {what} {name!r}; it has {has}")
    for name, size in (*request.dims.items(), *((n, s) for n, sh in request.shapes.items() for s in sh)):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise invalid(f"size {size!r} for {name!r} is not usable; expected a whole number of 1 or more")


def _check_types(facts: Iterable[InputFact]) -> None:
    odd = [f"{fact.name!r} ({fact.type or 'undeclared type'})" for fact in facts if fact.type not in _DTYPES]
    if odd:
        noun = "input" if len(odd) == 1 else "inputs"
        raise invalid(f"{noun} {_listed(odd)} can't be fed here: only tensors of numbers can be tuned")


def _check_array(fact: InputFact, array: Array) -> None:
    declared = fact.type.removeprefix("optional(").removesuffix(")" if _optional(fact) else "")
    if declared not in _DTYPES:
        raise invalid(f"input {fact.name!r} is {fact.type}: only tensors of numbers can be tuned")
    expected = np.dtype(_DTYPES[declared])
    if array.dtype != expected:
        given = array.dtype.name if array.dtype.isnative else f"{array.dtype.name} in foreign byte order"
        raise invalid(
            f"the array for input {fact.name!r} is {given}; the model takes {expected.name}:"
            f" convert it with .astype({expected.name!r})"
        )
    if fact.dims is not None and not _agree(fact.dims, array.shape):
        raise invalid(
            f"the array for input {fact.name!r} has shape {shape_text(array.shape)};"
            f" the model takes {shape_text(fact.dims)}"
        )


def _shown_sizes(feedable: Mapping[str, InputFact], request: FeedRequest) -> dict[str, int]:
    """Returns the sizes that arrays and shapes show for named dimensions, where they do not differ."""
    shown: dict[str, set[int]] = {}
    shapes = {**request.shapes, **{name: array.shape for name, array in request.arrays.items()}}
    for name, shape in shapes.items():
        for dim, size in zip(_usable(feedable[name].dims or ()), shape, strict=False):
            if isinstance(dim, str):
                shown.setdefault(dim, set()).add(size)
    return {dim: min(sizes) for dim, sizes in shown.items() if len(sizes) == 1}


def _shape(
    fact: InputFact, request: FeedRequest, sizes: Mapping[str, int], gaps: _Gaps
) -> tuple[int, ...] | None:
    given = request.shapes.get(fact.name)
    if given is not None:
        if fact.dims is not None and not _agree(fact.dims, given):
            raise invalid(
                f"shape {shape_text(given)} for input {fact.name!r} contradicts the"
                f" {shape_text(fact.dims)} that the model declares"
            )
        return given
    if fact.dims is None:
        gaps.rank(fact)
        return None
    dims = tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in _usable(fact.dims))
    shape = tuple(dim for dim in dims if isinstance(dim, int))
    if len(shape) < len(dims):
        gaps.dims(fact, dims)
        return None
    return shape


def _filled(fact: InputFact, shape: tuple[int, ...], fill: str, seed: tuple[int, int]) -> Array:
    dtype = _dtype(fact)
    try:
        if fill in ("zeros", "ones"):
            return np.full(shape, 0 if fill == "zeros" else 1, dtype)
        if fill in ("normal", "uniform"):
            return _drawn(fact, shape, fill, seed)
        if fill == "arange":
            return _counted(fact, shape)
        return np.full(shape, _number(fact, fill), dtype)
    except (MemoryError, ValueError) as error:
        raise invalid(
            f"input {fact.name!r} of shape {shape_text(shape)} does not fit into memory; use smaller sizes"
        ) from error


def _drawn(fact: InputFact, shape: tuple[int, ...], fill: str, seed: tuple[int, int]) -> Array:
    dtype = _dtype(fact)
    if dtype.kind != "f":
        raise invalid(
            f"fill {fill!r} is for floating inputs and input {fact.name!r} takes {dtype.name};"
            " use a number, zeros, ones or arange"
        )
    draw = np.random.default_rng(seed)
    # There are no half-precision draws.
    precise: Any = np.float64 if dtype == np.float64 else np.float32
    values = draw.standard_normal(shape, precise) if fill == "normal" else draw.random(shape, precise)
    return np.asarray(values, dtype)


def _counted(fact: InputFact, shape: tuple[int, ...]) -> Array:
    dtype = _dtype(fact)
    last = int(np.prod(shape, dtype=object)) - 1
    most = 1 if dtype.kind == "b" else np.finfo(dtype).max if dtype.kind == "f" else np.iinfo(dtype).max
    if last > most:
        raise invalid(
            f"fill 'arange' for input {fact.name!r} counts to {last}, which {dtype.name} can't hold"
        )
    return np.arange(last + 1).astype(dtype).reshape(shape)


def _number(fact: InputFact, text: str) -> int | float | bool:
    dtype = _dtype(fact)
    wanted = f"a number of type {dtype.name} or one of {', '.join(FILLS)}"
    try:
        if dtype.kind == "b":
            return _TRUTH[text.lower()]
        value = float(text) if dtype.kind == "f" else int(text)
    except (KeyError, ValueError):
        wanted = "true, false, zeros or ones" if dtype.kind == "b" else wanted
        raise invalid(f"fill {text!r} for input {fact.name!r} is not usable; expected {wanted}") from None
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    # As Python's own numbers: numpy's would take the value for one of their precision.
    low, high = (type(value)(limit) for limit in (limits.min, limits.max))
    # NaN and the infinities fail the comparison as well.
    if not low <= value <= high:
        raise invalid(
            f"fill {text!r} for input {fact.name!r} is not usable; expected a number from {low} to {high}"
        )
    return value


def _dtype(fact: InputFact) -> np.dtype[Any]:
    return np.dtype(_DTYPES[fact.type])


def _optional(fact: InputFact) -> bool:
    return fact.type.startswith("optional(")


def _usable(dims: Dims) -> Dims:
    """Returns dimensions without names that name nothing: exporters write ``?`` for any unknown size."""
    return tuple(None if isinstance(dim, str) and not any(map(str.isalnum, dim)) else dim for dim in dims)


def _agree(dims: Dims, shape: Sequence[int]) -> bool:
    return len(dims) == len(shape) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape, strict=True)
    )


def _listed(parts: Iterable[str]) -> str:
    *most, last = [*parts] or [""]
    return f"{', '.join(most)} and {last}" if most else last
