"""Owns the phrases of a page: how a view's parts read, set with the signs that a terminal may lack. Pure."""

from __future__ import annotations

import re

from ort_stacktune.report import words
from ort_stacktune.report.scale import span
from ort_stacktune.report.strictness import Strictness
from ort_stacktune.report.svg import Mark, Shape
from ort_stacktune.report.view import CandidateView, EnvironmentView, Overview, SignatureView, Standing
from ort_stacktune.vocabulary import Decision, DecisionSource, TuneReport

LONGEST_NAME = 60
LONGEST_SIGNATURE = 150

_HEADLINE_FACTS = ("ONNX Runtime package", "processor", "system")
_CORES = "cores by affinity"

# Only where it can't be part of somebody's name or shape.
_FACTOR = re.compile(
    r"(?<![\w.])(\d[\d.,]*)x(?= (?:faster|slower|or more|after|as fast|is under|unproven)\b|[:;]|$)"
)
_MICROSECONDS = re.compile(r"(?<=\d) us\b")
_RANGE = re.compile(r"[\d.]+-[\d.]+")

_SHAPES = {
    Standing.SELECTED: Shape.DISC,
    Standing.PASSED: Shape.DISC,
    Standing.NOT_FASTER: Shape.DISC,
    Standing.REFERENCE: Shape.RING,
    Standing.UNDECIDED: Shape.RING,
    Standing.REJECTED: Shape.CROSS,
    Standing.NOT_TRIED: Shape.CROSS,
}
_PROVEN = (Standing.SELECTED, Standing.PASSED)


def typeset(text: str) -> str:
    """Returns words and numbers of ours with the signs of print, such as ``1.42× faster`` or ``31 µs``."""
    if text == words.NOTHING:
        return "–"
    text = _FACTOR.sub(r"\1×", text)
    text = _MICROSECONDS.sub(" µs", text)
    return text.replace("-", "–") if _RANGE.fullmatch(text) else text


def headline(overview: Overview) -> str:
    """Returns the report's one sentence."""
    left, every = overview.left_reference, words.number_of(overview.signatures, "signature")
    if left == 0:
        return f"No faster way was proven for {every}"
    return f"{left} of {every} {'runs' if left == 1 else 'run'} faster another way"


def trials(overview: Overview) -> str:
    """Returns how many candidates took part."""
    every = words.number_of(overview.candidates, "candidate")
    return f"{overview.tried} of {every} tried, {overview.rejected} rejected"


def environment_line(environment: EnvironmentView) -> str:
    """Returns the parts of an environment that people know it by."""
    facts = dict(environment.facts)
    # A processor is told by fields, its name first.
    parts = [
        facts[label].partition(";")[0].removeprefix("model name ")
        for label in _HEADLINE_FACTS
        if facts.get(label)
    ]
    if _CORES in facts:
        parts.append(f"{facts[_CORES]} core{'' if facts[_CORES] == '1' else 's'}")
    return " · ".join(parts) or next(iter(facts.values()), "unknown")


def environment_letter(position: int) -> str:
    """Returns what an environment is called in this report: A, B, … Z, A1, …."""
    turn, letter = divmod(position, 26)
    return chr(ord("A") + letter) + (str(turn) if turn else "")


def signature_text(signature: SignatureView) -> str:
    """Returns a signature as print sets it."""
    return signature.signature.replace(" -> ", " → ")


def verdict_sentence(signature: SignatureView) -> str:
    """Returns what was decided and how it is known."""
    decision = Decision(
        index=1 if signature.left_reference else 0,
        reference_index=0,
        name=words.shortened(signature.winner, LONGEST_NAME),
        source=DecisionSource.TUNED,
        verified=signature.verified,
        ratio=signature.ratio,
        cache_key="",
    )
    report = TuneReport("", "", "", "", "", signature.elapsed_ns, signature.budget_exhausted, ())
    return words.decision_line(decision, report)


def gain_label(candidate: CandidateView) -> str:
    """Returns what stands beside a candidate's dot.

    "Faster" is said of those only that proved it.
    """
    ratio = candidate.evidence.ratio
    if candidate.standing is Standing.REFERENCE:
        return "reference"
    if ratio is None:
        return ""
    text = words.gain(ratio)
    if text.endswith(" faster") and candidate.standing not in _PROVEN:
        return text.replace("faster", "unproven")
    return text


def told(candidate: CandidateView) -> str:
    """Returns in words what a candidate's strip shows."""
    evidence = candidate.evidence
    if candidate.standing is Standing.REFERENCE:
        return "the reference, at 1×"
    if evidence.ratio is None:
        return f"{candidate.standing.value}, not timed"
    text = f"{candidate.standing.value}, {gain_label(candidate)} in median"
    if evidence.interval is not None:
        text += f", interval {words.gain_interval(evidence.interval).replace('-', ' to ')} times as fast"
    return typeset(text)


def mark(candidate: CandidateView) -> Mark | None:
    """Returns what marks a candidate on its strip; ``None`` where it was not timed."""
    evidence = candidate.evidence
    if evidence.ratio is None:
        return None
    # Its row names the reference, and the axis says where it is.
    label = "" if candidate.standing is Standing.REFERENCE else typeset(gain_label(candidate))
    return Mark(span(evidence.ratio, evidence.interval), _SHAPES[candidate.standing], role(candidate), label)


def role(candidate: CandidateView) -> str:
    """Returns a candidate's standing as the style sheet knows it."""
    return candidate.standing.name.lower().replace("_", "-")


def standing(candidate: CandidateView) -> str:
    """Returns a candidate's standing in a word or two, with the kind of its failure."""
    kind = words.failure_kind(candidate.evidence)
    own = candidate.standing.value
    return f"{own}, {kind}".replace("rejected, rejected", "rejected") if kind else own


def why(candidate: CandidateView) -> str:
    """Returns the reason behind a standing, without what the standing says already."""
    return words.reason(candidate.evidence).removeprefix(candidate.standing.value).lstrip(" ,:")


def nodes(candidate: CandidateView) -> str:
    """Returns where a candidate's nodes ran, and whatever else its runner told."""
    facts = dict(candidate.evidence.facts)
    parts = [facts.pop("nodes")] if "nodes" in facts else []
    return "; ".join([*parts, *(f"{label}: {text}" for label, text in facts.items())])


def repaid(candidate: CandidateView) -> str:
    """Returns after how many calls a candidate has repaid its first costs."""
    calls = candidate.break_even_calls
    return words.NOTHING if calls is None else f"{calls:,} {'call' if calls == 1 else 'calls'}"


def demands(strictness: Strictness | None) -> str:
    """Returns what was demanded of a winner."""
    if strictness is None:
        return "not known"
    parts = [
        f"a gain of {strictness.min_speedup:g}x or more",
        f"confidence {strictness.confidence:g}",
        f"outputs within {strictness.absolute:g} + {strictness.relative:g} of the reference's magnitude",
        f"timed {strictness.timing.value}",
    ]
    if strictness.concurrency > 1:
        parts.append(f"{strictness.concurrency} callers at once")
    if strictness.expected_calls is not None:
        parts.append(f"repaid within {strictness.expected_calls} calls")
    return typeset("; ".join(parts))
