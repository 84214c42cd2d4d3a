"""The consumer's look-ups: positions, offsets, topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import trio

from ..._net.deadlines import Call, check_timeout, run_call
from ..._state.arguments import checked_partition
from ...errors import ConfigurationError, RequestTimedOutError
from ...errors.copies import again
from ...types import OffsetAndTimestamp, OffsetSpec, PartitionInfo, TopicPartition
from .base import ConsumerBase


class LookUps(ConsumerBase):
    """The look-ups of :class:`~trikafka.Consumer`."""

    async def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """Return the offset of the next record to deliver; wait until it is known.

        May be called inside a rebalance listener.

        Args:
            partition: An assigned partition.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            IllegalStateError: The partition is not assigned.
            KafkaTimeoutError: The position was not found in time; its cause is the last error.
            TrikafkaError: The partition has no valid position, or the group's work has stopped.

        When cancelled, nothing has changed.
        """
        check_timeout(timeout, 0.0)
        self._open()
        self._assignment.get(partition)

        async def known() -> int:
            while (position := (assigned := self._assignment.get(partition)).position) is None:
                self._check(assigned)
                assigned.request_position()
                await self._signals.position.wait()
                self._open()
            return position

        async def attempt(call: Call) -> int:
            await trio.lowlevel.checkpoint()
            try:
                return await call.step(f"position of {partition}", known)
            except RequestTimedOutError:
                if (why := self._parts.positions.last_error) is None:
                    raise
                raise again(why)  # noqa: B904  # its cause is the root cause, not that it took long

        return await self._call("position", attempt, timeout)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that the log still holds.

        Args:
            partitions: The partitions; they need not be assigned.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.
            UnknownTopicOrPartitionError: A partition does not exist.

        When cancelled, nothing has changed.
        """
        return await self._ends("beginning_offsets", partitions, OffsetSpec.EARLIEST, timeout)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition.

        With ``read_committed`` this is the offset after the last stable record.

        Args:
            partitions: The partitions; they need not be assigned.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.
            UnknownTopicOrPartitionError: A partition does not exist.

        When cancelled, nothing has changed.
        """
        return await self._ends("end_offsets", partitions, OffsetSpec.LATEST, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after a time, for each partition.

        Args:
            timestamps: For each partition, milliseconds since the epoch.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            Offset and timestamp of the record; ``None`` where all records are older.

        Raises:
            ConfigurationError: A timestamp is not a whole number from 0.
            KafkaTimeoutError: No answer within ``timeout`` seconds.
            UnknownTopicOrPartitionError: A partition does not exist.

        When cancelled, nothing has changed.
        """
        for tp, timestamp in timestamps.items():
            if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp < 0:
                raise ConfigurationError(
                    f"the time for {tp} must be milliseconds since the epoch, at least 0, not "
                    f"{timestamp!r}"
                )
        return await self._look_up("offsets_for_times", timestamps, timeout)

    async def partitions_for(
        self, topic: str, *, timeout: float | None = None
    ) -> list[PartitionInfo]:
        """Return the partitions of a topic; an empty list if the topic does not exist.

        Args:
            topic: The topic.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        return await self._parts.ask(
            "partitions_for",
            lambda call: self._parts.partitions_of(call, topic),
            timeout,
            self._open,
        )

    async def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """Return all topics that the cluster shows, with their partitions.

        Internal topics are left out.

        Raises:
            KafkaTimeoutError: No answer within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """
        return await self._parts.ask("list_topics", self._parts.all_topics, timeout, self._open)

    async def topic_ids(
        self, topics: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, uuid.UUID | None]:
        """Return the ids that topics have now (KIP-516).

        A topic that was deleted and created again has another id.

        Args:
            topics: The topics.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Returns:
            The id of each topic that exists; ``None`` where the brokers have no ids.

        Raises:
            KafkaTimeoutError: No answer in time.

        When cancelled, nothing has changed.
        """
        names = list(dict.fromkeys(topics))
        ask = lambda call: self._parts.ids_of(call, names)  # noqa: E731
        return await self._parts.ask("topic_ids", ask, timeout, self._open)

    async def client_instance_id(self, *, timeout: float | None = None) -> uuid.UUID:
        """Return the id by which the cluster's metrics know this client (KIP-714).

        The broker is asked once.

        Raises:
            TelemetryNotSupportedError: The brokers take no metrics from clients.
            KafkaTimeoutError: No answer within ``timeout`` seconds.

        When cancelled, nothing has changed.
        """
        check_timeout(timeout, 0.0)
        self._open()
        return await self._parts.telemetry.client_instance_id(timeout)

    async def _ends(
        self,
        name: str,
        partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        timeout: float | None,
    ) -> dict[TopicPartition, int]:
        found = await self._look_up(
            name, {checked_partition(tp): spec for tp in partitions}, timeout
        )
        return {tp: 0 if where is None else where.offset for tp, where in found.items()}

    async def _look_up(
        self, name: str, wanted: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return await self._parts.ask(name, self._parts.look_up(wanted), timeout, self._open)

    async def _call(self, name: str, attempt: object, timeout: float | None) -> int:
        return await run_call(name, attempt, config=self._config, timeout=timeout)  # type: ignore[arg-type]
