"""Owns the recipe: a frozen description from which a session can be made any number of times.

Session options of ONNX Runtime can't be copied, pickled or enumerated, so a candidate is kept as a recipe
and never as an options object. Must never make a session: that is :mod:`ort_stacktune.ort.sessions`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ort_stacktune.failures import invalid
from ort_stacktune.identity import fields, text_digest, workload_digest
from ort_stacktune.ort.loader import onnxruntime
from ort_stacktune.ort.model import ModelSource
from ort_stacktune.ort.options import (
    ATTRIBUTES,
    CONFIG,
    COSMETIC_ATTRIBUTES,
    ENUMS,
    RECORDING_CONFIG,
    OptionValue,
    check_attribute,
    check_config,
)
from ort_stacktune.ort.plugins import plugins_here
from ort_stacktune.ort.provider_options import AcceptedOptions, checked_options, options_in_config
from ort_stacktune.ort.provider_table import READS_CONFIG
from ort_stacktune.policy import Candidate

_SCHEMA = "recipe/1"
_MAX_INSTANCES = 256

Provider = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class SessionRecipe:
    """One way to execute a model.

    Attributes:
        name: What people call it; unique among the candidates of one question.
        model: Path of the model; ``None`` for the reference's.
        providers: Execution providers in order of preference, as names or ``(name, options)`` pairs. The
            first is the one asked for: a session that gives it no node is refused, and so is one that gives
            a node to any other, unless ``allow_partial`` is set. ``None`` for the reference's.
        session_options: Attributes of ``onnxruntime.SessionOptions``; what is absent keeps its default.
        config: Session config entries.
        run_config: Run config entries, set on the options of every run.
        custom_op_libraries: Paths of custom operator libraries, each registered once.
        workspace_bytes: Workspace it needs; ``None`` where unknown.
        eligible: False keeps it in the manifest but out of the trials.
        shapes: Exact shape of every input, where the graph is to be fixed to them; such a recipe serves
            that signature only.
        instances: Sessions that callers take in turns, 1 to 256. More than one serves ``run`` and
            ``run_with_ort_values``, not IO bindings, which belong to one session.
        allow_partial: Whether nodes may go to other providers than the first; the report then tells the
            share of each. Without it such a session is refused, with the operators named.
        ep_libraries: Libraries of plugin execution providers, registration name -> path; each is registered
            once in a process, before the session is made. With one, a provider that this build lacks is
            accepted here, because only loading the library tells what it brings.
        risky: Whether it may end the process that tries it; it is searched for in processes of its own only.
        revision: Digest of all of the above but the name and the risk.
        model_digest: Digest of the model's content when the recipe was made; empty for the reference's model.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for an execution provider that this build lacks, an unknown option or
            one of another version, an illegal value or a missing file, with the name of what is wrong.
    """

    name: str
    model: str | None = None
    providers: Sequence[str | Provider] | None = None
    session_options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    run_config: Mapping[str, str] = field(default_factory=dict)
    custom_op_libraries: Sequence[str] = ()
    workspace_bytes: int | None = None
    eligible: bool = True
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    instances: int = 1
    allow_partial: bool = False
    ep_libraries: Mapping[str, str] = field(default_factory=dict)
    risky: bool = False
    revision: str = field(init=False)
    model_digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise invalid(f"recipe name is {self.name!r}; expected nonempty text")
        if not _is_unicode(self.name):
            raise invalid(
                f"recipe name {self.name!r} holds a lone surrogate; expected text that UTF-8 can carry"
            )
        normal = object.__setattr__
        if self.model is not None:
            normal(self, "model", _existing_file("model", self.model))
        normal(self, "ep_libraries", _ep_libraries(self.ep_libraries))
        providers = None if self.providers is None else _providers(self.providers, bool(self.ep_libraries))
        normal(self, "providers", providers)
        normal(
            self,
            "session_options",
            {
                key: check_attribute(key, value)
                for key, value in _entries("session_options", self.session_options)
            },
        )
        normal(
            self, "config", {key: check_config(key, value) for key, value in _entries("config", self.config)}
        )
        normal(
            self, "run_config", {key: str(value) for key, value in _entries("run_config", self.run_config)}
        )
        normal(self, "custom_op_libraries", _libraries(self.custom_op_libraries))
        normal(self, "shapes", {name: _shape(name, sizes) for name, sizes in _entries("shapes", self.shapes)})
        whole = isinstance(self.instances, int) and not isinstance(self.instances, bool)
        if not whole or not 1 <= self.instances <= _MAX_INSTANCES:
            raise invalid(
                f"instances of recipe {self.name!r} is {self.instances!r};"
                f" expected a whole number from 1 to {_MAX_INSTANCES}"
            )
        for flag in ("eligible", "allow_partial", "risky"):
            if not isinstance(getattr(self, flag), bool):
                raise invalid(
                    f"{flag} of recipe {self.name!r} is {getattr(self, flag)!r}; expected True or False"
                )
        if self.workspace_bytes is not None and (
            isinstance(self.workspace_bytes, bool)
            or not isinstance(self.workspace_bytes, int)
            or self.workspace_bytes < 0
        ):
            raise invalid(
                f"workspace_bytes of recipe {self.name!r} is {self.workspace_bytes!r}; expected bytes, 0 or"
                " more, or None for unknown"
            )
        normal(self, "model_digest", "" if self.model is None else ModelSource.of(self.model).digest())
        normal(self, "revision", self._digest())

    def __hash__(self) -> int:
        return hash((self.name, self.revision))

    @property
    def provider_list(self) -> tuple[Provider, ...]:
        """The providers as (name, options) pairs; empty where they are the reference's."""
        return tuple(p if isinstance(p, tuple) else (p, {}) for p in self.providers or ())

    @property
    def complexity(self) -> int:
        """How far it is from the plainest session: providers beyond the first, and settings made."""
        providers = self.provider_list
        return (
            4 * max(0, len(providers) - 1)
            + sum(len(options) for _, options in providers)
            + len(self._telling_options())
            + len(self.config)
            + len(self.custom_op_libraries)
            + (1 if self.shapes else 0)
            + (self.instances - 1)
        )

    @property
    def may_spin(self) -> bool:
        """Whether idle threads of its session may go on spinning after a run."""
        if self.config.get("session.force_spinning_stop") == "1":
            return False
        pool = self.session_options.get("intra_op_num_threads") != 1
        pools = pool or self.session_options.get("execution_mode") == "ORT_PARALLEL"
        return pools and self.config.get("session.intra_op.allow_spinning") != "0"

    def candidate(self) -> Candidate:
        """Returns what the controller sees of it."""
        return Candidate(
            self.name, self.revision, self.workspace_bytes, self.eligible, self.complexity, self.risky
        )

    def inheriting(self, reference: SessionRecipe) -> SessionRecipe:
        """Returns it with the reference's providers where it names none of its own.

        Wherever the reference's nodes go is right by definition, so the same is allowed here.
        """
        if self.providers is not None:
            return self
        return variant(
            self,
            self.name,
            providers=reference.providers,
            allow_partial=True,
            ep_libraries={**reference.ep_libraries, **self.ep_libraries},
        )

    def _telling_options(self) -> dict[str, Any]:
        """Returns the session options that shape execution: how much is logged makes no other candidate."""
        return {
            name: value for name, value in self.session_options.items() if name not in COSMETIC_ATTRIBUTES
        }

    def _digest(self) -> str:
        libraries = (_file_digest(path) for path in self.custom_op_libraries)
        parts = [
            _SCHEMA,
            self.model_digest,
            "inherited" if self.providers is None else "",
            fields(
                fields((name, *(fields(pair) for pair in sorted(options.items()))))
                for name, options in self.provider_list
            ),
            *(
                fields(fields((key, repr(value))) for key, value in mapping.items())
                for mapping in (self._telling_options(), self.config, self.run_config)
            ),
            fields(libraries),
            fields(fields((name, *map(str, shape))) for name, shape in self.shapes.items()),
            str(self.instances),
            str(self.workspace_bytes),
            str(self.eligible),
            str(self.allow_partial),
            fields(fields((name, _file_digest(path))) for name, path in self.ep_libraries.items()),
        ]
        return text_digest(fields(parts))


def variant(recipe: SessionRecipe, name: str, **changes: Any) -> SessionRecipe:
    """Returns a recipe with another name and some fields replaced; options and config are merged."""
    fresh: dict[str, Any] = {
        key: {**getattr(recipe, key), **changes.pop(key, {})} for key in ("session_options", "config")
    }
    for key in (
        "model",
        "providers",
        "run_config",
        "custom_op_libraries",
        "shapes",
        "instances",
        "workspace_bytes",
        "eligible",
        "allow_partial",
        "risky",
        "ep_libraries",
    ):
        fresh[key] = changes.get(key, getattr(recipe, key))
    return SessionRecipe(name, **fresh)


def with_options(recipe: SessionRecipe, provider: str, options: Mapping[str, str]) -> tuple[Provider, ...]:
    """Returns a recipe's providers with some options of one of them replaced.

    Args:
        recipe: The recipe.
        provider: The one whose options change; it has to be among them.
        options: Options to replace or add; the others stay, and stay unjudged where a session took them.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for an option that the provider does not take here.
    """
    fresh = checked_options(provider, options, onnxruntime().__version__)
    return tuple(
        (name, type(given)({**given, **fresh}) if name == provider else given)  # type: ignore[call-arg]
        for name, given in recipe.provider_list
    )


def recipe_of_options(
    name: str, options: Any, providers: Sequence[str | tuple[str, Mapping[str, Any]]]
) -> SessionRecipe:
    """Describes a session that a user made, as far as its options can be read back.

    Wherever it runs is right by definition, so its nodes may be anywhere, and what its providers accepted is
    not judged again.

    Args:
        name: Name for the recipe.
        options: The session's ``onnxruntime.SessionOptions``.
        providers: The providers it was asked for.
    """
    ort = onnxruntime()
    plain = ort.SessionOptions()
    attributes: dict[str, OptionValue] = {}
    for attribute in ATTRIBUTES:
        value = getattr(options, attribute, None)
        if value is None or value == getattr(plain, attribute, None):
            continue
        attributes[attribute] = value.name if attribute in ENUMS else value

    def entry_of(key: str) -> str | None:
        try:
            return str(options.get_session_config_entry(key))
        except RuntimeError:
            return None

    found = {key: entry_of(key) for key in CONFIG if key not in RECORDING_CONFIG}
    config = {key: value for key, value in found.items() if value is not None}
    accepted = [_accepted(entry, entry_of) for entry in providers]
    names = {entry if isinstance(entry, str) else entry[0] for entry in providers}
    return SessionRecipe(
        name,
        providers=accepted,
        session_options=attributes,
        config=config,
        allow_partial=True,
        # For processes where the application has not registered them.
        ep_libraries={name: path for name, path in plugins_here().items() if path and name in names},
    )


def available_providers() -> tuple[str, ...]:
    """Returns the execution providers of this build, and those of plugins registered in this process."""
    return tuple(dict.fromkeys((*onnxruntime().get_available_providers(), *plugins_here())))


def _providers(providers: Sequence[str | Provider], with_libraries: bool) -> tuple[Provider, ...]:
    if isinstance(providers, str) or not isinstance(providers, Sequence) or not providers:
        raise invalid(f"providers is {providers!r}; expected a list of names or (name, options) pairs")
    available = available_providers()
    listed: dict[str, Mapping[str, str]] = {}
    for entry in providers:
        pair = entry if isinstance(entry, tuple) else (entry, {})
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Mapping):
            raise invalid(f"provider {entry!r} is neither a name nor a (name, options) pair")
        name, options = pair
        if name not in available and not with_libraries:
            raise invalid(
                f"execution provider {name!r} is not in this build of ONNX Runtime;"
                f" it has {', '.join(available)}"
            )
        if name in listed:
            raise invalid(f"execution provider {name!r} is listed twice; list it once")
        listed[name] = checked_options(name, options, onnxruntime().__version__)
    return tuple(listed.items())


def _accepted(entry: str | tuple[str, Mapping[str, Any]], entry_of: Callable[[str], str | None]) -> Provider:
    """Returns a provider with the options that took effect."""
    name, given = (entry, {}) if isinstance(entry, str) else entry
    if name in READS_CONFIG:
        given = options_in_config(name, entry_of)
    return name, AcceptedOptions({str(key): str(value) for key, value in given.items()})


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entries(what: str, mapping: object) -> list[tuple[str, Any]]:
    if not isinstance(mapping, Mapping) or not all(isinstance(key, str) for key in mapping):
        raise invalid(f"{what} is {mapping!r}; expected a mapping with names as keys")
    return sorted(mapping.items())


def _shape(name: str, sizes: Any) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(size) for size in sizes)
    except TypeError:
        shape = (-1,)
    if any(size < 0 for size in shape):
        raise invalid(f"the shape of {name!r} is {sizes!r}; expected exact sizes, whole numbers of 0 or more")
    return shape


def _libraries(paths: object) -> tuple[str, ...]:
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise invalid(f"custom_op_libraries is {paths!r}; expected a list of paths")
    return tuple(_existing_file("custom operator library", path) for path in paths)


def _ep_libraries(paths: object) -> dict[str, str]:
    return {
        name: _existing_file(f"execution provider library {name!r}", path)
        for name, path in _entries("ep_libraries", paths)
    }


def _file_digest(path: str) -> str:
    return workload_digest(Path(path).read_bytes())


def _existing_file(what: str, path: object) -> str:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise invalid(f"{what} is {path!r}; expected the path of a file")
    text = os.path.abspath(path)  # noqa: PTH100 - Path.resolve() would follow symlinked caches
    if not Path(text).is_file():
        raise invalid(f"{what} {text!r} does not exist or is not a file; give the path of one")
    return text
