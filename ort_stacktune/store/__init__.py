"""Owns the records that outlive a process: their text format, their files and the store over them.

Must never import ONNX Runtime, execute anything it reads, or raise for anything found on disk.
"""

from __future__ import annotations

from ort_stacktune.store.faults import FaultMemory, FaultRecord, fault_key
from ort_stacktune.store.record import Record
from ort_stacktune.store.records import RecordStore, StoredEntry

__all__ = ["FaultMemory", "FaultRecord", "Record", "RecordStore", "StoredEntry", "fault_key"]
