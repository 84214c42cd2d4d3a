"""Deserialized keys and values (``key_deserializer``, ``value_deserializer``).

A record is deserialized when it is delivered: by a receive, or by iterating over its batch. A
record that cannot be deserialized raises at each attempt and remains the next one, until the user
seeks past it. A batch that was delivered whole has already moved the position behind itself, so an
error in it moves the position back to the record. Arrow tables hold the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from ..._wire.columns import RecordBatch
from ...config import ConsumerConfig
from ...errors import DeserializationError
from ...types import Deserializer, Record

_CHUNK = 128


Given = Callable[[bytes], Any] | Deserializer[Any] | None


class Deserializers:
    """The user's functions, and objects that see the record's topic and headers."""

    __slots__ = ("_key", "_value")

    def __init__(self, key: Given, value: Given) -> None:
        self._key = _of_record(key)
        self._value = _of_record(value)

    @classmethod
    def of(cls, config: ConsumerConfig) -> Deserializers | None:
        """Return the functions of a consumer; ``None`` if it has none."""
        if config.key_deserializer is None and config.value_deserializer is None:
            return None
        return cls(config.key_deserializer, config.value_deserializer)

    def apply(self, record: Record) -> Record:
        """Return the record with deserialized key and value; ``None`` stays ``None``.

        Raises :exc:`DeserializationError`.
        """
        key, value = record.key, record.value
        part: Literal["key", "value"] = "key"
        try:
            if self._key is not None and key is not None:
                function, sees = self._key
                key = function(record.topic, record.headers, key) if sees else function(key)
            part = "value"
            if self._value is not None and value is not None:
                function, sees = self._value
                value = function(record.topic, record.headers, value) if sees else function(value)
        except Exception as error:
            raise DeserializationError(
                record.topic, record.partition, record.offset, part, record.key, record.value
            ) from error
        return record._replace(key=key, value=value)


def _of_record(given: Given) -> tuple[Callable[..., Any], bool] | None:
    """Return the function to call, and whether it takes topic and headers, too."""
    if given is None:
        return None
    # A function, or a class, may have a member of that name by chance.
    return (given, False) if callable(given) else (given.deserialize, True)


class DeserializedBatch(RecordBatch):
    """A batch whose records are deserialized as they are made.

    ``stands_at`` is called with the offset of a record that cannot be deserialized.
    """

    __slots__ = ("_deserializers", "_stands_at")

    def __init__(
        self,
        batch: RecordBatch,
        deserializers: Deserializers,
        stands_at: Callable[[int], object] = lambda offset: None,
    ) -> None:
        super().__init__(
            batch.topic, batch.partition, batch.columns, batch.next_offset, batch.leader_epoch
        )
        self._deserializers = deserializers
        self._stands_at = stands_at

    def delivered_by(self, stands_at: Callable[[int], object]) -> DeserializedBatch:
        """Return the same batch, with errors reported to ``stands_at``."""
        return DeserializedBatch(self, self._deserializers, stands_at)

    @property
    def raw(self) -> RecordBatch:
        return RecordBatch(
            self.topic, self.partition, self.columns, self.next_offset, self.leader_epoch
        )

    def deserialize(self, record: Record) -> Record:
        return self._deserializers.apply(record)

    def detached(self) -> RecordBatch:
        return self.delivered_by(lambda offset: None)

    def __iter__(self) -> Iterator[Record]:
        return _Records(super()._make, len(self), self._apply)

    def head(self, end_offset: int) -> RecordBatch:
        return self._alike(super().head(end_offset))

    def _make(self, start: int, stop: int) -> list[Record]:
        return [self._apply(record) for record in super()._make(start, stop)]

    def _apply(self, record: Record) -> Record:
        try:
            return self._deserializers.apply(record)
        except DeserializationError as error:
            self._stands_at(error.offset)
            raise

    def _slice(self, start: int, stop: int) -> RecordBatch:
        return self._alike(super()._slice(start, stop))

    def _alike(self, batch: RecordBatch) -> RecordBatch:
        return (
            batch
            if batch is self
            else DeserializedBatch(batch, self._deserializers, self._stands_at)
        )


class _Records:
    """An iterator that stays at a record that cannot be deserialized."""

    __slots__ = ("_apply", "_chunk", "_count", "_make", "_next", "_start")

    def __init__(
        self,
        make: Callable[[int, int], list[Record]],
        count: int,
        apply: Callable[[Record], Record],
    ) -> None:
        self._make = make
        self._count = count
        self._apply = apply
        self._start = self._next = 0
        self._chunk: list[Record] = []

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        index = self._next
        if index == self._start + len(self._chunk):
            if index == self._count:
                raise StopIteration
            self._start, self._chunk = index, self._make(index, min(index + _CHUNK, self._count))
        record = self._apply(self._chunk[index - self._start])
        self._next = index + 1
        return record
