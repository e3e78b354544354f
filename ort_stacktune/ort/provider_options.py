"""Owns the rules for options of execution providers: which are refused, and what they cost in precision.

ONNX Runtime meets a wrong option with anything from an error inside the provider to silence, so a recipe is
checked against the table of :mod:`ort_stacktune.ort.provider_table` before any session is made. Must never
judge a provider that the table lacks: plugins bring options of their own.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

from ort_stacktune.failures import invalid
from ort_stacktune.ort.options import WholeNumber
from ort_stacktune.ort.provider_table import (
    ALWAYS_REDUCES,
    FAMILIES,
    READS_CONFIG,
    ProviderOption,
    Version,
)


class AcceptedOptions(dict[str, str]):
    """Options that a session was seen to accept; whatever the table says, they are right."""


def checked_options(provider: str, options: Mapping[str, object], version: str) -> dict[str, str]:
    """Returns the options of an execution provider as text, in order of their names.

    Args:
        provider: The execution provider; of one that the table lacks, all options pass.
        options: Its options; a name may carry the provider's prefix for session configs.
        version: Version of ONNX Runtime they are for.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for an unknown option, one of another version, or an illegal value,
            by name.
    """
    texts = {str(name): str(value) for name, value in sorted(options.items())}
    if isinstance(options, AcceptedOptions):
        return AcceptedOptions(texts)
    family = FAMILIES.get(provider)
    if family is not None:
        for name, value in texts.items():
            _check(provider, family, name, value, version)
    return texts


def reduced_precisions(providers: Iterable[tuple[str, Mapping[str, str]]]) -> frozenset[str]:
    """Returns the precisions, below a graph's own, that providers with these options may compute in."""
    found: set[str] = set()
    for provider, options in providers:
        given = {_bare(provider, name): value for name, value in options.items()}
        found |= ALWAYS_REDUCES.get(provider, frozenset())
        for name, option in FAMILIES.get(provider, {}).items():
            value = given.get(name, option.default)
            if value in option.reduces:
                found.add(option.reduces[value])
    return frozenset(found)


def option_in_force(provider: str, options: Mapping[str, str], name: str) -> str:
    """Returns the value of an option: the given one, else its default; empty where neither is known."""
    given = {_bare(provider, key): value for key, value in options.items()}
    option = FAMILIES.get(provider, {}).get(name)
    return given.get(name, "" if option is None else option.default)


def config_of(providers: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """Returns the session config entries that say what providers' options say, for those that read them there."""
    return {
        f"{_prefix(provider)}{_bare(provider, name)}": value
        for provider, options in providers
        if provider in READS_CONFIG
        for name, value in options.items()
    }


def options_in_config(provider: str, read: Callable[[str], str | None]) -> dict[str, str]:
    """Returns the options of a provider that session config entries say.

    Args:
        provider: The provider; none are found for one that does not read them there.
        read: Returns the value of an entry, ``None`` where it is not set.
    """
    names = FAMILIES[provider] if provider in READS_CONFIG else ()
    found = {name: read(f"{_prefix(provider)}{name}") for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _check(provider: str, family: Mapping[str, ProviderOption], name: str, value: str, version: str) -> None:
    option = family.get(_bare(provider, name))
    if option is None:
        raise invalid(f"{provider} has no option {name!r}; {_known(family, name)}")
    here = _numbers(version)
    if here is not None and here < option.since:
        raise invalid(
            f"option {name} of {provider} is there since ONNX Runtime {_text(option.since)}; this is {version}"
        )
    if option.gone is not None and (here is None or here >= option.gone):
        raise invalid(
            f"option {name} of {provider} is no longer there in ONNX Runtime {_text(option.gone)} and later;"
            f" this is {version}"
        )
    legal = option.legal
    if isinstance(legal, tuple) and value not in legal:
        raise invalid(f"option {name} of {provider} is {value!r}; expected one of {', '.join(legal)}")
    if isinstance(legal, WholeNumber) and not legal.admits(value):
        raise invalid(f"option {name} of {provider} is {value!r}; expected {legal.describe()}")


def _known(family: Mapping[str, ProviderOption], name: str) -> str:
    if not family:
        return "it takes none"
    near = difflib.get_close_matches(name, family, 1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(family)}"


def _bare(provider: str, name: str) -> str:
    return name.removeprefix(_prefix(provider))


def _prefix(provider: str) -> str:
    return f"ep.{provider.lower()}."


def _numbers(version: str) -> Version | None:
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])


def _text(version: Version) -> str:
    return ".".join(map(str, version))
