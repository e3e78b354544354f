"""Owns how text becomes markup: what is not markup already is escaped, so that no name can be more than text.

Must never trust a text. Pure.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Union

from ort_stacktune.report.words import printable

Child = Union["Markup", str, int, None, Iterable["Child"]]
Attribute = str | int | float | bool | None

_EMPTY = frozenset(("br", "circle", "input", "line", "meta", "path", "rect", "use"))


class Markup(str):
    """Text that is markup and goes onto the page as it is."""

    __slots__ = ()


def element(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """Returns an element.

    Args:
        tag: Its name.
        children: What it holds: markup as it is, text escaped, iterables one by one, nothing for ``None``.
        attributes: Its attributes, ``_`` for ``-`` and at the end of a word of Python's; ``None`` and ``False``
            leave one out, ``True`` is one without a value.
    """
    head = tag + "".join(
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_escaped(str(value))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _EMPTY:
        return Markup(f"<{head}/>")
    return Markup(f"<{head}>{joined(children)}</{tag}>")


def joined(child: Child) -> Markup:
    """Returns one or more children as markup."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return Markup(_escaped(str(child)))
    return Markup("".join(map(joined, child)))


def _escaped(text: str) -> str:
    # Characters that can't be seen, or that turn the order of a line round, are shown as their codes.
    return html.escape(printable(text))
