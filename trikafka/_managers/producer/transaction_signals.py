"""The signals by which the state of a producer's transaction wakes tasks.

The state notifies them (see ``ProducerParts``), the manager waits.
"""

from __future__ import annotations

from ..._net.signal import Signal


class ProducerTransactionSignals:
    """The signals of one transactional producer."""

    def __init__(self) -> None:
        self.changed = Signal()  # the transaction's state has changed
        self.wanted = Signal()  # there are partitions to add at the coordinator
