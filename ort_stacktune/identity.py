"""Owns identity text: how parts are joined, keys formed and contents digested.

Must never shorten or round what goes into a key: two questions that differ anywhere differ here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import xxhash

from ort_stacktune.failures import invalid
from ort_stacktune.vocabulary import Problem

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from ort_stacktune.policy import Candidate, StackPolicy

KEY_SCHEMA = "ort_stacktune/key/1"
MAX_KEY_BYTES = 384 * 1024


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


def cache_key(problem: Problem, candidates: Sequence[Candidate], reference: int, policy: StackPolicy) -> str:
    """Returns the full identity text of a question: what is asked, of which candidates, how strictly.

    Args:
        problem: The question.
        candidates: All candidates, in order; order and every field of each are part of the identity.
        reference: Position of the reference among them.
        policy: Only its ``accuracy_key()`` counts; effort and mode do not.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the text exceeds 384 KiB.
    """
    manifest = fields(
        fields(
            (
                candidate.name,
                candidate.revision,
                "" if candidate.workspace_bytes is None else str(candidate.workspace_bytes),
                "1" if candidate.eligible else "0",
            )
        )
        for candidate in candidates
    )
    key = fields(
        (
            KEY_SCHEMA,
            problem.scope.name,
            problem.operation,
            problem.environment,
            problem.workload,
            problem.execution_context,
            str(reference),
            manifest,
            policy.accuracy_key(),
        )
    )
    size = len(key.encode())
    if size > MAX_KEY_BYTES:
        raise invalid(
            f"the identity of this question takes {size} bytes, more than the {MAX_KEY_BYTES} allowed;"
            " shorten the operation or workload text, or pass fewer candidates"
        )
    return key


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
