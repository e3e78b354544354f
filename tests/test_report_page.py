"""What is relied on of the page: whole, safe whatever names hold, the same for the same records."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from evidence import ALL, ENVIRONMENT, LATE, LUCKY, REFERENCE, SLOWER, WINNER, WRONG, kept, record

from ort_stacktune.report.markup import Markup, element, joined
from ort_stacktune.report.page import page
from ort_stacktune.report.view import build

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><script>",
    "two\nlines\ttab",
    "\u202eevil\u202c rtl",
    "שלום עולם",
    "&lt;b&gt;",
    "x" * 4096,
    "javascript:alert(1)",
    "\x00\x1b[31m",
)


class Reader(HTMLParser):
    """Takes a page apart and finds what is not closed."""

    EMPTY = frozenset(("meta", "br", "input"))

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, each, value in self.attributes if each == name]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def read(*records: object) -> Reader:
    return Reader(page(build(list(records))))  # type: ignore[arg-type]


def test_the_same_records_give_the_same_page() -> None:
    records = [record(), kept(), record(shape=(1, 2))]
    assert page(build(records)) == page(build(records[::-1]))


def test_a_page_names_nothing_outside_itself() -> None:
    found = read(record(), kept())
    assert found.values("src") == []
    assert all(value.startswith("#") for value in found.values("href"))
    assert not {"link", "img", "iframe", "object", "form", "base"} & set(found.tags)
    text = page(build([record()]))
    assert not re.search(r"https?:|url\(|@import|@font-face", text)


def test_every_link_has_its_target_and_every_id_is_there_once() -> None:
    other = ENVIRONMENT.replace("EPYC", "EPYX")
    found = read(record(), kept(), record(environment=other))
    ids = Counter(found.values("id"))
    assert max(ids.values()) == 1
    assert {value.removeprefix("#") for value in found.values("href")} <= set(ids)


def test_a_page_allows_itself_its_own_script_and_style_and_no_other() -> None:
    text = page(build([record()]))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    for tag in ("style", "script"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{tag}-src &#x27;sha256-{digest}&#x27;" in policy[1]
    # What a style attribute or a handler would need, the policy forbids; so there is none.
    assert not [name for _, name, _ in Reader(text).attributes if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_text_and_no_more(name: str) -> None:
    plain = read(record("detector", candidates=[REFERENCE, WINNER, LUCKY, WRONG]))
    candidates = [REFERENCE, replace(WINNER, name=name, facts={name: name}), replace(LUCKY, note=name), WRONG]
    hostile = record(name, candidates=candidates, winner=name, environment=ENVIRONMENT)
    text = page(build([hostile]))
    found = Reader(text)
    for tag in ("script", "style", "img", "b", "a", "tr", "svg"):
        assert found.tags[tag] == plain.tags[tag], tag
    assert {each for _, each, _ in found.attributes} <= {each for _, each, _ in plain.attributes} | {"title"}
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)


def test_a_hostile_environment_and_signature_are_text_and_no_more() -> None:
    evil = "<script>alert(1)</script>"
    report = replace(record().report, environment=evil, workload=evil, operation=evil, execution_context=evil)
    found = read(
        replace(
            record(), report=replace(report, phases_ns={evil: 5}), effort={evil: 1.0}, winner_revision=evil
        )
    )
    assert found.tags["script"] == 1
    assert evil in found.words


def test_a_very_long_name_is_shortened_where_it_would_disturb_and_whole_elsewhere() -> None:
    name = "n" * 4096
    found = read(record(candidates=[REFERENCE, WINNER, replace(LUCKY, name=name)]))
    assert name in found.values("title")
    assert max(len(word) for word in found.words.split()) < 100


def test_every_candidate_and_reason_is_told_in_words() -> None:
    words = read(record()).words
    for each in ALL:
        assert each.name in words
    for text in (
        "openvino wins: 2.00\N{MULTIPLICATION SIGN} as fast as the reference, its outputs agree (found in 8.0 s).",
        "output 'y' differs by 0.5 where 0.0001 is allowed",
        "rejected, time-out",
        "its session was not made within 30 s",
        "slower by 1.25\N{MULTIPLICATION SIGN} or more in all 3 pairs",
        "the budget was spent",
        "OpenVINO 9 of 9",
        "64 calls",
        "17.0 MiB",
        "100 ms + 2.00 ms",
        "41.0 ms",
        "a gain of 1.1\N{MULTIPLICATION SIGN} or more",
        "AMD EPYC 9B45",
        "2025-11-24T16:00:00Z",
    ):
        assert text in words, text


def test_a_strip_tells_what_it_shows() -> None:
    told = read(record()).values("aria-label")
    assert (
        "selected, 2.00\N{MULTIPLICATION SIGN} faster in median, interval 1.25 to 2.50 times as fast" in told
    )
    assert "not faster, 1.05\N{MULTIPLICATION SIGN} unproven in median" in told
    assert "rejected, not timed" in told


def test_the_threshold_of_the_question_is_drawn_and_none_is_made_up() -> None:
    assert 'class="least"' in page(build([record()]))
    assert '<line class="least"' not in page(build([record(key="of another make")]))


def test_shapes_tell_standings_apart_without_colour() -> None:
    text = page(build([record(candidates=[REFERENCE, WINNER, SLOWER, replace(WRONG, ratio=1.2)])]))
    strips = re.findall(r'<tr class="([\w-]+)"><th scope="row">.*?<svg class="strip".*?</svg></td>', text)
    assert {"selected", "reference", "not-faster", "rejected"} <= set(strips)
    for shape in ('class="disc"', 'class="ring"', 'class="cross"', 'class="arrow"'):
        assert shape in text


def test_places_are_within_the_strip() -> None:
    records = [
        record(),
        kept(),
        record("fast", candidates=[REFERENCE, replace(WINNER, ratio=0.0025), SLOWER, LATE]),
    ]
    places = re.findall(r' (?:x|x1|x2|cx)="([^"]*)%"', page(build(records)))
    assert places
    assert all(0 <= float(place) <= 100 for place in places)


def test_an_empty_cache_gives_a_page_that_says_so() -> None:
    assert "Nothing is stored yet" in read().words


def test_environments_have_letters_only_where_there_are_several() -> None:
    other = ENVIRONMENT.replace("EPYC", "EPYX")
    assert "environment-B" in read(record(), record(environment=other)).values("id")
    assert "differs from A:" in read(record(), record(environment=other)).words
    assert "environment-B" not in read(record()).values("id")


def test_markup_escapes_all_but_markup() -> None:
    assert element("p", "<a>", Markup("<b/>"), class_='"', hidden=True, title=None) == (
        '<p class="&quot;" hidden>&lt;a&gt;<b/></p>'
    )
    assert joined(["a", None, ["&", 3]]) == "a&amp;3"
