"""The log that all clients of an export share: the same news once, then every five minutes.

Each thread of an export has a client, and each look at the cluster opens another one. Each client
would log the loss of a broker once; all lines after the first say nothing new.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar

#: Seconds after which the same news is logged again.
_REMINDER = 300.0
#: The loggers whose warnings are about the cluster, and so the same for all clients of an export.
_SHARED = ("trikafka.brokers", "trikafka.metadata")
_current: ContextVar[ExportLog | None] = ContextVar("trikafka_export_log", default=None)


class Reminders:
    """The times at which things were logged; each is logged again after five minutes.

    Any thread may call.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[Hashable, float] = {}

    def is_due(self, key: Hashable) -> bool:
        """Return whether to log this now; True counts as logged."""
        with self._lock:
            now = self._clock()
            due = now - self._logged.get(key, -math.inf) >= _REMINDER
            if due:
                self._logged[key] = now
            return due

    def forget(self, key: Hashable) -> bool:
        """Log this at once when it happens again; return whether it was logged."""
        with self._lock:
            return self._logged.pop(key, None) is not None

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._logged.clear()


class ExportLog:
    """The lines that the clients of one exporter have logged."""

    def __init__(self) -> None:
        # The clients live in several runs of Trio, whose clocks differ.
        self._reminders = Reminders(time.monotonic)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Share this log among the clients that are opened inside the block.

        Threads with a copy of this context are inside, too.
        """
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def succeeded(self) -> None:
        """Forget all: the whole cluster has responded, so each later loss is news."""
        self._reminders.clear()

    # The format of a line about one broker begins with "broker %d" (`_net/outages`), and the number
    # is its first argument. The cause in the line may differ between clients, so the number alone
    # is the key:
    #
    # * at WARNING (lost, silent) the line is due once for the broker, and again after five minutes;
    # * at INFO (back) the line is news only if the loss was logged; one client logs it.
    #
    # Any other warning is due once by its whole text. What is below is logged by each client: only
    # a program that asks for INFO or DEBUG sees it.
    def lets_through(self, record: logging.LogRecord) -> bool:
        """Return whether a record is news to this export."""
        number = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if str(record.msg).startswith("broker %d"):
            if record.levelno >= logging.WARNING:
                return self._reminders.is_due(number)
            return record.levelno < logging.INFO or self._reminders.forget(number)
        return record.levelno < logging.WARNING or self._reminders.is_due(record.getMessage())


class _SharedLog(logging.Filter):
    """A filter that drops what another client of the same export has logged.

    Clients outside of exports are not affected.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        log = _current.get()
        return log is None or log.lets_through(record)


for _name in _SHARED:
    logging.getLogger(_name).addFilter(_SharedLog())
