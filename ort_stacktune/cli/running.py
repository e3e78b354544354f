"""Owns what commands that run models share: ONNX Runtime, the model's session and its declared inputs.

Must never leave an error of ONNX Runtime's about a user's file or provider to be a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ort_stacktune.failures import TuneFailure, invalid
from ort_stacktune.ort.loader import onnxruntime

# What needs onnx is imported where it is used: it takes longer to load than most commands take to run.
if TYPE_CHECKING:
    from ort_stacktune.ort.graph import Dims, InputFact
    from ort_stacktune.session import TunedSession
    from ort_stacktune.tuner import StackTuner

_ERRORS_ONLY = 3
_SUFFIX = "ExecutionProvider"
DEFAULT_PROVIDERS = ("CPUExecutionProvider",)


def load_onnxruntime() -> ModuleType:
    """Imports ONNX Runtime and keeps its log to errors.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where no build works, with what to do.
    """
    try:
        module = onnxruntime()
    except ImportError as error:
        raise invalid(str(error)) from error
    # The default logger's level, because a session's own would be an option that sets it apart from the
    # session of an application that is to find this choice.
    module.set_default_logger_severity(_ERRORS_ONLY)
    return module


def provider_names(given: Sequence[str]) -> list[str]:
    """Returns execution providers by full name; case and the common suffix may be left out.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a provider that this build lacks, with those that it has.
    """
    available = list(load_onnxruntime().get_available_providers())
    short = {name.removesuffix(_SUFFIX).lower(): name for name in available}
    names = []
    for name in given:
        full = short.get(name.lower().removesuffix(_SUFFIX.lower()))
        if full is None:
            raise invalid(
                f"execution provider {name!r} is not in this build of ONNX Runtime; it has"
                f" {', '.join(available)}"
            )
        names.append(full)
    return names


def open_model(
    path: str,
    tuner: StackTuner,
    *,
    providers: Sequence[str] = (),
    threads: int | None = None,
    reduced_precision: Sequence[str] = (),
) -> TunedSession:
    """Makes the session of a model: the reference, as an application would make it.

    Args:
        path: The model's file.
        tuner: The controller.
        providers: Execution providers, as for :func:`provider_names`; none for the CPU.
        threads: Threads within an operator; ``None`` leaves them to ONNX Runtime.
        reduced_precision: As for ``TunedSession``.

    Raises:
        TuneFailure: ``INVALID_INPUT`` where the file or a provider can't be used.
    """
    ort = load_onnxruntime()
    from ort_stacktune.session import TunedSession

    if not Path(path).is_file():
        raise invalid(f"the model {path} {'is not a file' if Path(path).exists() else 'does not exist'}")
    names = provider_names(providers or DEFAULT_PROVIDERS)
    options = None
    if threads is not None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
    try:
        session = TunedSession(
            path, options, providers=names, tuner=tuner, reduced_precision=reduced_precision
        )
    except TuneFailure:
        raise
    except Exception as error:
        # ONNX Runtime's classes for what is wrong with a model differ between its versions.
        raise invalid(f"the model {path} can't be loaded: {ort_message(error)}") from error
    if missing := [name for name in names if name not in session.get_providers()]:
        raise invalid(f"{missing[0]} can't be used here: a library that it needs did not load")
    return session


def declared(session: Any, path: str) -> tuple[list[InputFact], list[InputFact]]:
    """Returns the inputs of a session and the initializers that may be fed, as its model declares them."""
    from ort_stacktune.ort.graph import InputFact
    from ort_stacktune.ort.model import ModelSource

    # ONNX Runtime says [] both for a scalar and for a tensor of unknown rank; the graph tells them apart.
    unranked: set[str] = set()
    if any(not meta.shape for meta in session.get_inputs()):
        facts = ModelSource.of(path).graph()
        unranked = {fact.name for fact in facts.inputs if fact.dims is None} if facts else set()

    def fact(meta: Any) -> InputFact:
        dims: Dims = tuple(dim if isinstance(dim, int) else dim or None for dim in meta.shape)
        return InputFact(meta.name, meta.type, None if meta.name in unranked else dims)

    return [*map(fact, session.get_inputs())], [*map(fact, session.get_overridable_initializers())]


def checked_outputs(session: Any, names: Sequence[str]) -> list[str] | None:
    """Returns the wanted outputs, ``None`` for all.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for one that the model lacks.
    """
    known = [meta.name for meta in session.get_outputs()]
    for name in names:
        if name not in known:
            raise invalid(f"the model has no output {name!r}; it has {', '.join(map(repr, known))}")
    return list(dict.fromkeys(names)) or None


def ort_message(error: BaseException) -> str:
    """Returns what ONNX Runtime says in an error, without its codes and what is plain from the context."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    return re.sub(r"^Load model from .* failed:", "", text).strip().rstrip(".")
