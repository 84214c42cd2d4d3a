"""Which calls and requests are sending offsets of a transaction: calls one after the other, and all before its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from .._net import reasons
from ..errors import KafkaTimeoutError, TrikafkaError


class OffsetsUnderWay:
    """What has begun to send offsets and has not ended."""

    def __init__(self) -> None:
        self._all: set[trio.Event] = set()  # set when one has ended
        self._newest: trio.Event | None = None  # of the calls
        self._turn = reasons.Reason()  # of the call whose turn it is

    @contextmanager
    def request(self) -> Iterator[trio.Event]:
        """Within the block, one more is under way, in no order. Gives what is set at its end."""
        done = trio.Event()
        self._all.add(done)
        try:
            yield done
        finally:
            self._all.remove(done)
            done.set()

    @contextmanager
    def call(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Within the block, one more call is under way. Gives what waits until the call that began before it has ended.

        One that ends before its turn came has failed, and with it the transaction: so nobody overtakes those before it.
        """
        with self.request() as done:
            before, self._newest = self._newest, done
            try:
                yield partial(self._ended, before)
            except KafkaTimeoutError as error:  # others may have run out of time in this same moment
                with reasons.reasoning(self._turn):
                    reasons.failed(error.last_error if isinstance(error.last_error, TrikafkaError) else error)
                raise
            self._turn.clear()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within the block, it is the call's turn: the others wait for what it waits for."""
        with reasons.reasoning(self._turn):
            try:
                yield
            except TrikafkaError as error:  # it may be tried again, after a while
                reasons.failed(error)
                raise

    async def _ended(self, before: trio.Event | None) -> None:
        if before is not None and not before.is_set():
            with reasons.waiting_behind(self._turn):
                await before.wait()

    async def ended(self) -> None:
        """Wait until all that is under way now has ended."""
        for done in [each for each in self._all if not each.is_set()]:
            if not done.is_set():
                with reasons.waiting_behind(self._turn):
                    await done.wait()
