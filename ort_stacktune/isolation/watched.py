"""Owns trials that say what they are at and keep to a limit on their outputs; they run in a process of their own.

What is shown goes to a board in shared memory, so that a timed run is what it would be without it.
"""

from __future__ import annotations

from typing import Any, cast

from ort_stacktune.failures import FailureKind, Fault, ReferenceFailure, TuneFailure
from ort_stacktune.isolation.board import Board, Phase
from ort_stacktune.isolation.cargo import TrialSet, output_bytes
from ort_stacktune.ort.callers import Caller, Feeds, Outputs
from ort_stacktune.ort.trials import SessionTrials
from ort_stacktune.vocabulary import FirstCosts


class WatchedTrials(SessionTrials):
    """Session trials whose phases another process can see.

    Args:
        trials: What to try.
        board: Where the phases are shown.
        most_output_bytes: Most bytes of all outputs of one run.
    """

    def __init__(self, trials: TrialSet, board: Board, most_output_bytes: int) -> None:
        super().__init__(
            trials.recipes,
            trials.reference,
            trials.model,
            trials.request,
            steering=trials.steering,
            probes=trials.probes,
            live_run=None if trials.served is None else trials.served.again,
            timing=trials.timing,
            concurrency=trials.concurrency,
            zeros_are_safe=trials.zeros_are_safe,
            dims=trials.dims,
            ep_caches=trials.ep_caches,
        )
        self.reference = trials.reference
        self._board = board
        self._most_output_bytes = most_output_bytes

    def first_costs(self, candidate: int) -> FirstCosts:
        """Returns what is known of a candidate's costs without running it once more."""
        return self._costs[candidate]

    def release(self, candidate: int) -> None:
        """Closes a candidate's session."""
        with self._board.showing(Phase.RELEASE, candidate):
            super().release(candidate)

    def _make_caller(self, index: int) -> Caller:
        with self._board.showing(Phase.CREATE, index):
            made = super()._make_caller(index)
        return cast(Caller, _WatchedCaller(made, self, index))

    def run_watched(self, caller: Caller, index: int, feeds: Feeds) -> Outputs:
        """Runs a candidate once, for its outputs."""
        with self._board.showing(Phase.RUN, index):
            outputs = caller.run(feeds)
        size = output_bytes(outputs)
        if size <= self._most_output_bytes:
            return outputs
        raise too_large(size, self._most_output_bytes, of_the_reference=index == self._reference)

    def time_watched(self, caller: Caller, index: int, feeds: Feeds, loops: int) -> int:
        """Runs a candidate for its time."""
        with self._board.showing(Phase.RUN, index):
            return caller.time(feeds, loops)


def too_large(size: int, limit: int, *, of_the_reference: bool) -> TuneFailure:
    """Returns the failure of outputs over their limit."""
    sentence = f"outputs of one run take {size} bytes, more than limits.output_bytes {limit}"
    if of_the_reference:
        return ReferenceFailure(FailureKind.UNAVAILABLE, f"the reference's {sentence}", Fault.OUTPUT)
    return TuneFailure(FailureKind.REJECTED, f"its {sentence}", Fault.OUTPUT)


class _WatchedCaller:
    """A caller whose runs are shown."""

    def __init__(self, caller: Caller, trials: WatchedTrials, index: int) -> None:
        self._caller = caller
        self._trials = trials
        self._index = index

    def run(self, feeds: Feeds) -> Outputs:
        return self._trials.run_watched(self._caller, self._index, feeds)

    def time(self, feeds: Feeds, loops: int) -> int:
        return self._trials.time_watched(self._caller, self._index, feeds, loops)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._caller, name)
