"""A consumer for lookups that stays open, for plain (not async) code.

A stream looks up the ends of its topics many times a second while no records come.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

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
        self._loop: _ConsumerThread | None = None

    def __call__(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """Await ``question(consumer)`` in the loop, and return its result.

        Raises the error of the question, or of opening the consumer.
        """
        with by_option(self._options.kafka):
            if self._loop is None:
                self._loop = _ConsumerThread(self._options)
            try:
                return self._loop.run(question)
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
            loop.end()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_loop": None}  # a copy in another process has its own


class _ConsumerThread:
    """The thread and its consumer. ``_error`` is why the consumer could not be opened."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._consumer: Any = None
        self._thread = threading.Thread(target=self._run, name="trikafka lookups", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def run(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """Await the question in the loop."""
        return trio.from_thread.run(question, self._consumer, trio_token=self._token)

    def end(self) -> None:
        """End the loop and the thread."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._ending.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._error = error
        self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._ending = trio.Event()
        async with open_reader(self._options) as self._consumer:
            self._ready.set()
            await self._ending.wait()
