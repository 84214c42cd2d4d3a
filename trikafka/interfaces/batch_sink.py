"""The destination of a consumer's Arrow batches (hook ``trikafka_sink``).

:func:`trikafka.sink_batches` feeds the destination. No I/O, no behaviour.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..types import TopicPartition

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """Consecutive records of one partition.

    The batch holds every record that a reader sees with ``start <= offset < end``. The first record
    has the offset ``start``.

    Attributes:
        topic: The name of the topic.
        partition: The number of the partition.
        start: The offset of the first record.
        end: The offset after the last record that the batch covers.
        table: The records, with the columns of ``RecordBatch.to_arrow`` and at least one row.
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
    """A writer that makes batches durable."""

    async def write(self, batch: SinkBatch) -> None:
        """Write a batch; return once the batch is durable.

        The group's committed offset moves past the batch after this method returns. Several tasks
        call this method at the same time, but for one partition the calls follow one another. A
        call may take any time. It must not block the Trio thread.

        Delivery is at least once. A batch that was written but not committed is written again if
        the worker was killed or lost the partition. The records may then be cut into other batches.

        Cancellation may arrive at any checkpoint.

        Args:
            batch: The records to write.

        Raises:
            KafkaTimeoutError: The batch is retried as in :func:`trikafka.run_tasks`. Any other
                exception ends the run.
        """


@runtime_checkable
class BatchSink(Protocol):
    """A destination for the batches of a consumer.

    An object may implement :class:`Sink` as well, the destination of exports.
    """

    def open_batches(self) -> AbstractAsyncContextManager[BatchWriter]:
        """Open the destination; return a context manager that yields a :class:`BatchWriter`.

        Raises:
            ExportError: On entering, when nothing can be written to the destination.
        """
