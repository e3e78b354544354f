"""Owns the way back from an exact signature to a request: feeds of its shapes and values, and what it asks for.

Must never guess what a signature does not say: an integer that steers nothing is asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ort_stacktune.failures import invalid
from ort_stacktune.feeds import FeedRequest, make_feeds
from ort_stacktune.ort.devices import HOST, Memory
from ort_stacktune.ort.graph import InputFact
from ort_stacktune.ort.request import OutputTarget, Request, RunSettings
from ort_stacktune.signature import Array, CallSignature, TensorSignature, array_of_value, tensor_signature

_FETCHES_ONLY = "only_execute_path_to_fetches"


def feeds_for(
    signature: CallSignature,
    inputs: Sequence[InputFact],
    *,
    samples: Sequence[Mapping[str, Array]] = (),
    fills: Mapping[str, str] | None = None,
    seed: int = 0,
) -> dict[str, Array]:
    """Returns feeds of a signature: the first sample that has it, or arrays made to order.

    Args:
        signature: The exact signature. The values of inputs that steer are taken from it.
        inputs: The inputs that the model declares, and the initializers that may be fed.
        samples: Feeds to take where their signature is this one.
        fills: Input -> how to fill it, as for :class:`FeedRequest`; of other models' inputs too.
        seed: Seed of random fills.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the signature does not fit the model, where its values can't be
            read back, or with one sentence that names all that is missing.
    """
    facts = {fact.name: fact for fact in inputs}
    for tensor in signature.inputs:
        if tensor.name not in facts:
            raise invalid(f"the model has no input {tensor.name!r}")
    for sample in samples:
        if set(sample) == {tensor.name for tensor in signature.inputs} and all(
            _has(tensor, sample[tensor.name]) for tensor in signature.inputs
        ):
            return dict(sample)
    given: dict[str, Array] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in signature.inputs:
        shape = tensor.shape or ()
        if tensor.value:
            given[tensor.name] = array_of_value(tensor)
        elif 0 in shape:
            given[tensor.name] = np.zeros(shape, tensor.dtype)
        else:
            shapes[tensor.name] = shape
    fed = [facts[tensor.name] for tensor in signature.inputs]
    chosen = {name: fill for name, fill in (fills or {}).items() if name in shapes}
    feeds = make_feeds(fed, FeedRequest(shapes=shapes, fills=chosen, arrays=given, seed=seed))
    for tensor in signature.inputs:
        if not _has(tensor, feeds[tensor.name]):
            raise invalid(
                f"the signature's {tensor.dtype} for input {tensor.name!r} is not what the model takes"
            )
    return feeds


def request_for(signature: CallSignature, feeds: Mapping[str, Array]) -> Request:
    """Returns the request of a signature on feeds that have it; outputs that the caller brings included.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the signature names a memory that makes no sense.
    """
    config = dict(option.split("=", 1) for option in signature.run_options if option != _FETCHES_ONLY)
    return Request(
        feeds,
        tuple(
            OutputTarget(
                target.name,
                None if target.shape is None else (target.dtype, target.shape),
                _memory(target.device),
            )
            for target in signature.outputs
        ),
        bound=signature.form == "binding",
        settings=RunSettings(_FETCHES_ONLY in signature.run_options, config, bool(signature.run_options)),
        placed={
            tensor.name: memory for tensor in signature.inputs if (memory := _memory(tensor.device)) != HOST
        },
    )


def _has(tensor: TensorSignature, array: Array) -> bool:
    found = tensor_signature(tensor.name, array, with_value=bool(tensor.value))
    return (found.dtype, found.shape, found.value) == (tensor.dtype, tensor.shape, tensor.value)


def _memory(text: str) -> Memory:
    kind, colon, number = text.partition(":")
    if not colon:
        return Memory(kind)
    if not number.isdecimal():
        raise invalid(f"{text!r} in the signature is no memory that is known")
    return Memory(kind, int(number))
