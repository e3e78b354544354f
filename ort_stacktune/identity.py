"""Owns identity text: how parts are joined, keys formed and contents digested.

Must never shorten or round what goes into a key: two questions that differ anywhere differ here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import xxhash

from ort_stacktune.failures import invalid

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]


def fields(parts: Iterable[str]) -> str:
    """Joins texts so that no two different lists meet: each part is preceded by its length in UTF-8 bytes.

    ``("ab", "c")`` and ``("a", "bc")`` give different texts. The form is that of netstrings
    (``2:ab,1:c,``), so that a person can read it and :func:`parse_fields` can take it apart again.
    """
    return "".join(f"{len(part.encode())}:{part}," for part in parts)


def parse_fields(text: str) -> list[str]:
    """Takes apart what :func:`fields` joined.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the text is not of that form.
    """
    data = text.encode()
    parts = []
    position = 0
    while position < len(data):
        colon = data.find(b":", position, position + 12)
        digits = data[position:colon] if colon > 0 else b""
        if not digits.isdigit():
            raise invalid(f"expected a length at byte {position} of length-delimited text")
        end = colon + 1 + int(digits)
        if data[end : end + 1] != b",":
            raise invalid(f"expected ',' at byte {end} of length-delimited text")
        parts.append(data[colon + 1 : end].decode())
        position = end + 1
    return parts


def text_digest(text: str) -> str:
    """Returns 32 hex digits that name a text, for file names and short labels (BLAKE2b, 128 bits)."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def workload_digest(data: Buffer) -> str:
    """Returns a fingerprint of contents, 128 bits as 32 hex digits (XXH3).

    It tells different contents apart; it proves nothing about who made them and hides nothing.

    Args:
        data: Any bytes-like object of any size, a memory map included; it must be C-contiguous.
    """
    return xxhash.xxh3_128_hexdigest(memoryview(data))
