"""The calls and requests that send offsets of a transaction.

The calls run one after the other, and all of them before the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from ..._net import reasons
from ...errors import KafkaTimeoutError, TrikafkaError


class OffsetsUnderWay:
    """The calls and requests that have begun to send offsets and have not ended."""

    def __init__(self) -> None:
        self._all: set[trio.Event] = set()  # each is set when its call or request has ended
        self._newest: trio.Event | None = None  # the newest of the calls
        self._turn = reasons.WaitContext()  # what the call whose turn it is waits for

    @contextmanager
    def request(self) -> Iterator[trio.Event]:
        """Count one more request within the block, in no order; yield the event set at its end."""
        done = trio.Event()
        self._all.add(done)
        try:
            yield done
        finally:
            self._all.remove(done)
            done.set()

    @contextmanager
    def call(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Count one more call within the block; yield a function that waits for the call before it.

        A call that ends before its turn has failed, and with it the transaction. So no call
        overtakes those before it.
        """
        with self.request() as done:
            before = self._newest
            self._newest = done
            try:
                yield partial(self._ended, before)
            # Other calls may have run out of time in this same moment.
            except KafkaTimeoutError as error:
                with reasons.reasoning(self._turn):
                    reasons.failed(
                        error.last_error if isinstance(error.last_error, TrikafkaError) else error
                    )
                raise
            self._turn.clear()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Mark the block as the call's turn: the others wait for what this call waits for."""
        with reasons.reasoning(self._turn):
            try:
                yield
            # The call may retry after a wait.
            except TrikafkaError as error:
                reasons.failed(error)
                raise

    async def _ended(self, before: trio.Event | None) -> None:
        if before is not None and not before.is_set():
            with reasons.waiting_behind(self._turn):
                await before.wait()

    async def ended(self) -> None:
        """Wait until all calls and requests of this moment have ended."""
        for done in [each for each in self._all if not each.is_set()]:
            if not done.is_set():
                with reasons.waiting_behind(self._turn):
                    await done.wait()
