"""The consumer's questions to the cluster: positions, offsets, topics. A part of :class:`~trikafka.Consumer`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import trio

from .._net.deadlines import Call, check_timeout, run_call
from .._state.arguments import checked_partition
from ..errors import ConfigurationError, RequestTimedOutError
from ..errors.copies import again
from ..types import OffsetAndTimestamp, OffsetSpec, PartitionInfo, TopicPartition
from .consumer_base import ConsumerBase


class LookUps(ConsumerBase):
    """What can be asked of the cluster."""

    async def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """The offset of the next record that will be handed out; waits until it is known. A rebalance listener may ask, too."""
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
        """The first offset of each partition that is still there."""
        return await self._ends("beginning_offsets", partitions, OffsetSpec.EARLIEST, timeout)

    async def end_offsets(self, partitions: Iterable[TopicPartition], *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition (with ``read_committed``: after the last stable one)."""
        return await self._ends("end_offsets", partitions, OffsetSpec.LATEST, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch) in each partition; ``None`` where no record is so young."""
        for tp, timestamp in timestamps.items():
            if isinstance(timestamp, bool) or not isinstance(timestamp, int) or timestamp < 0:
                raise ConfigurationError(f"the time for {tp} must be milliseconds since the epoch, at least 0, not {timestamp!r}")
        return await self._look_up("offsets_for_times", timestamps, timeout)

    async def partitions_for(self, topic: str, *, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of ``topic``; an empty list if there is no such topic."""
        return await self._parts.ask("partitions_for", lambda call: self._parts.partitions_of(call, topic), timeout, self._open)

    async def list_topics(self, *, timeout: float | None = None) -> dict[str, list[PartitionInfo]]:
        """All topics that the cluster shows, with their partitions; internal ones are left out."""
        return await self._parts.ask("list_topics", self._parts.all_topics, timeout, self._open)

    async def topic_ids(self, topics: Iterable[str], *, timeout: float | None = None) -> dict[str, uuid.UUID | None]:
        """The ids of topics, as the cluster has them now: one that was deleted and created anew has another (KIP-516).

        ``None`` where the brokers have no ids; a topic that does not exist is left out.
        """
        names = list(dict.fromkeys(topics))
        ask = lambda call: self._parts.ids_of(call, names)  # noqa: E731
        return await self._parts.ask("topic_ids", ask, timeout, self._open)

    async def client_instance_id(self, *, timeout: float | None = None) -> uuid.UUID:
        """The id by which the cluster's metrics know this client (KIP-714), asked for once.

        Raises :exc:`TelemetryNotSupportedError` where the brokers take no metrics from clients, :exc:`KafkaTimeoutError`.
        """
        check_timeout(timeout, 0.0)
        self._open()
        return await self._parts.telemetry.client_instance_id(timeout)

    # Inside.

    async def _ends(
        self, name: str, partitions: Iterable[TopicPartition], spec: OffsetSpec, timeout: float | None
    ) -> dict[TopicPartition, int]:
        found = await self._look_up(name, {checked_partition(tp): spec for tp in partitions}, timeout)
        return {tp: 0 if where is None else where.offset for tp, where in found.items()}

    async def _look_up(
        self, name: str, wanted: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return await self._parts.ask(name, self._parts.look_up(wanted), timeout, self._open)

    async def _call(self, name: str, attempt: object, timeout: float | None) -> int:
        return await run_call(name, attempt, config=self._config, timeout=timeout)  # type: ignore[arg-type]
