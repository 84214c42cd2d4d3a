"""The membership of a share group: joining, being fenced, leaving for silence, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from sharing import GROUP, cluster_of, queue_of, states, until
from trio.testing import MockClock as Clock

import trikafka
from trikafka.errors import (
    ConfigurationError,
    GroupFullError,
    GroupIdNotFoundError,
    UnsupportedVersionError,
)
from trikafka.testing import ScriptedCluster


def beats(cluster: ScriptedCluster) -> list[Any]:
    return [seen.request for seen in cluster.requests("ShareGroupHeartbeat")]


async def test_a_heartbeat_says_what_is_new(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, queue_of(cluster, client_rack="a") as queue:
        await trio.sleep(11)
        first, *later = beats(cluster)
        assert (first.member_epoch, first.subscribed_topic_names) == (0, ["t"])
        assert (first.rack_id, first.member_id) == ("a", queue.member_id)
        assert [each.subscribed_topic_names for each in later] == [None] * len(later)
        assert {each.member_epoch for each in later} == {1}
        assert [seen.time for seen in cluster.requests("ShareGroupHeartbeat")] == [0, 5, 10]


async def test_a_fenced_member_joins_again(autojump_clock: Clock) -> None:
    async with cluster_of(records=2) as cluster, queue_of(cluster) as queue:
        held = await queue.receive()
        member = queue.member_id
        cluster.shares.fence(GROUP)
        async with held:
            await until(lambda: [each.member_epoch for each in beats(cluster)].count(0) == 2)
            await trio.sleep(1)
        await held.acknowledged()  # its lock is the session's, not the membership's
        assert queue.member_id == member
        assert queue.statistics().state == "stable"
        async with await queue.receive():
            pass
        await queue.flush()
        assert states(cluster) == ["acknowledged"] * 2


async def test_a_deleted_group_is_joined_again(autojump_clock: Clock) -> None:
    """It had no member left while this one was frozen; a new group has taken its name."""
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        (await queue.receive()).accept()
        cluster.fail("ShareGroupHeartbeat", 69, where=lambda beat: beat.member_epoch > 0)
        await until(lambda: [each.member_epoch for each in beats(cluster)].count(0) == 2)
        cluster.append("t", 0, [b"more"])
        assert (await queue.receive()).record.value == b"more"


async def test_an_unanswered_heartbeat_repeats_all(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster, queue_of(cluster):
        await trio.sleep(1)
        cluster.fail("ShareGroupHeartbeat", 15)
        await trio.sleep(10)
        assert beats(cluster)[2].subscribed_topic_names == ["t"]


async def test_the_coordinator_is_followed(autojump_clock: Clock) -> None:
    async with cluster_of(records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        await until(lambda: bool(queue.assignment))
        cluster.move_coordinator(1)
        await until(lambda: bool(cluster.requests("ShareGroupHeartbeat", node=1)), 0.1)
        await trio.sleep(6)
        assert queue.health().ok


@pytest.mark.parametrize(("code", "kind"), [(81, GroupFullError), (69, GroupIdNotFoundError)])
async def test_a_refusal_is_raised(autojump_clock: Clock, code: int, kind: Any) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.fail("ShareGroupHeartbeat", code, None)
        async with queue_of(cluster) as queue:
            for _ in range(2):
                with pytest.raises(kind, match="joining share group 'workers'"):
                    await queue.receive()
            assert queue.health().error is not None


async def test_refused_topics_are_named(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.fail("ShareGroupHeartbeat", trikafka.ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        async with queue_of(cluster) as queue:
            with pytest.raises(trikafka.AuthorizationError, match="subscribed to 't'") as raised:
                await queue.receive()
            assert raised.value.operation == "Describe"


async def test_group_of_another_kind_is_explained(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.fail("ShareGroupHeartbeat", trikafka.ErrorCode.GROUP_ID_NOT_FOUND, None)
        async with queue_of(cluster) as queue:
            with pytest.raises(GroupIdNotFoundError, match=r"choose another group_id$") as caught:
                await queue.receive()
            assert not hasattr(caught.value, "__notes__")


async def test_old_brokers_are_named(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        cluster.offer("ShareGroupHeartbeat", None)
        async with queue_of(cluster) as queue:
            with pytest.raises(UnsupportedVersionError, match=r"needs Kafka 4\.2 or newer"):
                await queue.receive()


@pytest.mark.parametrize("request_name", ["ShareGroupHeartbeat", "ShareFetch"])
async def test_a_feature_that_is_off_is_named(autojump_clock: Clock, request_name: str) -> None:
    """An upgrade of the brokers leaves the features of the cluster as they are."""
    async with cluster_of(records=1) as cluster:
        cluster.fail(request_name, trikafka.ErrorCode.UNSUPPORTED_VERSION, None)
        async with queue_of(cluster) as queue:
            with pytest.raises(UnsupportedVersionError, match=r"the feature share\.version \("):
                await queue.receive()


async def test_a_silent_program_leaves_until_it_returns(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_poll_interval_ms=20_000) as queue:
            (await queue.receive()).accept()
            await trio.sleep(25)
            assert queue.statistics().state == "stale"
            assert not cluster.shares.by_id[GROUP].members
            assert any("max_poll_interval_ms" in each for each in queue.health().reasons)
            cluster.append("t", 0, [b"1"])
            with trio.fail_after(5):
                assert (await queue.receive()).record.value == b"1"
            assert queue.health().ok


async def test_a_stale_member_leaves_once(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_poll_interval_ms=20_000) as queue:
            await trio.sleep(25)
            assert queue.statistics().state == "stale"
        assert [each.member_epoch for each in beats(cluster)].count(-1) == 1


async def test_a_failed_leave_is_tried_by_the_close(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_poll_interval_ms=20_000) as queue:
            await until(lambda: queue.statistics().state == "stable")
            cluster.fail("ShareGroupHeartbeat", 42, where=lambda beat: beat.member_epoch < 0)
            await trio.sleep(25)
            assert queue.statistics().state == "stale"
            assert cluster.shares.by_id[GROUP].members
        assert not cluster.shares.by_id[GROUP].members
        assert [each.member_epoch for each in beats(cluster)].count(-1) == 2


@pytest.mark.parametrize(("code", "leaves"), [(25, 0), (110, 1)])
async def test_a_removed_member_does_not_leave(
    autojump_clock: Clock, code: int, leaves: int
) -> None:
    """A fenced epoch is another case: the coordinator has the member still."""
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster) as queue:
            await until(lambda: queue.statistics().state == "stable")
            cluster.fail("ShareGroupHeartbeat", code, where=lambda beat: beat.member_epoch > 0)
            await until(lambda: queue.statistics().state == "unjoined")
        assert [each.member_epoch for each in beats(cluster)].count(-1) == leaves


async def test_an_open_block_counts_as_presence(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        async with queue_of(cluster, max_poll_interval_ms=20_000) as queue:
            async with await queue.receive():
                await trio.sleep(90)
                assert queue.statistics().state == "stable"
            await trio.sleep(45)
            assert queue.statistics().state == "stale"


async def test_a_waiting_receive_is_presence(autojump_clock: Clock) -> None:
    async with cluster_of() as cluster:
        async with queue_of(cluster, max_poll_interval_ms=20_000) as queue:
            with trio.move_on_after(100):
                await queue.receive()
            assert queue.statistics().state == "stable"


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("auto_offset_reset", "earliest", "share.auto.offset.reset"),
        ("isolation_level", "read_committed", "share.isolation.level"),
        ("session_timeout_ms", 45_000, "share.session.timeout.ms"),
        ("heartbeat_interval_ms", 5_000, "share.heartbeat.interval.ms"),
        ("enable_auto_commit", True, "nothing like it"),
        ("group_instance_id", "a", "nothing like it"),
        ("group_protocol", "consumer", "nothing like it"),
        ("group_remote_assignor", "uniform", "nothing like it"),
        ("partition_assignment_strategy", ["range"], "nothing like it"),
    ],
)
async def test_settings_of_the_group_are_refused(name: str, value: Any, instead: str) -> None:
    given: Any = {name: value, "group_id": "g", "bootstrap_servers": "nowhere:1"}
    with pytest.raises(ConfigurationError, match=f"^{name} cannot be given.*{instead}"):
        async with trikafka.open_share_consumer("t", **given):
            pass


@pytest.mark.parametrize(
    ("topics", "settings", "text"),
    [
        ((), {"group_id": "g"}, "needs the names of topics"),
        (("t",), {}, "group_id: a share consumer is a member of a group"),
        (("t",), {"group_id": "g", "max_in_flight": 0}, "max_in_flight must be at least 1"),
        (("t",), {"group_id": "g", "acquire": "all"}, "acquire must be one of"),
        (("t",), {"group_id": "g", "acks": 1}, "unknown setting 'acks'.*open_producer"),
        (("t",), {"group_id": "g", "max_inflight": 1}, "did you mean 'max_in_flight'"),
    ],
)
async def test_wrong_arguments_are_told_first(
    topics: tuple[str, ...], settings: Any, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        async with trikafka.open_share_consumer(*topics, bootstrap_servers="nowhere:1", **settings):
            pass
