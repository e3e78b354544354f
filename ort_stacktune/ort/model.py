"""Owns where a model comes from and what tells it apart from every other: its bytes and its external data.

Must never remember a content by its path, because files change under their names and even under their
times and sizes, and must never import ONNX Runtime.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import onnx
import xxhash
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

from ort_stacktune.failures import invalid
from ort_stacktune.identity import fields
from ort_stacktune.ort.graph import GraphFacts, facts
from ort_stacktune.ort.walk import Body, nested

_CHUNK = 8 * 1024 * 1024
_MARK = b"location"
"""The key without which no tensor is external; its absence saves parsing a large model."""
_ORT_FORMAT = b"ORTM"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as a file or as bytes; exactly one of the two.

    Attributes:
        path: Absolute path, as it was given otherwise: links in it are not resolved, because the external
            data of a model lies beside the link, not beside what it points to.
        data: The serialized model. Its external data lies in the current working directory.
    """

    path: str | None = None
    data: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.path is None) == (self.data is None):
            raise invalid("a model comes from either a path or bytes; give exactly one of them")

    @classmethod
    def of(cls, path_or_bytes: str | os.PathLike[str] | bytes) -> ModelSource:
        """Takes what ``InferenceSession`` takes as its first argument.

        Raises:
            TuneFailure: ``INVALID_INPUT`` for anything else.
        """
        if isinstance(path_or_bytes, bytes):
            return cls(data=path_or_bytes)
        if isinstance(path_or_bytes, str | os.PathLike):
            return cls(path=str(Path(path_or_bytes).absolute()))
        raise invalid(f"a model is a path or bytes, not {type(path_or_bytes).__name__}")

    def argument(self) -> str | bytes:
        """Returns what to hand to ``InferenceSession``."""
        return self.path if self.path is not None else self.data or b""

    def digest(self) -> str:
        """Returns a fingerprint of the content, 128 bits as 32 hex digits (XXH3).

        It covers the model's bytes and, for each region of external data that the model refers to, its
        location, offset and bytes. Everything is read anew in each call. Locations are opened as they
        stand, relative to the model's directory, also where they lead out of it: whether such a model
        may be loaded is for ONNX Runtime to say.

        Raises:
            TuneFailure: ``INVALID_INPUT`` where a file is missing, unreadable or too short, or where a
                reference to external data makes no sense.
        """
        digest = xxhash.xxh3_128()
        marked = False
        with self._open() as file:
            tail = b""
            for chunk in _read(digest, file, "", 0, _size(file)):
                marked = marked or _MARK in chunk or _MARK in tail + chunk[: len(_MARK)]
                tail = chunk[-len(_MARK) :]
            model = _parse(file) if marked else None
        directory = Path(self.path).parent if self.path is not None else Path()
        for location, regions in _external_regions(model).items() if model is not None else ():
            with _opened(directory / location, location) as file:
                for start, stop in _merged(regions, _size(file)):
                    for _ in _read(digest, file, location, start, stop):
                        pass
        return digest.hexdigest()

    def size_bytes(self) -> int:
        """Returns the bytes of the model and of the files that hold its external data.

        Raises:
            TuneFailure: ``INVALID_INPUT`` where a file is missing or unreadable.
        """
        with self._open() as file:
            size = _size(file)
            model = _parse(file)
        directory = Path(self.path).parent if self.path is not None else Path()
        for location in external_locations(model) if model is not None else ():
            with _opened(directory / location, location) as file:
                size += _size(file)
        return size

    def proto(self) -> onnx.ModelProto | None:
        """Returns the parsed model without its external data; ``None`` where it is not ONNX protobuf.

        Raises:
            TuneFailure: ``INVALID_INPUT`` where the file is missing or unreadable.
        """
        with self._open() as file:
            return _parse(file)

    def graph(self) -> GraphFacts | None:
        """Returns the facts of the model's graph; ``None`` where it is not ONNX protobuf.

        Raises:
            TuneFailure: ``INVALID_INPUT`` where the file is missing or unreadable.
        """
        model = self.proto()
        return None if model is None else facts(model)

    def _open(self) -> BinaryIO:
        return io.BytesIO(self.data) if self.data is not None else _opened(Path(self.path or ""), "")


def _what(location: str) -> str:
    return f"external data {location!r} of the model" if location else "the model"


def _opened(path: Path, location: str) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise invalid(f"{_what(location)} can't be read at {path}: {reason}") from error


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def _read(digest: xxhash.xxh3_128, file: BinaryIO, location: str, start: int, stop: int) -> Iterator[bytes]:
    """Digests a region of a file, its place included, and yields its bytes in chunks.

    The file is read, not mapped: a file that someone truncates meanwhile would kill a process that has it
    mapped.
    """
    digest.update(fields((location, str(start), str(stop))).encode())
    file.seek(start)
    left = stop - start
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise invalid(f"{_what(location)} ends before byte {stop}; write it completely and try again")
        digest.update(chunk)
        left -= len(chunk)
        yield chunk


def _parse(file: BinaryIO) -> onnx.ModelProto | None:
    file.seek(0)
    data = file.read()
    if data[4:8] == _ORT_FORMAT:
        return None
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        return None
    return model if model.HasField("graph") else None


def external_locations(model: onnx.ModelProto) -> tuple[str, ...]:
    """Returns the files, relative to the model, that hold external data of it."""
    return tuple(_external_regions(model))


def _external_regions(model: onnx.ModelProto) -> dict[str, list[tuple[int, int | None]]]:
    """Returns start and stop (``None``: the file's end) of all external data, by location."""
    regions: dict[str, list[tuple[int, int | None]]] = {}
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location, start, stop = _region(tensor)
            regions.setdefault(location, []).append((start, stop))
    return dict(sorted(regions.items()))


def _region(tensor: onnx.TensorProto) -> tuple[str, int, int | None]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if not location or Path(location).is_absolute():
        raise invalid(
            f"tensor {tensor.name!r} of the model has external data at {location!r};"
            " expected a path relative to the model"
        )
    if any(key.startswith("prepacked") for key in entries):
        # ONNX Runtime keeps weights packed for its kernels in other places of the same file.
        return location, 0, None
    try:
        start, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
    except ValueError:
        start = length = -1
    if start < 0 or length < 0:
        raise invalid(
            f"tensor {tensor.name!r} of the model has external data at offset {entries.get('offset')!r} with"
            f" length {entries.get('length')!r}; expected whole numbers of 0 or more"
        )
    # Without a length ONNX Runtime takes what the tensor's shape needs, which the rest of the file covers.
    return location, start, start + length if length else None


def _merged(regions: list[tuple[int, int | None]], size: int) -> list[tuple[int, int]]:
    """Joins regions that overlap or touch, so that shared weights are read once."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((start, max(start, size) if stop is None else stop) for start, stop in regions):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yields every tensor that a model holds, wherever it sits; training graphs, which never run, aside."""
    bodies: list[Body] = [model.graph, *model.functions]
    for part in (part for body in bodies for part in nested(body)):
        if isinstance(part, onnx.GraphProto):
            yield from part.initializer
            for sparse in part.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        attributes = [attribute for node in part.node for attribute in node.attribute]
        if isinstance(part, onnx.FunctionProto):
            attributes.extend(part.attribute_proto)
        for attribute in attributes:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
