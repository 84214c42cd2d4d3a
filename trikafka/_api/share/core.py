"""The state of a share consumer that its managers share, and the signals between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from ..._managers.group.poll_timer import PollTimer
from ..._net.signal import Signal
from ..._state.group.member import Member
from ..._state.share.acquired import Holdings
from ..._state.share.assignment import ShareAssignment
from ..._state.share.buffer import ShareBuffer
from ...config import ShareConsumerConfig
from ..client.turns import known_current_task, uses_system_clock
from .scopes import block_scopes

#: Seconds that a cancelled block, or a cancelled deserializer, has to end. After that the block's
#: records are released, and neither shows any more that the program is at work.
_LEAVING = 5.0


class ShareCore:
    """The state of one share consumer; each part is written by its own module."""

    def __init__(self, config: ShareConsumerConfig, topics: Iterable[str]) -> None:
        #: Notified when something may have become fetchable, or has to be acknowledged.
        self.wake = Signal()
        #: Notified when a receive has to look again: for records, an error or the close.
        self.deliver = Signal()
        #: Notified when a receive begins while the member is out of its group.
        self.returned = Signal()
        self.assignment = ShareAssignment(topics, self.wake.notify)
        self.buffer = ShareBuffer()
        self.holdings = Holdings()
        self.member = Member(None)
        self.poll_timer = PollTimer(config.max_poll_interval_ms / 1000)
        # The clock of receives and blocks, which is read three times for each record. A call of
        # trio.current_time() takes 0.2 µs more than one of the clock below it.
        self.own_clock = uses_system_clock()
        self.now: Callable[[], float] = time.perf_counter if self.own_clock else trio.current_time
        #: Trio's function for the running task; ``None`` where :meth:`goes_on` cannot look at one.
        self.current_task = known_current_task()
        self.scopes = block_scopes(self.enter_scope, self.current_task)
        self._longest = config.max_processing_ms / 1000

    @contextmanager
    def deserializes(self) -> Iterator[None]:
        """Count a receive that waits for async deserializers: the program is at work."""
        began = self.now()
        self.holdings.deserializes(began)
        try:
            yield
        finally:
            self.holdings.deserialized(began)

    @property
    def is_at_work(self) -> bool:
        """True while a block of the program is open, or one of its deserializers runs.

        Deserializers that were cancelled and do not end do not count.
        """
        latest = self.now() - self._longest - _LEAVING
        return bool(self.holdings.blocks) or any(
            began > latest for began in self.holdings.deserializing
        )

    @property
    def stuck_deserializers(self) -> int:
        """The number of receives whose deserializers were cancelled and do not end."""
        latest = self.now() - self._longest - _LEAVING
        return sum(began <= latest for began in self.holdings.deserializing)

    def goes_on(self) -> bool:
        """Return whether the running task is known to be neither cancelled nor interrupted."""
        current_task = self.current_task
        if current_task is None:
            return False
        task: Any = current_task()
        return not (task._cancel_status.effectively_cancelled or task._runner.ki_pending)

    # A block opens and closes two things: its cancel scope and its records. A KeyboardInterrupt
    # between the two would leave one of them open without the other. So Trio holds the interrupt
    # back until the next checkpoint.
    @staticmethod
    @trio.lowlevel.enable_ki_protection
    def enter_scope() -> trio.CancelScope:
        """Return a new cancel scope that the running task has entered."""
        return trio.CancelScope().__enter__()

    # All blocks have the same limit. So a block that is opened while this task sleeps ends after
    # the task has woken, and need not wake it.
    async def end_long_blocks(self) -> None:
        """Cancel each block that has been open for ``max_processing_ms``, until cancelled.

        If a cancelled block does not end, such as one that waits in a thread, its records are
        released.
        """
        # Times are compared, not durations: rounding may leave a remaining duration so small that a
        # sleep of it does not move the clock, and this loop would spin.
        while True:
            now = self.now()
            wakes = now + self._longest
            for block, opened in list(self.holdings.blocks.items()):
                ends = opened + self._longest
                if now < ends:
                    wakes = min(wakes, ends)
                    break
                if now >= ends + _LEAVING:
                    block.release_overdue()
                else:
                    block.cut_off()
                    wakes = min(wakes, ends + _LEAVING)
            await trio.sleep(wakes - now)
