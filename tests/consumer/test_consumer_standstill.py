"""Standstills of a consumer: each API breaks for good after all has worked, and the log and
health() report it. DESIGN 3g: a standstill longer than 1.25 times ``stall_warning_ms`` has one log
line with its name and cause, and ``health().ok`` is False.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of
from trio.testing import MockClock as Clock

from trikafka import KafkaTimeoutError, TopicPartition, TrikafkaError
from trikafka._api.client.stalls import NEVER, Owed, StallWatch
from trikafka.error_codes import ErrorCode as E
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable
from trikafka.testing._breaking import HOW

LIMIT = 10.0  # stall_warning_ms
HEARD = 1.25 * LIMIT
#: Ways to break an API for good. An error code has a place in every response but ApiVersions'.


async def nothing(cluster: ScriptedCluster, consumer: Any) -> None:
    """Do nothing: the consumer uses the API by itself."""


async def new_record(cluster: ScriptedCluster, consumer: Any) -> None:
    cluster.append("t", 0, [b"new"])


async def seek(cluster: ScriptedCluster, consumer: Any) -> None:
    consumer.seek_to_beginning([T0])


async def another_partition(cluster: ScriptedCluster, consumer: Any) -> None:
    consumer.assign([T0, T1])


async def new_leader(cluster: ScriptedCluster, consumer: Any) -> None:
    cluster.move_leader("t", 0, 1 - cluster.partition("t", 0).leader)


async def unknown_member(cluster: ScriptedCluster, consumer: Any) -> None:
    cluster.fail("Heartbeat", E.UNKNOWN_MEMBER_ID)


async def another_coordinator(cluster: ScriptedCluster, consumer: Any) -> None:
    cluster.move_coordinator(1)


async def new_connections(cluster: ScriptedCluster, consumer: Any) -> None:
    cluster.disconnect()


#: Names of the group in a line of the log: by its membership, or by the watchdog.
GROUP = ("group g:", "'g'")


@dataclass(frozen=True)
class Api:
    """An API with codes that pass or do not, how the consumer uses it, and names for the log."""

    name: str
    retriable: int
    fatal: int
    use: Callable[[ScriptedCluster, Any], Any]
    names: tuple[str, ...]
    opened: Callable[..., Any] = member_of

    def __str__(self) -> str:
        return self.name


def by_hand(cluster: ScriptedCluster, **settings: Any) -> Any:
    return consumer_of(cluster, **({"group_id": "g"} | settings))


def modern(cluster: ScriptedCluster, **settings: Any) -> Any:
    return member_of(cluster, **({"group_protocol": "consumer"} | settings))


def either(cluster: ScriptedCluster, **settings: Any) -> Any:
    return member_of(cluster, **({"group_protocol": "auto"} | settings))


APIS = [
    Api("Fetch", E.KAFKA_STORAGE_ERROR, E.TOPIC_AUTHORIZATION_FAILED, nothing, ("t-0",), by_hand),
    Api("Fetch", E.UNKNOWN_LEADER_EPOCH, E.UNKNOWN_SERVER_ERROR, nothing, ("t-0",)),
    Api(
        "Metadata",
        E.LEADER_NOT_AVAILABLE,
        E.TOPIC_AUTHORIZATION_FAILED,
        nothing,
        ("metadata", "t-0"),
        by_hand,
    ),
    Api(
        "ListOffsets", E.LEADER_NOT_AVAILABLE, E.TOPIC_AUTHORIZATION_FAILED, seek, ("t-0",), by_hand
    ),
    Api(
        "OffsetFetch",
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.GROUP_AUTHORIZATION_FAILED,
        another_partition,
        ("t-1",),
        by_hand,
    ),
    Api(
        "OffsetCommit",
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.GROUP_AUTHORIZATION_FAILED,
        new_record,
        GROUP,
        by_hand,
    ),
    Api(
        "OffsetForLeaderEpoch",
        E.UNKNOWN_LEADER_EPOCH,
        E.TOPIC_AUTHORIZATION_FAILED,
        new_leader,
        ("t-0",),
        by_hand,
    ),
    Api(
        "FindCoordinator",
        E.COORDINATOR_NOT_AVAILABLE,
        E.GROUP_AUTHORIZATION_FAILED,
        another_coordinator,
        GROUP,
    ),
    Api(
        "JoinGroup",
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.GROUP_AUTHORIZATION_FAILED,
        unknown_member,
        GROUP,
    ),
    Api("SyncGroup", E.REBALANCE_IN_PROGRESS, E.GROUP_AUTHORIZATION_FAILED, unknown_member, GROUP),
    Api("Heartbeat", E.COORDINATOR_NOT_AVAILABLE, E.GROUP_AUTHORIZATION_FAILED, nothing, GROUP),
    Api(
        "ConsumerGroupHeartbeat",
        E.COORDINATOR_NOT_AVAILABLE,
        E.GROUP_AUTHORIZATION_FAILED,
        nothing,
        GROUP,
        modern,
    ),
    Api(
        "ConsumerGroupHeartbeat",
        E.COORDINATOR_NOT_AVAILABLE,
        E.GROUP_AUTHORIZATION_FAILED,
        nothing,
        GROUP,
        either,
    ),
    Api("ApiVersions", 0, 0, new_connections, ("broker 0", "broker 1"), by_hand),
]
CASES = [
    pytest.param(api, how, id=f"{number}-{api}-{how}")
    for number, api in enumerate(APIS)
    for how in HOW
    if api.fatal or "code" not in how
]


@asynccontextmanager
async def working(api: Api) -> AsyncIterator[tuple[ScriptedCluster, Any]]:
    """Open a consumer that has read both partitions to their ends, committed, and continues."""
    settings = {
        "stall_warning_ms": LIMIT * 1000,
        "auto_commit_interval_ms": 1000,
        "metadata_max_age_ms": 1000,
    }
    async with (
        cluster_of(2, records=3, nodes=2) as cluster,
        api.opened(cluster, **settings) as consumer,
    ):
        cluster.move_coordinator(0)
        if api.opened is by_hand:
            consumer.assign([T0])
        with trio.move_on_after(3):
            while True:
                await consumer.receive_batch(timeout=1)
        assert consumer.health().ok, consumer.health().reasons

        async def receive() -> None:
            while True:
                try:
                    await consumer.receive_batch(timeout=1)
                except TrikafkaError:
                    await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            yield cluster, consumer
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("api", "how"), CASES)
async def test_broken_consumer_api_is_logged(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, api: Api, how: str
) -> None:
    caplog.set_level(logging.WARNING, "trikafka")
    async with working(api) as (cluster, consumer):
        caplog.clear()
        HOW[how](cluster, api)
        await api.use(cluster, consumer)
        await trio.sleep(HEARD + 1)  # one heartbeat, fetch or refresh later at the latest
        lines = [
            record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
        ]
        named = [line for line in lines if any(name in line for name in api.names)]
        assert named, (lines, consumer.health())
        assert not consumer.health().ok, named
        assert len(set(lines)) == len(lines) <= 6, lines
        cluster._script._rules.clear()


@pytest.mark.parametrize(
    "code",
    [
        E.KAFKA_STORAGE_ERROR,
        E.NOT_LEADER_OR_FOLLOWER,
        E.OFFSET_NOT_AVAILABLE,
        E.UNKNOWN_LEADER_EPOCH,
    ],
)
async def test_unproven_end_of_a_partition_is_stalled(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, code: E
) -> None:
    async with working(APIS[0]) as (cluster, consumer):
        cluster.fail("Fetch", code, None)
        began = trio.current_time()
        while consumer.health().ok:  # noqa: ASYNC110 - no event marks the change
            await trio.sleep(0.1)
        assert LIMIT - 1 <= trio.current_time() - began <= HEARD
        await trio.sleep(LIMIT)
        [line] = [
            record.getMessage() for record in caplog.records if record.name == "trikafka.consumer"
        ]
        assert line.startswith("t-0: no progress for 1")
        assert code.name in line
        assert code.name in consumer.health().stalled[T0]
        cluster._script._rules.clear()
        await trio.sleep(3)
        assert consumer.health().ok


async def test_stuck_bounded_iteration_is_stalled(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition before its bound stands still, one at its bound rests."""
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([T0, T1])
        with trio.move_on_after(2 * LIMIT):
            async for _ in consumer.batches({T0: 2, T1: 4}):
                cluster.fail("Fetch", E.KAFKA_STORAGE_ERROR, times=1_000_000)
        assert list(consumer.health().stalled) == [T1]
    lines = [each.message for each in caplog.records if "no progress" in each.message]
    assert len(lines) == 1
    assert lines[0].startswith("t-1: no progress for ")


async def test_unreachable_leader_is_named(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(APIS[0]) as (cluster, consumer):
        leader = cluster.partition("t", 0).leader
        assert leader is not None
        cluster.refuse(leader)
        cluster.disconnect(leader)
        await trio.sleep(HEARD)
        assert "its leader cannot be reached: " in consumer.health().stalled[T0]
        assert any(record.getMessage().startswith("t-0: no progress") for record in caplog.records)


async def test_many_stalled_partitions_are_summarized(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trikafka.consumer")
    async with cluster_of(100, records=1) as cluster, consumer_of(cluster) as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(100)])
        with trio.move_on_after(20):
            while True:
                await consumer.receive_batch(timeout=1)
        cluster.stop(0, noticed=False)
        await trio.sleep(2 * LIMIT)
        assert len(consumer.health().stalled) == 100
        lines = [record.getMessage() for record in caplog.records if "no progress" in record.msg]
        assert len(lines) == 11
        assert lines[10].startswith("90 more make no progress: no broker of the cluster")
        cluster.start(0)
        await trio.sleep(2 * LIMIT)
        assert consumer.health().ok
        resumed = [record for record in caplog.records if record.name == "trikafka.consumer"][11:]
        assert [record.levelname for record in resumed] == ["INFO"] * 11


@pytest.mark.parametrize(("records", "least"), [(3, 1), (0, 1), (3, 1000)])
async def test_long_fetch_wait_is_no_standstill(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, records: int, least: int
) -> None:
    """A broker may hold a fetch longer than stall_warning_ms if the settings ask for it.

    It holds the first one, too, and any of fewer bytes than ``fetch_min_bytes``.
    """
    settings = {"fetch_max_wait_ms": 25_000, "stall_warning_ms": 5000, "fetch_min_bytes": least}
    async with cluster_of(records=records) as cluster, consumer_of(cluster, **settings) as consumer:
        consumer.assign([T0])
        with trio.move_on_after(200):
            while True:
                await consumer.receive_batch(timeout=1)
                assert consumer.health().ok
        assert not caplog.records


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_hanging_listener_is_named(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    """Receives keep their timeouts meanwhile."""
    hang = trio.Event()

    async def then(what: str) -> None:
        await hang.wait()

    log: list[Any] = []
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, group_id="g", group_protocol=protocol) as consumer,
    ):
        consumer.subscribe(["t"], listener=RecordingListener(log, then=then))
        for _ in range(30):
            began = trio.current_time()
            assert not await consumer.receive_batch(timeout=0.5)
            assert trio.current_time() - began <= 0.6
        assert log == [("assigned", [T0])], "it goes on, and is not started again"
        assert not consumer.health().ok
        assert (
            "on_partitions_assigned of <consuming.RecordingListener"
            in consumer.health().stalled[T0]
        )
        lines = [
            record.getMessage() for record in caplog.records if record.name == "trikafka.consumer"
        ]
        assert lines
        assert all(
            "on_partitions_assigned of <consuming.RecordingListener" in line for line in lines
        )
        hang.set()
        assert len(await consumer.receive_batch(timeout=5)) == 3
        assert consumer.health().ok
        assert log == [("assigned", [T0])]


async def test_late_listener_error_is_raised(autojump_clock: Clock) -> None:
    async def then(what: str) -> None:
        await trio.sleep(2)
        if what == "assigned":
            raise ValueError("the listener's")

    async with cluster_of(records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], listener=RecordingListener([], then=then))
        assert not await consumer.receive_batch(timeout=0.5)
        await trio.sleep(5)
        with pytest.raises(ValueError, match="the listener's"):
            await consumer.receive_batch(timeout=0.5)
        assert len(await consumer.receive_batch(timeout=5)) == 3


@pytest.mark.parametrize("fails", [None, "alone", "in a nursery"])
async def test_cancelled_receive_reruns_the_listener(
    autojump_clock: Clock, fails: str | None
) -> None:
    """A failure of its clean-up changes nothing: in a group with ``Cancelled`` it ended the client."""
    log: list[Any] = []

    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            log.append("cancelled")
            if fails is not None:
                raise ValueError("in the clean-up")

    async def then(what: str) -> None:
        if len(log) != 1:
            return
        if fails == "in a nursery":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hang)
                nursery.start_soon(trio.sleep_forever)
        await hang()

    async with cluster_of(records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], listener=RecordingListener(log, then=then))
        assert not await consumer.receive_batch(timeout=2)  # the listener goes on
        with trio.move_on_after(1):
            await consumer.receive_batch(timeout=60)
        assert log == [("assigned", [T0]), "cancelled"]
        assert len(await consumer.receive_batch(timeout=5)) == 3
        assert log[2:] == [("assigned", [T0])]


async def test_receive_in_a_listener_is_refused(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:

        async def then(what: str) -> None:
            await trio.sleep(2)
            if what == "assigned":
                await consumer.receive_batch(timeout=60)

        consumer.subscribe(["t"], listener=RecordingListener([], then=then))
        with trio.fail_after(30), pytest.raises(trio.BusyResourceError):  # noqa: PT012
            while True:
                await consumer.receive_batch(timeout=0.5)


async def test_close_with_a_hanging_listener_is_bounded(autojump_clock: Clock) -> None:
    async def then(what: str) -> None:
        await trio.sleep_forever()

    async with cluster_of(records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.subscribe(["t"], listener=RecordingListener([], then=then))
        assert not await consumer.receive_batch(timeout=2)
        began = trio.current_time()
        await consumer.aclose(timeout=3)
        assert trio.current_time() - began <= 4


async def test_cancelled_receive_completes_listener_once(
    autojump_clock: Clock,
) -> None:
    """However often the listener is cancelled, it completes once, and no record is lost."""

    @asynccontextmanager
    async def setup() -> AsyncIterator[Any]:
        ended: list[str] = []

        async def then(what: str) -> None:
            await trio.sleep(1)
            ended.append(what)

        got: list[int] = []
        async with cluster_of(records=3) as cluster, consumer_of(cluster, group_id="g") as consumer:
            consumer.subscribe(["t"], listener=RecordingListener([], then=then))
            yield consumer, got, ended

    async def scenario(given: Any) -> None:
        consumer, got, _ = given
        while len(got) < 3:
            got += (await consumer.receive_batch(timeout=0.3)).offsets

    async def check(given: Any) -> None:
        with trio.fail_after(60):
            await scenario(given)
        assert given[1:] == ([0, 1, 2], ["assigned"])

    with trio.fail_after(3600):
        assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 5


@pytest.mark.parametrize("takes", [0, 0.49, 0.5, 0.51, 1.0, 1.5])
@pytest.mark.parametrize("change", ["assigned", "revoked"])
async def test_listener_may_end_at_the_timeout(
    autojump_clock: Clock, takes: float, change: str
) -> None:
    ended: list[str] = []

    async def then(what: str) -> None:
        if what == change:
            await trio.sleep(takes)
        ended.append(what)

    async with cluster_of(2, records=3) as cluster:
        settings: dict[str, Any] = {"group_id": "g", "group_protocol": "classic"}
        async with consumer_of(cluster, **settings) as consumer:
            consumer.subscribe(["t"], listener=RecordingListener([], then=then))
            got = 0
            with trio.fail_after(60):
                while got < 6:
                    got += len(await consumer.receive_batch(timeout=0.5))
                async with consumer_of(cluster, "t", **settings) as other:
                    ended.clear()
                    while len(other.assignment()) != 1 or len(consumer.assignment()) != 1:
                        await consumer.receive_batch(timeout=0.5)
                        await other.receive_batch(timeout=0.5)
                    assert ended.count("revoked") == 1


@pytest.mark.parametrize("timeout", [0.5, None])
async def test_listener_is_bounded_by_poll_interval(
    autojump_clock: Clock, timeout: float | None
) -> None:
    """The group has moved on by then. The member leaves and rejoins with the next receive."""
    log: list[Any] = []

    async def then(what: str) -> None:
        if len(log) == 1:
            await trio.sleep_forever()

    settings = {"max_poll_interval_ms": 10_000, "session_timeout_ms": 6000, "group_id": "g"}
    async with cluster_of(records=3) as cluster, consumer_of(cluster, **settings) as consumer:
        consumer.subscribe(["t"], listener=RecordingListener(log, then=then))
        with trio.fail_after(60), pytest.raises(KafkaTimeoutError, match="on_partitions_assigned"):  # noqa: PT012
            while True:
                await consumer.receive_batch(timeout=timeout)
        assert 9 <= trio.current_time() <= 12
        with trio.fail_after(60):
            while not (batch := await consumer.receive_batch(timeout=timeout)):
                pass
        assert len(batch) == 3
        assert log == [("assigned", [T0]), ("lost", [T0]), ("assigned", [T0])]


async def test_stall_check_lets_other_tasks_run(autojump_clock: Clock) -> None:
    owed = [Owed(number, number, 0, NEVER, str) for number in range(5_000)]
    watch, turns = (
        StallWatch(logging.getLogger("trikafka.consumer"), 10, [lambda now: owed], "c"),
        0,
    )
    async with trio.open_nursery() as nursery:

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(count)
        await watch._look(trio.current_time())
        nursery.cancel_scope.cancel()
    assert turns >= 5
