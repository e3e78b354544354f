"""Owns the exact signature of a request and its text, the ``workload`` of a problem.

Pure. Shapes are never bucketed or rounded, and a value that steers the computation is part of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.identity import fields, parse_fields, workload_digest

Array = npt.NDArray[np.generic]

# Values longer than this are named by their digest: still exact, but no longer readable.
_READABLE_VALUES = 16
_TRUTH = {"True": True, "False": False}


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """What of a tensor decides how it is computed.

    Attributes:
        name: Input or output name.
        dtype: Element type as numpy's ``dtype.str`` without byte order, such as ``f4``; empty for an
            output that the session allocates.
        shape: Exact shape; ``None`` for an output that the session allocates.
        device: Memory it lies in, such as ``cpu``.
        value: Content, where it steers control flow or shapes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    device: str = "cpu"
    value: str = ""

    def text(self) -> str:
        """Returns its identity text."""
        shape = "" if self.shape is None else "x".join(map(str, self.shape)) or "scalar"
        return fields((self.name, self.dtype, shape, self.device, self.value))


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The exact signature of a request.

    Attributes:
        inputs: Fed inputs, ordered by name: the order in the caller's dict means nothing.
        outputs: Requested outputs in order, and where they are wanted.
        form: ``run`` for new arrays out, ``binding`` for bound buffers.
        run_options: Run options that matter, as text.
    """

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    form: str = "run"
    run_options: tuple[str, ...] = ()

    def text(self) -> str:
        """Returns the identity text of the request."""
        return fields(
            (
                self.form,
                fields(tensor.text() for tensor in self.inputs),
                fields(tensor.text() for tensor in self.outputs),
                fields(self.run_options),
            )
        )


def parse_workload(workload: str) -> CallSignature:
    """Takes apart what :meth:`CallSignature.text` joined.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for text of another make.
    """
    signature: CallSignature | None
    try:
        form, inputs, outputs, options = parse_fields(workload)
        signature = CallSignature(
            tuple(map(_parse_tensor, parse_fields(inputs))),
            tuple(map(_parse_tensor, parse_fields(outputs))),
            form,
            tuple(parse_fields(options)),
        )
    except (TuneFailure, ValueError):
        signature = None
    if signature is None or signature.text() != workload:
        raise invalid("the workload is no exact signature of a request; its author made it up")
    return signature


def _parse_tensor(text: str) -> TensorSignature:
    name, dtype, sizes, device, value = parse_fields(text)
    shape = None if not sizes else () if sizes == "scalar" else tuple(map(int, sizes.split("x")))
    return TensorSignature(name, dtype, shape, device, value)


def array_of_value(tensor: TensorSignature) -> Array:
    """Returns the array whose content a signature holds.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where it holds none, or only its digest.
    """
    try:
        dtype = np.dtype(tensor.dtype)
        words = tensor.value.split(" ")
        numbers = [_TRUTH[word] for word in words] if dtype.kind == "b" else list(map(_number, words))
        array = np.array(numbers, dtype).reshape(tensor.shape or ())
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise invalid(f"the values of input {tensor.name!r} can't be read back from its signature") from error
    if _value_text(array) != tensor.value:
        raise invalid(f"the values of input {tensor.name!r} can't be read back from its signature")
    return array


def _number(word: str) -> int | float:
    try:
        return int(word)
    except ValueError:
        return float(word)


class Described(Protocol):
    """What has an element type and a shape: an array, or a tensor whose content lies elsewhere."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Exact shape."""
        ...


def tensor_signature(
    name: str, tensor: Described, *, with_value: bool, device: str = "cpu"
) -> TensorSignature:
    """Describes one fed tensor; only a value that is in host memory can be part of it.

    ``dtype.str`` is used because two arrays of equal dtype may differ in ``char`` and ``num``.
    """
    value = _value_text(tensor) if with_value and isinstance(tensor, np.ndarray) else ""
    return TensorSignature(name, tensor.dtype.str.lstrip("<=|"), tensor.shape, device, value)


def _value_text(array: Array) -> str:
    if array.size <= _READABLE_VALUES:
        return " ".join(str(value) for value in array.ravel().tolist())
    return f"digest {workload_digest(np.ascontiguousarray(array).tobytes())}"


def describe_workload(workload: str) -> str:
    """Returns a signature's text as people write it, or the text itself where it is of another make."""
    try:
        form, inputs, outputs, _ = parse_fields(workload)
        ins = [_describe(part) for part in parse_fields(inputs)]
        outs = [_describe(part) for part in parse_fields(outputs)]
    except Exception:  # noqa: BLE001 - a workload may be any text that its author chose
        return workload
    via = "" if form == "run" else f" via {form}"
    return f"{', '.join(ins)} -> {', '.join(outs)}{via}"


def _describe(part: str) -> str:
    name, dtype, shape, device, value = parse_fields(part)
    text = f"{name} {dtype}[{shape}]" if dtype else name
    if value:
        text += f"={value}"
    return text if device == "cpu" else f"{text}@{device}"


def further_draws(
    feeds: Mapping[str, Array],
    fixed: Sequence[str],
    seed: int = 20260301,
    *,
    zeros_are_safe: bool = False,
) -> list[dict[str, Array]]:
    """Returns further inputs of the same signature to validate on.

    Values are drawn from the live ones, so that indices stay in range; floating inputs also at four times
    the amplitude, since some candidates are right for small values only. Truth values are drawn freely.

    Args:
        feeds: Live inputs.
        fixed: Inputs whose values belong to the signature; they are kept.
        seed: Seed of the draw, so that a verdict can be had again.
        zeros_are_safe: Whether integer inputs that hold ones alone, as masks do, may get zeros too.
    """
    rng = np.random.default_rng(seed)
    draws = []
    for amplitude in (1.0, 4.0):
        draw: dict[str, Array] = {}
        for name, live in feeds.items():
            if name in fixed or live.size == 0 or live.dtype.kind not in "fiub":
                draw[name] = live.copy()
            elif live.dtype.kind == "f":
                draw[name] = _float_draw(live, amplitude, rng)
            elif live.dtype.kind == "b":
                # A mask is most often all true, and then another order of it would say nothing.
                draw[name] = rng.random(live.shape) < 0.5
            elif zeros_are_safe and live.size > 1 and np.all(live == 1):
                draw[name] = rng.integers(0, 2, live.shape).astype(live.dtype)
            else:
                draw[name] = rng.permutation(live.ravel()).reshape(live.shape)
        draws.append(draw)
    return draws


def _float_draw(live: Array, amplitude: float, rng: np.random.Generator) -> Array:
    values = rng.permutation(live.ravel())
    # A constant input (zeros, most often) would say nothing about the arithmetic.
    if values.min() == values.max():
        values = rng.uniform(-1.0, 1.0, values.shape)
    with np.errstate(over="ignore"):
        drawn: Array = (values * amplitude).astype(live.dtype).reshape(live.shape)
    return drawn


def feeds_of_other_shapes(
    feeds: Mapping[str, Array], dims: Mapping[str, Sequence[int | str | None]]
) -> Iterator[dict[str, Array]]:
    """Yields feeds that differ from the live ones in one open dimension, twice as long, the last one first.

    Args:
        feeds: Live inputs.
        dims: Declared dimensions of each input. A name stands for the same size wherever it occurs.
    """
    names = [dim for declared in dims.values() for dim in declared if isinstance(dim, str)]
    for name in reversed(dict.fromkeys(names)):
        changed = dict(feeds)
        for label, live in feeds.items():
            for axis, dim in enumerate(dims.get(label, ())):
                if dim == name and axis < live.ndim and live.shape[axis] > 0:
                    changed[label] = np.concatenate([changed[label], changed[label]], axis)
        if any(changed[label].shape != live.shape for label, live in feeds.items()):
            yield changed
