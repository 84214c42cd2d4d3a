"""Keys and values as the user's functions make them of their bytes (``key_deserializer``, ``value_deserializer``).

A record is deserialized when it is handed out: by a receive, or by iterating over its batch. What cannot be is raised again at each
attempt, and the record stays the next one, until the user seeks past it. Tables (Arrow) hold the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from .._wire.columns import RecordBatch
from ..config import ConsumerConfig
from ..errors import DeserializationError
from ..types import Record

_CHUNK = 128


class Deserializers:
    """The user's functions."""

    __slots__ = ("_key", "_value")

    def __init__(self, key: Callable[[bytes], Any] | None, value: Callable[[bytes], Any] | None) -> None:
        self._key, self._value = key, value

    @classmethod
    def of(cls, config: ConsumerConfig) -> Deserializers | None:
        """Those of a consumer; ``None`` if it has none."""
        if config.key_deserializer is None and config.value_deserializer is None:
            return None
        return cls(config.key_deserializer, config.value_deserializer)

    def apply(self, record: Record) -> Record:
        """The record with what the functions make of it; ``None`` stays ``None``. Raises :exc:`DeserializationError`."""
        key, value = record.key, record.value
        part: Literal["key", "value"] = "key"
        try:
            if self._key is not None and key is not None:
                key = self._key(key)
            part = "value"
            if self._value is not None and value is not None:
                value = self._value(value)
        except Exception as error:
            raise DeserializationError(record.topic, record.partition, record.offset, part, record.key, record.value) from error
        return record._replace(key=key, value=value)


class DeserializedBatch(RecordBatch):
    """A batch whose records are deserialized as they are made."""

    __slots__ = ("_deserializers",)

    def __init__(self, batch: RecordBatch, deserializers: Deserializers) -> None:
        super().__init__(batch.topic, batch.partition, batch.columns, batch.next_offset, batch.leader_epoch)
        self._deserializers = deserializers

    @property
    def deserialize(self) -> Callable[[Record], Record]:
        """Makes of a record with bytes what this batch hands out. Raises :exc:`DeserializationError`."""
        return self._deserializers.apply

    def __iter__(self) -> Iterator[Record]:
        return _Records(super()._make, len(self), self._deserializers)

    def head(self, end_offset: int) -> RecordBatch:
        return self._alike(super().head(end_offset))

    def _make(self, start: int, stop: int) -> list[Record]:
        return [self._deserializers.apply(record) for record in super()._make(start, stop)]

    def _slice(self, start: int, stop: int) -> RecordBatch:
        return self._alike(super()._slice(start, stop))

    def _alike(self, batch: RecordBatch) -> RecordBatch:
        return batch if batch is self else DeserializedBatch(batch, self._deserializers)


class _Records:
    """Goes on, after a record that cannot be deserialized, with the same one."""

    __slots__ = ("_chunk", "_count", "_deserializers", "_make", "_next", "_start")

    def __init__(self, make: Callable[[int, int], list[Record]], count: int, deserializers: Deserializers) -> None:
        self._make, self._count, self._deserializers = make, count, deserializers
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
        record = self._deserializers.apply(self._chunk[index - self._start])
        self._next = index + 1
        return record
