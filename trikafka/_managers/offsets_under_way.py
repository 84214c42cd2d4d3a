"""Which calls and requests are sending offsets of a transaction: one at a time, and all before its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from .._net import reasons
from ..errors import KafkaTimeoutError, TrikafkaError


class _One:
    """What is under way, and what it waits for."""

    __slots__ = ("done", "reason")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.reason = reasons.Reason()


class OffsetsUnderWay:
    """What has begun to send offsets and has not ended."""

    def __init__(self) -> None:
        self._all: set[_One] = set()

    @contextmanager
    def one(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Within the block, one more is under way. Gives what waits until those that began before it have ended."""
        earlier, this = partial(_ended, list(self._all)), _One()
        self._all.add(this)
        try:
            with reasons.reasoning(this.reason):
                try:
                    yield earlier
                except KafkaTimeoutError as error:  # others may have run out of time in this same moment
                    reasons.failed(error.last_error if isinstance(error.last_error, TrikafkaError) else error)
                    raise
        finally:
            self._all.remove(this)
            this.done.set()

    async def ended(self) -> None:
        """Wait until all that is under way now has ended."""
        await _ended(list(self._all))


async def _ended(those: Iterable[_One]) -> None:
    for one in those:
        with reasons.waiting_behind(one.reason):
            await one.done.wait()
