"""A consumer for lookups that stays open, for plain (not async) code.

A stream looks up the ends of its topics many times a second while no records come.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import trio

from .kafka_settings import by_option
from .range_planning import open_reader
from .read_options import ReadOptions

T = TypeVar("T")


class LookupConsumer:
    """A consumer in a Trio loop in a thread of its own, opened by the first question.

    After an error the next question opens another one.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._loop: _Loop | None = None

    def __call__(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """Await ``question(consumer)`` in the loop, and return its result.

        Raises the error of the question, or of opening the consumer.
        """
        with by_option(self._options.kafka):
            if self._loop is None:
                self._loop = _start(self._options)
            loop = self._loop
            try:
                return trio.from_thread.run(question, loop.consumer, trio_token=loop.token)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the consumer and end the thread.

        The next question opens another one.
        """
        loop = self._loop
        self._loop = None
        if loop is not None:
            with contextlib.suppress(trio.RunFinishedError):
                loop.token.run_sync_soon(loop.ending.set)
            loop.thread.join()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_loop": None}  # a copy in another process has its own


class _Loop(NamedTuple):
    """The thread, its Trio loop, and the consumer, which is closed when ``ending`` is set."""

    thread: threading.Thread
    token: trio.lowlevel.TrioToken
    ending: trio.Event
    consumer: Any


def _start(options: ReadOptions) -> _Loop:
    """Start the thread, and wait until its consumer is open.

    Raises the error of opening the consumer.
    """
    opened: Future[_Loop] = Future()

    async def main() -> None:
        async with open_reader(options) as consumer:
            token, ending = trio.lowlevel.current_trio_token(), trio.Event()
            opened.set_result(_Loop(thread, token, ending, consumer))
            await ending.wait()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)

    thread = threading.Thread(target=run, name="trikafka lookups", daemon=True)
    thread.start()
    return opened.result()
