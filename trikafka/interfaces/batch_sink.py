"""Where a consumer hands its Arrow batches (hook ``trikafka_sink``, :func:`trikafka.sink_batches`). No I/O, no behaviour."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..types import TopicPartition

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """Records of one partition, in order: all that a reader sees of ``start <= offset < end``, the first of them at ``start``.

    ``table`` has the columns of ``RecordBatch.to_arrow``, and at least one row.
    """

    topic: str
    partition: int
    start: int
    end: int
    table: pyarrow.Table = field(repr=False)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class BatchWriter(Protocol):
    """What takes the batches."""

    async def write(self, batch: SinkBatch) -> None:
        """Return when the batch is durable: the group's offset goes past it then.

        Called in several tasks at the same time, one after the other for each partition, as it has time: it may take as long as
        it wants. What was written and not yet committed, by a worker that was killed or has lost the partition, comes again,
        perhaps cut otherwise. A :exc:`trikafka.KafkaTimeoutError` is tried again as :func:`trikafka.run_tasks` does; any
        other exception ends the run. It may be cancelled at any checkpoint, and must not block the Trio thread.
        """


@runtime_checkable
class BatchSink(Protocol):
    """A place that takes batches of a consumer. It may be a :class:`Sink` as well, which exports write to."""

    def open_batches(self) -> AbstractAsyncContextManager[BatchWriter]:
        """Open it for batches. Entering raises :exc:`trikafka.ExportError` where nothing can be written."""
