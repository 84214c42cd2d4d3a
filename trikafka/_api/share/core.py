"""The state of a share consumer that its managers share, and the signals between them."""

from __future__ import annotations

from collections.abc import Iterable

from ..._managers.group.poll_timer import PollTimer
from ..._net.signal import Signal
from ..._state.group.member import Member
from ..._state.share.acquired import Holdings
from ..._state.share.assignment import ShareAssignment
from ..._state.share.buffer import ShareBuffer
from ...config import ShareConsumerConfig


class ShareCore:
    """The state of one share consumer; each part is written by its own module."""

    def __init__(self, config: ShareConsumerConfig, topics: Iterable[str]) -> None:
        #: Something may have become fetchable, or is to be acknowledged.
        self.wake = Signal()
        #: A receive has to look again: records, an error, the close.
        self.deliver = Signal()
        #: A receive has begun while the member was out of its group.
        self.returned = Signal()
        self.assignment = ShareAssignment(topics, self.wake.notify)
        self.buffer = ShareBuffer()
        self.holdings = Holdings()
        self.member = Member(None)
        self.poll_timer = PollTimer(config.max_poll_interval_ms / 1000)
        #: The number of open blocks of deliveries and batches.
        self.open_blocks = 0

    def block_opened(self) -> None:
        """Record that the program has entered a block."""
        self.open_blocks += 1

    def block_closed(self) -> None:
        """Record that the program has left a block."""
        self.open_blocks -= 1
