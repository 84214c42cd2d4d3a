"""The broker of a run and its topics.

This module owns both. Nothing here is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trikafka_broker import DEFAULT_VERSION, KafkaCluster
from trikafka_broker.settings import DEFAULT_JVM_OPTIONS

from trikafka import NewTopic, OffsetSpec, TopicPartition, open_admin

from .plan import BOTH, PARTITIONS, PLAIN, SCRAM, SESSIONS, TLS

VERSION = DEFAULT_VERSION
_JVM = ["-Xmx1g"]
_CONFIG: dict[str, str | int | float | bool] = {"retention.ms": -1}
#: Properties by which the files of a deleted topic disappear at once. If they stayed for a minute,
#: the system would write them to the disk during other cases. Later topics would also get fresh
#: memory, which costs a virtual machine more than the records do.
_TIDY: dict[str, str | int | float | bool] = {
    "log.segment.delete.delay.ms": 100,
    "log.initial.task.delay.ms": 500,
}
#: A machine that stands still for 3 s must not cost the broker its leaders: raw clients do not
#: retry.
_PATIENT: dict[str, str | int | float | bool] = {"broker.session.timeout.ms": 20_000}
#: Topics with at least this number of partitions have small indexes. Otherwise each partition
#: would reserve 20 MB.
_WIDE = 50
#: Port -> the broker's name of the listener, the security protocol, and the SASL mechanism.
_PORTS = {
    TLS: (TLS, "SSL", None),
    SCRAM: (SCRAM, "SASL_PLAINTEXT", "SCRAM-SHA-256"),
    BOTH: ("SECURED", "SASL_SSL", "SCRAM-SHA-256"),
    SESSIONS: ("SECURED", "SASL_SSL", "SCRAM-SHA-512"),
}
_SCRAM = "listener.name.scram"
_SECURED: dict[str, str | int | float | bool] = {
    f"{_SCRAM}.sasl.enabled.mechanisms": "SCRAM-SHA-256",
    f"{_SCRAM}.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "listener.name.secured.scram-sha-512.connections.max.reauth.ms": 2_000,
}
_SMALL_INDEX: dict[str, str | int | float | bool] = {"segment.index.bytes": 65_536}


class Kafka:
    """A broker with its topics."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.bootstrap_servers

    def way_in(self, port: str, peer: str) -> tuple[str, dict[str, str]]:
        """Return the address of a port, and a peer's security settings in the peer's own names."""
        if port == PLAIN:
            return self.bootstrap, {}
        listener, protocol, mechanism = _PORTS[port]
        ours = peer == "ours"
        given = (
            self._cluster.client_settings(mechanism)
            if ours
            else self._cluster.librdkafka_settings(mechanism)
        )
        kinds = (
            *(("ssl",) if "SSL" in protocol else ()),
            *(("sasl",) if "SASL" in protocol else ()),
        )
        wanted = {name: str(value) for name, value in given.items() if name.startswith(kinds)}
        wanted["security_protocol" if ours else "security.protocol"] = protocol
        return self._cluster.bootstrap_servers_of(listener), wanted

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        """Create a topic and wait until its partitions have leaders."""
        trio.run(self._create, topic, partitions)

    def count(self, topic: str, partitions: int = PARTITIONS) -> int:
        """Return the number of records in a topic."""
        return trio.run(self._count, topic, partitions)

    def count_committed(self, topic: str) -> tuple[int, int]:
        """Return the records and bytes of values of a topic that readers of committed records see.

        librdkafka reads them, so that trikafka does not check itself.
        """
        from .librdkafka import messages_of

        trio.run(self._decided, topic)
        count = size = 0
        for message in messages_of(self.bootstrap, topic, "read_committed"):
            count += 1
            size += len(message.value())
        return count, size

    def delete(self, topic: str) -> None:
        trio.run(self._delete, topic)

    def group_type(self, group_id: str) -> str | None:
        """Return the broker's type of a group: ``classic`` or ``consumer`` (KIP-848).

        The result is None if the broker does not know the group.
        """
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
            places = {
                TopicPartition(topic, number): OffsetSpec.LATEST for number in range(partitions)
            }
            found = await admin.list_offsets(places)
            return [0 if each is None else each.offset for each in found.values()]

    async def _decided(self, topic: str) -> None:
        from .soak import no_transaction_open

        async with open_admin(bootstrap_servers=self.bootstrap) as admin:
            partitions = len((await admin.list_topics())[topic])
        places = [TopicPartition(topic, number) for number in range(partitions)]
        await no_transaction_open(self.bootstrap, places)

    async def _group_type(self, group_id: str) -> str | None:
        async with open_admin(bootstrap_servers=self.bootstrap) as admin:
            return next(
                (group.type for group in await admin.list_groups() if group.group_id == group_id),
                None,
            )

    async def _delete(self, topic: str) -> None:
        async with open_admin(bootstrap_servers=self.bootstrap) as admin:
            await admin.delete_topics([topic])


@contextmanager
def running_kafka(*, quick: bool = False) -> Iterator[Kafka]:
    """Run a broker with a heap and a compiler as in production; with ``quick`` as in tests."""
    listeners = {TLS: "SSL", SCRAM: "SASL_PLAINTEXT"}
    jvm = DEFAULT_JVM_OPTIONS if quick else _JVM
    properties = _TIDY | _PATIENT | _SECURED
    with KafkaCluster(
        jvm_options=jvm, tls=True, sasl=["scram"], listeners=listeners, properties=properties
    ) as cluster:
        yield Kafka(cluster)
