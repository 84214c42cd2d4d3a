"""A refused group consumer: each attempt raises once, attempts have pauses, and it works when
access returns.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, until, values
from trio.testing import MockClock as Clock

import trikafka
from trikafka import TrikafkaError
from trikafka._net.refusals import REFUSED_FOR
from trikafka.errors import (
    AuthenticationError,
    AuthorizationError,
    ErrorCode,
    GroupFullError,
    from_code,
)
from trikafka.errors.refusals import may_be_lifted
from trikafka.testing import ScriptedCluster, respond

BEAT = "ConsumerGroupHeartbeat"
GROUP_APIS = (
    "FindCoordinator",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "OffsetCommit",
    "OffsetFetch",
    BEAT,
)
PROTOCOLS: list[dict[str, Any]] = [
    {
        "group_protocol": "classic",
        "partition_assignment_strategy": ["range"],
        "heartbeat_interval_ms": 1_000,
    },
    {
        "group_protocol": "classic",
        "partition_assignment_strategy": ["cooperative-sticky"],
        "heartbeat_interval_ms": 1_000,
    },
    {"group_protocol": "consumer"},
    {"group_protocol": "auto"},
]
every_protocol = pytest.mark.parametrize(
    "protocol", PROTOCOLS, ids=["eager", "cooperative", "consumer", "auto"]
)
#: Once the brokers are known, ``auto`` is the consumer protocol.
protocols = pytest.mark.parametrize(
    "protocol", PROTOCOLS[:3], ids=["eager", "cooperative", "consumer"]
)
PLAIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "wonder",
}
Default = Callable[[], Awaitable[Any]]


class Rights:
    """The access rules of the group. Without them each of its requests is refused."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self._rules: list[Any] = []

    def take(self) -> None:
        self._rules = [
            self._cluster.fail(api, ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
            for api in GROUP_APIS
        ]

    def give(self) -> None:
        for rule in self._rules:
            rule.remove()


class Door:
    """The brokers' password check. ``refused`` has the times of refused handshakes."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self.open = True
        self.refused = list[float]()
        cluster.offer("SaslHandshake", (0, 1))
        cluster.offer("SaslAuthenticate", (0, 2))
        cluster.on("SaslHandshake", self._shake)
        cluster.on("SaslAuthenticate", self._authenticate)

    async def _shake(self, request: Any, default: Default) -> Any:
        return respond(request, error_code=0, mechanisms=["PLAIN"])

    async def _authenticate(self, request: Any, default: Default) -> Any:
        if not self.open:
            self.refused.append(trio.current_time())
        code = 0 if self.open else ErrorCode.SASL_AUTHENTICATION_FAILED
        return respond(
            request, error_code=code, error_message=None, auth_bytes=b"", session_lifetime_ms=0
        )

    def shut(self, nodes: int) -> None:
        self.open = False
        for node in range(nodes):
            self._cluster.disconnect(node)


class Reader:
    """A program that catches each error of a receive and receives again at once."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.got = list[Any]()
        self.errors = list[tuple[float, Exception]]()
        self.calls = 0

    async def run(self) -> None:
        while True:
            self.calls += 1
            try:
                self.got.append((await self.consumer.receive()).value)
            except TrikafkaError as error:
                self.errors.append((trio.current_time(), error))


def member_of(cluster: ScriptedCluster, *topics: str, **settings: Any) -> Any:
    return consumer_of(cluster, *(topics or ("t",)), **({"group_id": "g"} | settings))


@every_protocol
@pytest.mark.parametrize("begun", [False, True])
async def test_missing_rights_are_raised_once_an_attempt(
    autojump_clock: Clock, protocol: dict[str, Any], begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(2, records=5) as cluster, trio.open_nursery() as nursery:
        rights = Rights(cluster)
        if not begun:
            rights.take()
        async with member_of(cluster, **protocol) as consumer:
            reader = Reader(consumer)
            nursery.start_soon(reader.run)
            if begun:
                await until(lambda: len(reader.got) == 10)
                await trio.sleep(6)  # what was read is committed
                rights.take()
            caplog.clear()
            await trio.sleep(8)
            assert all(isinstance(error, AuthorizationError) for _, error in reader.errors)
            health = consumer.health()
            assert not health.ok
            assert isinstance(health.error, AuthorizationError)
            assert any(
                "GROUP_AUTHORIZATION_FAILED" in why and "next attempt is in" in why
                for why in health.reasons
            )
            lines = [
                each.getMessage()
                for each in caplog.records
                if "this member was refused" in each.getMessage()
            ]
            assert len(lines) == 1
            assert "trying again in 0." in lines[0]
            await trio.sleep(50)
            # Pauses of 0.5, 1, 2, 4, 8 and 10 seconds, each 20 % more or less.
            assert 5 <= len(reader.errors) <= 16
            assert reader.calls <= len(reader.errors) + len(reader.got) + 1
            rights.give()
            given = trio.current_time()
            cluster.append("t", 0, [b"later"])
            await until(lambda: len(reader.got) == 11)
            assert trio.current_time() - given < 12.5
            assert consumer.health().ok
            nursery.cancel_scope.cancel()


@every_protocol
async def test_short_loss_of_rights_is_over_soon(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    async with cluster_of(2, records=5) as cluster, trio.open_nursery() as nursery:
        rights = Rights(cluster)
        async with member_of(cluster, **protocol) as consumer:
            reader = Reader(consumer)
            nursery.start_soon(reader.run)
            await until(lambda: len(reader.got) == 10)
            rights.take()
            await trio.sleep(4)
            rights.give()
            cluster.append("t", 0, [b"later"])
            given = trio.current_time()
            await until(lambda: b"later" in reader.got)
            assert trio.current_time() - given < 6
            nursery.cancel_scope.cancel()


@protocols
@pytest.mark.parametrize("nodes", [1, 3])
async def test_password_is_tried_twice_in_30_s(
    autojump_clock: Clock, protocol: dict[str, Any], nodes: int
) -> None:
    async with cluster_of(3, records=5, nodes=nodes) as cluster, trio.open_nursery() as nursery:
        for number in range(3):
            cluster.move_leader("t", number, number % nodes)
        door = Door(cluster)
        async with member_of(cluster, **protocol, **PLAIN) as consumer:
            reader = Reader(consumer)
            nursery.start_soon(reader.run)
            await until(lambda: len(reader.got) == 15)
            door.shut(nodes)
            await trio.sleep(4 if nodes == 1 else 95)
            door.open = True
            times = door.refused
            assert all(
                sum(1 for at in times if begin <= at < begin + REFUSED_FOR) <= 2 for begin in times
            )
            cluster.append("t", 0, [b"later"])
            await until(lambda: b"later" in reader.got, 0.1)
            # The member backs off for up to 10 s beside that, if it met the known refusal just before.
            assert trio.current_time() - times[-1] < REFUSED_FOR + 11
            await until(lambda: consumer.health().ok, 0.1)
            nursery.cancel_scope.cancel()


async def test_next_password_attempt_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_of(1, records=5) as cluster, trio.open_nursery() as nursery:
        door = Door(cluster)
        async with member_of(cluster, **PLAIN) as consumer:
            reader = Reader(consumer)
            nursery.start_soon(reader.run)
            await until(lambda: len(reader.got) == 5)
            door.shut(1)
            await trio.sleep(9)
            assert all(isinstance(error, AuthenticationError) for _, error in reader.errors)
            (line,) = [
                each.getMessage()
                for each in caplog.records
                if "this member was refused" in each.getMessage()
            ]
            assert re.search(r"trying again in (30|29\.\d) s", line)
            assert any("the next attempt is in 2" in why for why in consumer.health().reasons)
            nursery.cancel_scope.cancel()


@protocols
async def test_unauthorized_topic_causes_no_rebalance(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    """The coordinator is not asked until the topic may be read: joining and leaving would be two
    rebalances.
    """
    async with cluster_of(2, records=5) as cluster, trio.open_nursery() as nursery:
        async with member_of(cluster, **protocol) as consumer:
            reader = Reader(consumer)
            nursery.start_soon(reader.run)
            await until(lambda: len(reader.got) == 10)
            refused = cluster.fail(
                "Metadata", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic="t"
            )
            # This error makes the client request metadata.
            cluster.fail("Fetch", ErrorCode.UNKNOWN_LEADER_EPOCH, 1)
            await until(lambda: bool(reader.errors), 0.1)
            await trio.sleep(3)
            before = len(cluster.requests("JoinGroup")) + len(joins(cluster))
            await trio.sleep(60)
            assert len(cluster.requests("JoinGroup")) + len(joins(cluster)) <= before
            refused.remove()
            cluster.append("t", 0, [b"later"])
            await until(lambda: b"later" in reader.got)
            nursery.cancel_scope.cancel()


def joins(cluster: ScriptedCluster) -> list[Any]:
    return [seen for seen in cluster.requests(BEAT) if seen.request.member_epoch == 0]


@protocols
async def test_new_subscription_does_not_wait(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    async with cluster_of(1, records=5) as cluster:
        rights = Rights(cluster)
        rights.take()
        async with member_of(cluster, **protocol) as consumer:
            for _ in range(5):
                with pytest.raises(AuthorizationError):
                    await consumer.receive()
            rights.give()
            consumer.subscribe(["t"])
            began = trio.current_time()
            assert await values(consumer, 1) == [b"0"]
            assert trio.current_time() - began < 0.5


@protocols
async def test_refused_member_may_unsubscribe(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    async with cluster_of(1, records=5) as cluster:
        rights = Rights(cluster)
        rights.take()
        async with member_of(cluster, **protocol) as consumer:
            with pytest.raises(AuthorizationError):
                await consumer.receive()
            await consumer.unsubscribe()
            assert consumer.health().ok
            rights.give()
            consumer.assign([T0])
            assert await values(consumer, 1) == [b"0"]


@protocols
async def test_lost_listener_is_called_once(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    events: list[Any] = []
    async with cluster_of(2, records=5) as cluster, trio.open_nursery() as nursery:
        rights = Rights(cluster)
        async with consumer_of(cluster, group_id="g", **protocol) as consumer:
            consumer.subscribe(["t"], RecordingListener(events))
            reader = Reader(consumer)
            nursery.start_soon(reader.run)
            await until(lambda: len(reader.got) == 10)
            rights.take()
            await until(lambda: len(reader.errors) == 3, 0.1)
            rights.give()
            await until(lambda: len(events) == 3, 0.1)
            assert events == [("assigned", [T0, T1]), ("lost", [T0, T1]), ("assigned", [T0, T1])]
            nursery.cancel_scope.cancel()


@protocols
async def test_full_group_is_joined_later(autojump_clock: Clock, protocol: dict[str, Any]) -> None:
    async with cluster_of(1, records=5) as cluster:
        full = [
            cluster.fail(api, ErrorCode.GROUP_MAX_SIZE_REACHED, None) for api in ("JoinGroup", BEAT)
        ]
        async with member_of(cluster, **protocol) as consumer:
            for _ in range(2):
                with pytest.raises(GroupFullError):
                    await consumer.receive()
            for rule in full:
                rule.remove()
            assert await values(consumer, 1) == [b"0"]


@protocols
async def test_unraised_refusal_is_dropped(autojump_clock: Clock, protocol: dict[str, Any]) -> None:
    async with cluster_of(1, records=5) as cluster:
        rights = Rights(cluster)
        rights.take()
        async with member_of(cluster, **protocol) as consumer:
            await trio.sleep(4)
            rights.give()
            await until(
                lambda: consumer.health().state == "stable" or bool(consumer.assignment()), 0.1
            )
            await trio.sleep(1)
            assert await values(consumer, 5) == [b"%d" % number for number in range(5)]


# Streams and tasks.


@protocols
async def test_streams_return_after_a_refusal(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    got: list[Any] = []
    errors: list[Exception] = []

    async def read(stream: Any) -> None:
        async for record in stream:
            got.append(record.value)

    async with cluster_of(2, records=5) as cluster, trio.open_nursery() as nursery:
        rights = Rights(cluster)
        async with member_of(cluster, **protocol) as consumer:

            async def run() -> None:
                while True:
                    try:
                        async with trio.open_nursery() as readers:
                            try:
                                async for stream in consumer.partitions():
                                    readers.start_soon(read, stream)
                            except AuthorizationError as error:
                                errors.append(error)
                    except* AuthorizationError as group:
                        raise AssertionError("a stream raised it") from group

            nursery.start_soon(run)
            await until(lambda: len(got) == 10)
            rights.take()
            await until(lambda: len(errors) == 3, 0.1)
            rights.give()
            cluster.append("t", 0, [b"later"])
            await until(lambda: b"later" in got, 0.1)
            assert len(errors) <= 5
            nursery.cancel_scope.cancel()


@protocols
async def test_run_tasks_ends_and_can_be_repeated(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    done: list[Any] = []
    errors: list[Exception] = []

    async def handle(record: Any) -> None:
        done.append((record.partition, record.offset))

    async with cluster_of(2, records=5) as cluster, trio.open_nursery() as nursery:
        rights = Rights(cluster)
        async with member_of(cluster, enable_auto_commit=False, **protocol) as consumer:

            async def run() -> None:
                while True:
                    try:
                        await trikafka.run_tasks(consumer, handle)
                    except AuthorizationError as error:
                        errors.append(error)

            nursery.start_soon(run)
            await until(lambda: len(done) == 10)
            await trio.sleep(6)
            rights.take()
            await until(lambda: len(errors) == 3, 0.1)
            rights.give()
            cluster.append("t", 0, [b"later"])
            await until(lambda: (0, 5) in done, 0.1)
            assert sorted(done) == sorted([*((p, n) for p in (0, 1) for n in range(5)), (0, 5)])
            nursery.cancel_scope.cancel()


# Any moment.


@protocols
async def test_rights_may_be_lost_at_any_moment(
    autojump_clock: Clock, protocol: dict[str, Any]
) -> None:
    """The member waits no longer than its pauses once the rights return."""
    for step in range(0, 40, 3):
        async with cluster_of(2, records=50) as cluster, trio.open_nursery() as nursery:
            for api in GROUP_APIS:
                cluster.delay(api, 0.01)
            rights = Rights(cluster)
            async with member_of(cluster, **protocol) as consumer:
                reader = Reader(consumer)
                nursery.start_soon(reader.run)
                await trio.sleep(step * 0.005)
                rights.take()
                await trio.sleep(1.5)
                rights.give()
                cluster.append("t", 0, [b"later"])
                with trio.fail_after(20):
                    await until(lambda: b"later" in reader.got, 0.05)  # noqa: B023 - within the round
                assert all(isinstance(error, AuthorizationError) for _, error in reader.errors)
                nursery.cancel_scope.cancel()


@protocols
@pytest.mark.parametrize("call", ["subscribe", "unsubscribe", "close"])
async def test_calls_work_at_any_moment_of_a_refusal(
    autojump_clock: Clock, protocol: dict[str, Any], call: str
) -> None:
    """Each call ends in time, and later calls work."""
    for pause in (0, 0.011, 0.3, 1.1, 5.2):
        async with cluster_of(2, records=5) as cluster:
            for api in GROUP_APIS:
                cluster.delay(api, 0.01)
            rights = Rights(cluster)
            async with member_of(cluster, **protocol) as consumer:
                reader = Reader(consumer)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reader.run)
                    await until(lambda: len(reader.got) == 10, 0.01)  # noqa: B023 - within the round
                    rights.take()
                    await trio.sleep(pause)
                    if call == "subscribe":
                        rights.give()
                        cluster.append("t", 0, [b"later"])
                        consumer.subscribe(["t"])
                        # With the consumer protocol the next heartbeat may be due only then.
                        with trio.fail_after(5.5):
                            await until(lambda: b"later" in reader.got, 0.05)  # noqa: B023
                    nursery.cancel_scope.cancel()
                if call == "unsubscribe":
                    with trio.fail_after(12):
                        await consumer.unsubscribe()
                    rights.give()
                    cluster.append("t", 0, [b"later"])
                    consumer.subscribe(["t"])
                    with trio.fail_after(5):
                        while b"later" not in reader.got:
                            reader.got += await values(consumer, 1)
                began = trio.current_time()
            assert trio.current_time() - began < 32


async def test_receive_nowait_raises_the_refusal(autojump_clock: Clock) -> None:
    async with cluster_of(1, records=1) as cluster:
        Rights(cluster).take()
        async with member_of(cluster) as consumer:
            raised = 0
            for _ in range(1_000):
                try:
                    with suppress(trio.WouldBlock):
                        consumer.receive_nowait()
                except AuthorizationError:
                    raised += 1
                await trio.sleep(0.01)
            assert 3 <= raised <= 6


def test_refusals_that_may_pass_are_listed() -> None:
    may = {code for code in ErrorCode if code and may_be_lifted(from_code(code))}
    assert may == {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ErrorCode.ILLEGAL_SASL_STATE,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    }
    assert may_be_lifted(from_code(31_000))
    assert not may_be_lifted(trikafka.ConfigurationError("no"))


# Errors of one partition.


@pytest.mark.parametrize("assigned", [True, False])
@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("OffsetFetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("OffsetFetch", ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ("ListOffsets", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("Fetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_repeated_receives_are_no_storm(
    autojump_clock: Clock, api: str, code: ErrorCode, assigned: bool
) -> None:
    """Each receive raises a response of the broker, which is asked about once a second."""
    async with cluster_of(1, records=5) as cluster, trio.open_nursery() as nursery:
        rule = cluster.fail(api, code, None)
        async with consumer_of(cluster, *([] if assigned else ["t"]), group_id="g") as consumer:
            if assigned:
                consumer.assign([T0])
            reader = Reader(consumer)
            nursery.start_soon(reader.run)
            await trio.sleep(20)
            assert 15 <= len(reader.errors) <= 35
            assert len(cluster.requests(api)) <= len(reader.errors) + 1
            rule.remove()
            with trio.fail_after(1.5):
                await until(lambda: len(reader.got) == 5)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol", PROTOCOLS[:2], ids=["eager", "cooperative"])
async def test_refused_heartbeats_are_no_livelock(
    autojump_clock: Clock, protocol: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Each join succeeds, so only the heartbeats show the refusal."""
    caplog.set_level("INFO", "trikafka.membership")
    async with cluster_of(2, records=5) as cluster, trio.open_nursery() as nursery:
        async with member_of(cluster, **protocol) as consumer:
            reader = Reader(consumer)
            nursery.start_soon(reader.run)
            await until(lambda: len(reader.got) == 10)
            caplog.clear()
            rule = cluster.fail("Heartbeat", ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
            await until(lambda: bool(reader.errors))
            joins, bad = len(cluster.requests("JoinGroup")), True
            for _ in range(120):
                await trio.sleep(1)
                bad &= not consumer.health().ok
            assert bad
            assert len(cluster.requests("JoinGroup")) - joins <= 20
            refused = [line for line in caplog.messages if "GROUP_AUTHORIZATION_FAILED" in line]
            # One line says that the partitions are lost, one that attempts follow.
            assert len(refused) == 2, refused
            rule.remove()
            await until(lambda: consumer.health().ok)
            assert any("is in its group again" in line for line in caplog.messages)
            nursery.cancel_scope.cancel()


async def test_never_joined_member_leaves_quietly(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first heartbeat reached no coordinator, so the group does not exist."""
    async with cluster_of(1, records=3) as cluster:
        rights = Rights(cluster)
        rights.take()
        async with member_of(cluster, group_protocol="consumer") as consumer:
            await until(lambda: not consumer.health().ok)
            rights.give()
            await consumer.unsubscribe()
            consumer.assign([T0])
            assert await values(consumer, 3) == [b"0", b"1", b"2"]
        assert not [line for line in caplog.messages if "could not leave" in line]
