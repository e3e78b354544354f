"""Owns several sessions of one recipe behind the methods of one, a session for each caller at one time.

Some models scale better over callers with a session each than with one that they share. Must never make a
caller wait for a session: one more caller than there are sessions shares the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any


class SessionPool:
    """Sessions that callers take in turns.

    Args:
        sessions: At least one ``onnxruntime.InferenceSession``, all of one recipe.
    """

    def __init__(self, sessions: Sequence[Any]) -> None:
        self._first = sessions[0]
        # Taking and putting back are atomic on a deque, so no lock is needed on the way of a request.
        self._idle = deque(sessions)
        self._sess = _NativePool([session._sess for session in sessions])

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As ``InferenceSession.run``."""
        return self._on_an_idle_one("run", output_names, input_feed, run_options)

    def run_with_ort_values(self, output_names: Any, values: Any, run_options: Any = None) -> Any:
        """As ``InferenceSession.run_with_ort_values``."""
        return self._on_an_idle_one("run_with_ort_values", output_names, values, run_options)

    def run_async(self, *arguments: Any) -> None:
        """As ``InferenceSession.run_async``; on the first session, whose threads do the waiting."""
        self._first.run_async(*arguments)

    def get_providers(self) -> list[str]:
        """As ``InferenceSession.get_providers``."""
        providers: list[str] = self._first.get_providers()
        return providers

    def get_inputs(self) -> Any:
        """As ``InferenceSession.get_inputs``."""
        return self._first.get_inputs()

    def get_outputs(self) -> Any:
        """As ``InferenceSession.get_outputs``."""
        return self._first.get_outputs()

    def get_overridable_initializers(self) -> Any:
        """As ``InferenceSession.get_overridable_initializers``."""
        return self._first.get_overridable_initializers()

    def _on_an_idle_one(self, method: str, *arguments: Any) -> Any:
        try:
            session = self._idle.pop()
        except IndexError:
            return getattr(self._first, method)(*arguments)
        try:
            return getattr(session, method)(*arguments)
        finally:
            self._idle.append(session)


class _NativePool:
    """The native sessions of a pool, for the shortest way of a decided request."""

    def __init__(self, natives: Sequence[Any]) -> None:
        self._first = natives[0]
        self._idle = deque(natives)

    def run(self, output_names: Any, input_feed: Any, run_options: Any) -> Any:
        try:
            native = self._idle.pop()
        except IndexError:
            return self._first.run(output_names, input_feed, run_options)
        try:
            return native.run(output_names, input_feed, run_options)
        finally:
            self._idle.append(native)
