"""The work of ``trikafka copy``: records of topics into a topic, of this or another cluster.

A batch is committed once the other cluster has acknowledged its records. So a copy that was killed
goes on with its group and loses nothing; the records of one batch may be there twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click
import trio

from .._api.consumer.consumer import Consumer
from .._api.consumer.opening import open_consumer
from .._api.producer.arrow_sending import ArrowAck, ArrowDelivery
from .._api.producer.opening import open_producer
from .._api.producer.producer import Producer
from .._wire.column_rows import ColumnRows
from .._wire.columns import RecordBatch
from ..errors import ArrowDeliveryError, IllegalStateError, TrikafkaError
from ..types import TopicPartition
from .admin import no_topic
from .consuming import ConsumePlan, Consuming
from .delivered import Delivered
from .running import Stop

#: Seconds for which a copy that is cancelled waits for the batch under way. Otherwise the group
#: would go back to its begin, and copy it again.
_PATIENCE = 3.0


class Copying(Consuming):
    """One run of the command.

    ``to``: the topic; ``None``: each topic has its own name there, too.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        plan: ConsumePlan,
        target: Mapping[str, Any],
        to: str | None,
        keep_partitions: bool,
    ) -> None:
        super().__init__(settings, plan)
        self._target = dict(target)
        self._to = to
        self._keep_partitions = keep_partitions
        self._producer: Producer
        self.delivered = Delivered()

    async def main(self, stop: Stop) -> None:
        """Copy until the end, the count or a signal."""
        async with (
            open_producer(**self._target) as self._producer,
            open_consumer(**self._settings) as consumer,
        ):
            with stop.here():
                await self._check_target(consumer)
                await self._consume(consumer)

    async def _check_target(self, consumer: Consumer) -> None:
        """Check that each topic is there, and has the partitions that are needed.

        Raises:
            click.ClickException: It is not, or has not.
        """
        for topic in self._plan.topics:
            to = self._to or topic
            there = len(await self._producer.partitions_for(to))
            if not there:
                raise await no_topic(self._target, to)
            here = len(await consumer.partitions_for(topic))
            if self._keep_partitions and there < here:
                raise click.ClickException(
                    f"topic {topic!r} has {here} partitions, and {to!r} only {there}: without "
                    "--keep-partitions keys decide"
                )

    async def _take(self, consumer: Consumer, batch: RecordBatch) -> bool:
        """Copy a batch; return whether the requested count is reached.

        The consumer seeks back to the first record that may not have been copied.
        """
        count = self._plan.count
        some = batch if count is None else batch[: count - self._printed]
        rows = ColumnRows(
            some.columns,
            keyed=True,
            timed=True,
            partition=batch.partition if self._keep_partitions else None,
        )
        done = 0
        try:
            await self._deliver(batch, rows)
            done = len(some)
        finally:
            self._printed += done
            if done < len(batch):
                with suppress(IllegalStateError):
                    consumer.seek(TopicPartition(batch.topic, batch.partition), batch.offsets[done])
        self._meter(self._printed)
        return self._printed == count

    async def _deliver(self, batch: RecordBatch, rows: ColumnRows) -> None:
        where = f"{batch.topic}-{batch.partition}"
        try:
            ack = await self._producer.enqueue_arrow(self._to or batch.topic, rows)
            self.delivered.add((await _outcome(ack)).partitions)
        except ArrowDeliveryError as error:
            offset = batch.offsets[error.row or 0]
            raise click.ClickException(f"{where} offset {offset}: {error.error}") from error
        except TrikafkaError as error:
            raise click.ClickException(
                f"{where} from offset {batch.offsets[0]}: {error}"
            ) from error


async def _outcome(ack: ArrowAck) -> ArrowDelivery:
    """Return the outcome of a batch, which is waited for a moment longer if it is cancelled."""
    try:
        return await ack.wait()
    except trio.Cancelled:
        with trio.move_on_after(_PATIENCE, shield=True):
            return await ack.wait()
        raise
