"""What a producer does with each record, in pure Python: the interface of ``_native_producing.pxi``, with the same outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BatchEncoder = Any  #: of ``_fallback``, which imports this module


class Ticket:
    """Where an accepted record is: a batch, the index in it, and the timestamp. Made by :meth:`Appender.make` alone."""

    __slots__ = ("_batch", "_index", "_timestamp")

    _batch: Any
    _index: int
    _timestamp: int


class Targets:
    """The encoders that take a topic's records: the open one of each partition, and of the partition of the keyless."""

    __slots__ = ("open", "sticky")

    def __init__(self, count: int) -> None:
        self.open: list[BatchEncoder | None] = [None] * count
        self.sticky: BatchEncoder | None = None


class Appender:
    """The way of a common record into an open batch: plain bytes, no headers, with room, in a batch that goes on.

    All other records go the way of ``carefully``, which takes and returns the same. Who owns the appender keeps ``topics``
    (the targets of each topic that is known), ``free`` (bytes that may still be taken; appending lowers it), and ``careful``,
    which sends every record that way. The pure one knows no other way.
    """

    __slots__ = ("_ticket", "append", "careful", "free", "topics")

    def __init__(
        self, ticket: type[Ticket], carefully: Callable[..., Any], batch_size: int, largest: int, free: int
    ) -> None:
        self._ticket = ticket
        self.append = carefully
        self.free = free
        self.careful = False
        self.topics: dict[str, Targets] = {}

    def make(self, batch: object, index: int, timestamp: int) -> Any:
        """A ticket."""
        made = self._ticket()
        made._batch, made._index, made._timestamp = batch, index, timestamp
        return made
