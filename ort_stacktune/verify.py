"""Owns the rule by which a candidate's outputs agree with the reference's.

Pure: it must never run a session, and needs numpy only. Nothing is reshaped, broadcast or converted to
make outputs comparable, and no temporary grows with the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ort_stacktune.failures import FailureKind, TuneFailure, invalid
from ort_stacktune.vocabulary import Tolerance, Validation

_CHUNK_BYTES = 512 * 1024

_EXACT_ELEMENTS = (str, bytes, int, type(None))

# Format of a sparse tensor: the names of its index view (of the object that a run returns, and of its
# wrapper), and the arrays in that view.
_SPARSE_VIEWS = {
    "ORT_SPARSE_COO": (("get_coo_data", "as_coo_view"), ("indices",)),
    "ORT_SPARSE_CSRC": (("get_csrc_data", "as_csrc_view"), ("inner", "outer")),
    "ORT_SPARSE_BLOCK_SPARSE": (("get_blocksparse_data", "as_blocksparse_view"), ("indices",)),
}

_Array = npt.NDArray[Any]


def compare(
    reference: Sequence[object], candidate: Sequence[object], names: Sequence[str], tolerance: Tolerance
) -> Validation:
    """Compares a candidate's outputs with the reference's.

    Number of outputs, types, dtypes and shapes come first, of all outputs, and have to be equal. Then:

    - Floating and complex elements pass when ``|candidate - reference| <= absolute + relative *
      |reference|``, computed in double precision; NaN, +inf and -inf have to be where the reference has
      them. -0.0 equals 0.0.
    - Integers, booleans and strings are equal or not; ``None`` (an optional output left out) equals only
      ``None``.
    - Sequences (lists) and maps (dicts) are compared part by part; sparse tensors by format, dense
      shape, indices and values.

    Args:
        reference: The reference's outputs: arrays, lists, dicts, sparse tensors, plain scalars, ``None``.
        candidate: The candidate's outputs, in the same order.
        names: The outputs' names, for messages.
        tolerance: How far numbers may differ, and how many bytes of both sides together are read.

    Returns:
        ``UNSUPPORTED`` where both sides together exceed ``tolerance.max_bytes`` (then no value was
        read), where a type or dtype has no rule, or where a floating array of the reference has elements
        but no finite one; otherwise ``PASSED``.

    Raises:
        TuneFailure: ``REJECTED`` with a sentence that names the output, what differs and by how much.
    """
    if len(names) != len(reference):
        raise invalid(f"there are {len(names)} output names for {len(reference)} outputs of the reference")
    if len(candidate) != len(reference):
        _reject(f"there are {len(candidate)} outputs; the reference gives {len(reference)}")
    survey = _Survey()
    for name, expected, got in zip(names, reference, candidate, strict=True):
        survey.add(f"output {name!r}", expected, got)
    if survey.exceeds(tolerance.max_bytes):
        return Validation.UNSUPPORTED
    supported = survey.supported
    with np.errstate(all="ignore"):
        for part in survey.parts:
            supported &= _agree(part, tolerance)
    return Validation.PASSED if supported else Validation.UNSUPPORTED


@dataclass(frozen=True, slots=True)
class _Part:
    """A pair of arrays of one shape, out of an output."""

    label: str
    reference: _Array
    candidate: _Array


@dataclass(slots=True)
class _Survey:
    """Takes outputs apart without reading values, and rejects what differs in structure."""

    parts: list[_Part] = field(default_factory=list)
    supported: bool = True

    def add(self, label: str, reference: Any, candidate: Any) -> None:
        if type(candidate) is not type(reference):
            given, expected = type(candidate).__name__, type(reference).__name__
            _reject(f"{label} is of type {given}; the reference gives {expected}")
        if reference is None:
            return
        if type(reference) in (np.ndarray, float) or isinstance(reference, np.generic):
            self._add_arrays(label, np.asarray(reference), np.asarray(candidate))
        elif isinstance(reference, _EXACT_ELEMENTS):
            self._add_arrays(label, np.array([reference], object), np.array([candidate], object))
        elif type(reference) is list:
            self._add_lists(label, reference, candidate)
        elif type(reference) is dict:
            self._add_dicts(label, reference, candidate)
        elif all(hasattr(reference, name) for name in ("format", "dense_shape", "values", "device_name")):
            self._add_sparse(label, reference, candidate)
        else:
            self.supported = False

    def exceeds(self, limit: int) -> bool:
        """Whether both sides together take more bytes than a limit; texts are weighed, not compared."""
        size = sum(part.reference.nbytes + part.candidate.nbytes for part in self.parts)
        for part in self.parts:
            if part.reference.dtype == object:
                for array in (part.reference, part.candidate):
                    for element in array.flat:
                        if size > limit:
                            return True
                        size += _text_bytes(element)
        return size > limit

    def _add_arrays(self, label: str, reference: _Array, candidate: _Array) -> None:
        given, expected = candidate.dtype, reference.dtype
        # The width of a fixed-width string is that of the longest one, a matter of values.
        if given != expected and not (given.kind == expected.kind and given.kind in "US"):
            _reject(f"{label} has dtype {given}; the reference has {expected}")
        if candidate.shape != reference.shape:
            _reject(f"{label} has shape {candidate.shape}; the reference has {reference.shape}")
        self.parts.append(_Part(label, reference, candidate))

    def _add_lists(self, label: str, reference: list[object], candidate: list[object]) -> None:
        if len(candidate) != len(reference):
            _reject(f"{label} has {len(candidate)} entries; the reference has {len(reference)}")
        for position, (expected, got) in enumerate(zip(reference, candidate, strict=True)):
            self.add(f"{label}[{position}]", expected, got)

    def _add_dicts(self, label: str, reference: dict[Any, object], candidate: dict[Any, object]) -> None:
        # 1, 1.0 and True are one key to a dict, and three to whoever reads the map.
        odd = {(type(key), key) for key in reference} ^ {(type(key), key) for key in candidate}
        if odd:
            some = ", ".join(sorted(repr(key) for _, key in odd)[:3])
            _reject(f"{label} has {len(odd)} keys that are on one side only, such as {some}")
        if all(type(value) is float for values in (reference, candidate) for value in values.values()):
            # Class probabilities, of which there may be many: one pair of arrays for all of them.
            ours = np.array(list(reference.values()), np.float64)
            self._add_arrays(label, ours, np.array([candidate[key] for key in reference], np.float64))
            return
        for key, expected in reference.items():
            self.add(f"{label}[{key!r}]", expected, candidate[key])

    def _add_sparse(self, label: str, reference: Any, candidate: Any) -> None:
        form, given = _sparse_format(reference), _sparse_format(candidate)
        if given != form:
            _reject(f"{label} is in sparse format {given}; the reference is in {form}")
        shape, given_shape = _dense_shape(reference), _dense_shape(candidate)
        if given_shape != shape:
            _reject(f"{label} has dense shape {given_shape}; the reference has {shape}")
        if form not in _SPARSE_VIEWS or not (_in_host_memory(reference) and _in_host_memory(candidate)):
            self.supported = False
            return
        views, arrays = _SPARSE_VIEWS[form]
        expected, got = (
            next(getattr(tensor, view) for view in views if hasattr(tensor, view))()
            for tensor in (reference, candidate)
        )
        for name in arrays:
            self._add_arrays(f"{label} ({name})", getattr(expected, name)(), getattr(got, name)())
        self._add_arrays(f"{label} (values)", reference.values(), candidate.values())


def _sparse_format(tensor: Any) -> str:
    value = tensor.format() if callable(tensor.format) else tensor.format
    return str(value.name)


def _dense_shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.dense_shape())


def _in_host_memory(tensor: Any) -> bool:
    return str(tensor.device_name()).lower() == "cpu"


def _text_bytes(element: object) -> int:
    if isinstance(element, str):
        return len(element.encode("utf-8", "surrogatepass"))
    return len(element) if isinstance(element, bytes) else 0


def _agree(part: _Part, tolerance: Tolerance) -> bool:
    """Rejects a pair of arrays whose values differ; returns whether there were a rule and values to judge."""
    dtype = part.reference.dtype
    # Extension types (bfloat16, float8, int4) have a kind of their own and are told by their names.
    extension = dtype.name if dtype.type.__module__.partition(".")[0] == "ml_dtypes" else ""
    if dtype.kind == "O":
        return _agree_as_objects(part)
    if dtype.kind in "US":
        return _agree_exactly(part, part.reference.dtype, part.candidate.dtype)
    if dtype.kind in "biu":
        return _agree_exactly(part, dtype, dtype)
    if extension.startswith(("int", "uint")):
        return _agree_exactly(part, np.dtype(np.int64), np.dtype(np.int64))
    if (dtype.kind == "f" and dtype.itemsize <= 8) or extension.startswith(("bfloat", "float")):
        return _agree_closely(part, np.dtype(np.float64), tolerance)
    if dtype in (np.complex64, np.complex128):
        return _agree_closely(part, np.dtype(np.complex128), tolerance)
    return False


def _chunks(part: _Part, *dtypes: np.dtype[Any]) -> Iterator[tuple[_Array, _Array]]:
    """Yields one-dimensional pieces of both arrays, in one order, converted piece by piece."""
    if part.reference.size == 0:
        return
    iterator = np.nditer(
        [part.reference, part.candidate],
        flags=["external_loop", "buffered"],
        op_flags=[["readonly"], ["readonly"]],
        op_dtypes=dtypes,
        casting="unsafe",
        buffersize=max(1, _CHUNK_BYTES // max(8, *(dtype.itemsize for dtype in dtypes))),
    )
    with iterator:
        yield from iterator


def _agree_closely(part: _Part, wide: np.dtype[Any], tolerance: Tolerance) -> bool:
    misplaced = beyond = 0
    worst = 0.0
    any_finite = False
    for expected, got in _chunks(part, wide, wide):
        finite = np.isfinite(expected)
        any_finite = any_finite or bool(finite.any())
        if not (finite.all() and np.isfinite(got).all()):
            misplaced += int(np.count_nonzero(_marks(expected) != _marks(got)))
            finite &= np.isfinite(got)
            expected, got = expected[finite], got[finite]
        distance = np.abs(got - expected)
        allowed = tolerance.absolute + tolerance.relative * np.abs(expected)
        # Two finite numbers may lie further apart than the largest number, and the allowance may too.
        far = ~(distance <= allowed) | np.isinf(distance)
        count = int(np.count_nonzero(far))
        if count:
            beyond += count
            worst = max(worst, float(distance[far].max()))
    total = part.reference.size
    if misplaced:
        _reject(
            f"{part.label}: in {misplaced} of {total} elements NaN or infinity is not where the reference"
            " has it"
        )
    if beyond:
        _reject(
            f"{part.label}: {beyond} of {total} elements differ by up to {worst:.1e}"
            f" (allowed {tolerance.absolute:.1e} + {tolerance.relative:.1e} x |reference|)"
        )
    return any_finite or total == 0


def _marks(values: _Array) -> _Array:
    """Returns 0 for a finite number, and another number for each way not to be one."""
    if values.dtype.kind == "c":
        return np.asarray(_marks(values.real) + np.int8(8) * _marks(values.imag))
    marks = np.isnan(values).astype(np.int8)
    marks[np.isposinf(values)] = 2
    marks[np.isneginf(values)] = 3
    return marks


def _agree_exactly(part: _Part, *dtypes: np.dtype[Any]) -> bool:
    count = worst = 0
    first = ""
    for expected, got in _chunks(part, *dtypes):
        unequal = expected != got
        if not unequal.any():
            continue
        count += int(np.count_nonzero(unequal))
        expected, got = expected[unequal], got[unequal]
        first = first or _instead(got[0].item(), expected[0].item())
        if expected.dtype.kind in "iu":
            # Modulo 2**64 this is exact for the ends of the range too.
            apart = np.maximum(expected, got).astype(np.uint64) - np.minimum(expected, got).astype(np.uint64)
            worst = max(worst, int(apart.max()))
    if count:
        by = f" by up to {worst}" if worst else ""
        _reject(f"{part.label}: {count} of {part.reference.size} elements differ{by}, the first is {first}")
    return True


def _agree_as_objects(part: _Part) -> bool:
    count = 0
    first = ""
    known = True
    for expected, got in zip(part.reference.flat, part.candidate.flat, strict=True):
        if type(expected) is type(got) and not isinstance(expected, _EXACT_ELEMENTS):
            known = False
        elif type(expected) is not type(got) or expected != got:
            count += 1
            first = first or _instead(got, expected)
    if count:
        _reject(f"{part.label}: {count} of {part.reference.size} elements differ, the first is {first}")
    return known


def _instead(got: object, expected: object) -> str:
    return f"{_short(got)} instead of {_short(expected)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _reject(sentence: str) -> NoReturn:
    raise TuneFailure(FailureKind.REJECTED, sentence)
