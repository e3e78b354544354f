"""Replays noise, recorded and made up, through selection rules. Used by `bench_selection.py`."""
