"""What the state of a producer's transaction wakes tasks with.

The state notifies them (see ``ProducerParts``), the manager waits.
"""

from __future__ import annotations

from .._net.signal import Signal


class TransactionSignals:
    """What the state of a transaction wakes tasks with."""

    def __init__(self) -> None:
        self.changed = Signal()  # it went from one state to another
        self.wanted = Signal()  # there are partitions to tell the coordinator of
