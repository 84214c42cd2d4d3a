"""The broker of a run and its topics. Owns both; nothing here is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trikafka_broker import DEFAULT_VERSION, KafkaCluster

from trikafka import NewTopic, OffsetSpec, TopicPartition, open_admin

from .plan import PARTITIONS

VERSION = DEFAULT_VERSION
_JVM = ["-Xmx1g"]
_CONFIG: dict[str, str | int | float | bool] = {"file.delete.delay.ms": 0, "retention.ms": -1}
#: A topic of so many partitions and more has small indexes: each would else set 20 MB aside.
_WIDE = 50
_SMALL_INDEX: dict[str, str | int | float | bool] = {"segment.index.bytes": 65_536}


class Kafka:
    """One broker with its topics."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        """Make a topic and wait until its partitions have a leader."""
        trio.run(self._create, topic, partitions)

    def count(self, topic: str, partitions: int = PARTITIONS) -> int:
        """How many records a topic holds."""
        return trio.run(self._count, topic, partitions)

    def count_committed(self, topic: str) -> tuple[int, int]:
        """How many records of a topic, and bytes of values, readers of committed records see: librdkafka is asked."""
        from .librdkafka import messages_of

        count = size = 0
        for message in messages_of(self.bootstrap, topic, "read_committed"):
            count += 1
            size += len(message.value())
        return count, size

    def delete(self, topic: str) -> None:
        trio.run(self._delete, topic)

    def group_type(self, group_id: str) -> str | None:
        """``classic`` or ``consumer`` (KIP-848), as the broker has it; None if it does not know the group."""
        return trio.run(self._group_type, group_id)

    async def _create(self, topic: str, partitions: int) -> None:
        async with open_admin(bootstrap_servers=self.bootstrap) as admin:
            config = _CONFIG | _SMALL_INDEX if partitions >= _WIDE else _CONFIG
            await admin.create_topics({topic: NewTopic(partitions, 1, config)})
            await self._ends(topic, partitions)

    async def _count(self, topic: str, partitions: int) -> int:
        return sum(await self._ends(topic, partitions))

    async def _ends(self, topic: str, partitions: int) -> list[int]:
        async with open_admin(bootstrap_servers=self.bootstrap) as admin:
            places = {TopicPartition(topic, number): OffsetSpec.LATEST for number in range(partitions)}
            found = await admin.list_offsets(places)
            return [0 if each is None else each.offset for each in found.values()]

    async def _group_type(self, group_id: str) -> str | None:
        async with open_admin(bootstrap_servers=self.bootstrap) as admin:
            return next((group.type for group in await admin.list_groups() if group.group_id == group_id), None)

    async def _delete(self, topic: str) -> None:
        async with open_admin(bootstrap_servers=self.bootstrap) as admin:
            await admin.delete_topics([topic])


@contextmanager
def running_kafka() -> Iterator[Kafka]:
    """A broker with a heap and a compiler as in production, not as in tests."""
    with KafkaCluster(jvm_options=_JVM) as cluster:
        yield Kafka(cluster.bootstrap_servers)
