"""Contents and times of commits.

Auto commit covers records whose processing the user has finished; an explicit commit covers all
delivered ones.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from consuming import T0, T1, RecordingListener, cluster_of, consumer_of, member_of, until, values
from trio.testing import MockClock as Clock

from trikafka import OffsetAndMetadata, TopicPartition
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    BrokerResponseError,
    ClientFailedError,
    CommitFailedError,
    KafkaTimeoutError,
    RebalanceInProgressError,
)
from trikafka.testing import ScriptedCluster


class Oops(Exception):
    pass


def committed(cluster: ScriptedCluster) -> int | None:
    found = cluster.committed("g", T0)
    return None if found is None else found.offset


async def test_timer_commits_finished_records(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, auto_commit_interval_ms=1_000) as consumer,
    ):
        for count in range(1, 6):
            await consumer.receive()
            await trio.sleep(2)
            assert committed(cluster) == count - 1  # the last one is still being processed


async def test_timer_commits_finished_batches(
    autojump_clock: Clock,
) -> None:
    settings = {"auto_commit_interval_ms": 1_000, "max_poll_records": 4}
    async with cluster_of(records=12) as cluster, member_of(cluster, **settings) as consumer:
        for done in (0, 4, 8):
            assert len(await consumer.receive_batch()) == 4
            await trio.sleep(2)
            assert committed(cluster) == done


async def test_empty_receive_finishes_the_last_records(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=2) as cluster,
        member_of(cluster, auto_commit_interval_ms=1_000) as consumer,
    ):
        await values(consumer, 2)
        assert not await consumer.receive_batch(timeout=3)
        assert committed(cluster) == 2


async def test_finished_records_of_all_are_committed(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=1) as cluster:
        async with member_of(cluster) as consumer:
            await values(consumer, 2)
            raised = False
            try:
                raise Oops
            except Oops:
                raised = True
            assert raised
        assert committed(cluster) == 1
        assert cluster.committed("g", T1).offset == 1


@pytest.mark.parametrize("by_batch", [False, True])
async def test_clean_exit_commits_all_delivered(autojump_clock: Clock, by_batch: bool) -> None:
    async with cluster_of(records=9) as cluster:
        async with member_of(cluster, max_poll_records=4) as consumer:
            if by_batch:
                async for _batch in consumer.batches():
                    break
            else:
                async for record in consumer:
                    if record.offset == 3:
                        break
        assert committed(cluster) == 4


@pytest.mark.parametrize("by_batch", [False, True])
async def test_exception_leaves_records_in_hand(autojump_clock: Clock, by_batch: bool) -> None:
    async with cluster_of(records=9) as cluster:
        with pytest.raises(Oops):  # noqa: PT012
            async with member_of(cluster, max_poll_records=2) as consumer:
                if by_batch:
                    await consumer.receive_batch()
                    await consumer.receive_batch()
                else:
                    await values(consumer, 3)
                raise Oops
        assert committed(cluster) == 2
        assert not cluster.group("g").members


async def test_cancelled_exit_commits_within_a_second(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=9) as cluster:
        with trio.move_on_after(10) as scope:
            async with member_of(cluster) as consumer:
                await values(consumer, 3)
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert committed(cluster) == 2
        assert not cluster.group("g").members
        assert trio.current_time() < 11


async def test_cancelled_exit_of_frozen_broker_ends(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(records=9) as cluster:
        with trio.move_on_after(10):
            async with member_of(cluster) as consumer:
                await values(consumer, 3)
                cluster.freeze(0)
                await trio.sleep_forever()
        assert trio.current_time() <= 11


async def test_clean_exit_of_frozen_broker_has_a_limit(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster:
        async with member_of(cluster, close_timeout_ms=5_000) as consumer:
            await values(consumer, 3)
            cluster.freeze(0)
            before = trio.current_time()
        assert trio.current_time() <= before + 5.1


async def test_closed_consumer_refuses_calls(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster, member_of(cluster) as consumer:
        await values(consumer, 3)
        await consumer.aclose()
        await consumer.aclose(timeout=0)
        assert committed(cluster) == 3
        assert len(cluster.requests("LeaveGroup")) == 1
        for use in (
            consumer.receive,
            consumer.receive_batch,
            consumer.commit,
            consumer.unsubscribe,
            consumer.list_topics,
        ):
            with pytest.raises(trio.ClosedResourceError):
                await use()
        for use_nowait in (consumer.receive_nowait, consumer.receive_batch_nowait):
            with pytest.raises(trio.ClosedResourceError):
                use_nowait()
        for use_now in (lambda: consumer.subscribe(["t"]), lambda: consumer.assign([T0])):
            with pytest.raises(trio.ClosedResourceError):
                use_now()


async def test_closing_wakes_a_receive(autojump_clock: Clock) -> None:
    async with (
        cluster_of() as cluster,
        member_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await consumer.receive()
            nursery.cancel_scope.cancel()

        nursery.start_soon(receive)
        await trio.sleep(1)
        await consumer.aclose()
        await trio.sleep(10)
        raise AssertionError("receive did not end")


async def test_background_failure_is_raised_once(
    autojump_clock: Clock,
) -> None:
    class Broken:
        name = "broken"
        cooperative = False

        def assign(self, members: Any, partitions: Any) -> Any:
            raise ZeroDivisionError("a bug of the assignor's")

    async with cluster_of(records=9) as cluster:
        with pytest.raises(ClientFailedError, match="a bug of the assignor's") as caught:  # noqa: PT012
            async with member_of(cluster) as consumer:
                await values(consumer, 2)
                consumer._parts.group.membership._assignors["range"] = Broken()
                consumer._parts.group.membership.rejoin("a test")
                while True:
                    await consumer.receive_batch(timeout=1)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_finished_records_commit_before_revoke(autojump_clock: Clock, strategy: str) -> None:
    settings = {"partition_assignment_strategy": [strategy], "auto_commit_interval_ms": 1_000_000}
    async with (
        cluster_of(2, records=30) as cluster,
        member_of(cluster, max_poll_records=10, **settings) as first,
    ):
        first.subscribe(["t"], RecordingListener([]))
        handed: dict[int, int] = {0: 0, 1: 0}
        for _ in range(2):
            batch = await first.receive_batch()
            handed[batch.partition] = batch.next_offset
        async with member_of(cluster, **settings) as second, trio.open_nursery() as nursery:

            async def go_on() -> None:
                while True:
                    await first.receive_batch()

            first.pause(first.assignment())
            nursery.start_soon(go_on)
            batch = await second.receive_batch()
            assert batch.offsets[0] == handed[batch.partition]
            nursery.cancel_scope.cancel()


async def test_revocation_waits_over_short_receives(
    autojump_clock: Clock,
) -> None:
    settings = {"partition_assignment_strategy": ["range"], "auto_commit_interval_ms": 1_000_000}
    async with (
        cluster_of(records=5) as cluster,
        consumer_of(cluster, group_id="g", **settings) as consumer,
    ):
        consumer.subscribe(["t"])
        await values(consumer, 3)
        rule = cluster.fail("OffsetCommit", 14, None)
        cluster.group("g")._rebalance()
        await trio.sleep(4)
        for _ in range(5):
            await consumer.receive_batch(timeout=0.2)
        assert consumer.assignment() == {T0}
        rule.remove()
        with trio.fail_after(30):
            while not await consumer.receive_batch(timeout=0.2):
                pass
        assert committed(cluster) == 3


async def test_explicit_commits_are_written(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, enable_auto_commit=False) as consumer,
    ):
        await values(consumer, 4)
        await consumer.commit()
        assert committed(cluster) == 4
        assert cluster.committed("g", T0).leader_epoch == 0
        await consumer.commit({T0: OffsetAndMetadata(2, 0, "note")})
        assert await consumer.committed([T0, ("t", 9)]) == {
            T0: OffsetAndMetadata(2, 0, "note"),
            ("t", 9): None,
        }
        await consumer.commit({T0: 3})
        assert committed(cluster) == 3
        await consumer.commit({})
        assert await consumer.committed([]) == {}
        for wrong in (-1, "3", True, None):
            with pytest.raises(ValueError, match="whole number"):
                await consumer.commit({T0: wrong})
        with pytest.raises(ValueError, match="timeout"):
            await consumer.commit(timeout=-1)
    assert committed(cluster) == 3


async def test_auto_commit_does_not_undo_a_commit(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, auto_commit_interval_ms=1_000) as consumer,
    ):
        await values(consumer, 4)
        await consumer.commit()
        await trio.sleep(5)
        assert committed(cluster) == 4


async def test_no_commit_without_auto_commit(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster:
        async with member_of(cluster, enable_auto_commit=False) as consumer:
            await values(consumer, 4)
            await trio.sleep(30)
            await consumer.unsubscribe()
        assert not cluster.requests("OffsetCommit")


async def test_unassigned_partition_is_committed(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=5) as cluster, consumer_of(cluster, group_id="g") as consumer:
        consumer.assign([T0])
        await values(consumer, 3)
        assert await consumer.position(T0) == 3
        consumer.assign([T1])
        await values(consumer, 2)
        await trio.sleep(10)
        assert committed(cluster) == 2


async def test_handed_over_partition_is_not_set_back(autojump_clock: Clock) -> None:
    """Another consumer goes on with a partition that `assign` took away, and commits."""
    async with (
        cluster_of(2, records=9) as cluster,
        consumer_of(cluster, group_id="g") as one,
        consumer_of(cluster, group_id="g") as other,
    ):
        one.assign([T0])
        await values(one, 4)
        assert await one.position(T0) == 4
        one.assign([T1])
        await trio.sleep(0.1)
        other.assign([T0])
        assert await values(other, 2) == [b"3", b"4"]
        await other.commit()
        await trio.sleep(10)
        assert committed(cluster) == 5


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_position_left_by_assign_is_subscribed_to(
    protocol: str, autojump_clock: Clock
) -> None:
    """The subscription follows in the same step, before the commit has begun."""
    settings = {"group_id": "g", "group_protocol": protocol}
    async with cluster_of(records=9) as cluster, consumer_of(cluster, **settings) as consumer:
        consumer.assign([T0])
        await values(consumer, 4)
        assert await consumer.position(T0) == 4
        consumer.assign([])
        consumer.subscribe(["t"])
        assert await values(consumer, 1) == [b"3"]


async def test_position_left_by_assign_sets_nothing_back(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit without a member is tried once: later the group's offsets may be newer."""
    async with (
        cluster_of(1, records=9) as cluster,
        consumer_of(cluster, group_id="g") as consumer,
    ):
        consumer.assign([T0])
        await values(consumer, 4)
        assert await consumer.position(T0) == 4
        async with member_of(cluster, enable_auto_commit=False) as other:
            await values(other, 8)
            cluster.fail("JoinGroup", ErrorCode.GROUP_AUTHORIZATION_FAILED, None)
            consumer.assign([])
            consumer.subscribe(["t"])
            await trio.sleep(12)
            await other.commit()
        await trio.sleep(12)
        assert committed(cluster) == 8
        said = "partitions that assign() took away is not committed"
        assert sum(said in each for each in caplog.messages) == 1


async def test_failed_commit_when_fenced_is_reported(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """By the end of its commit the member is out of the group, as one that never joined."""
    async with (
        cluster_of(1, records=9) as cluster,
        member_of(cluster, session_timeout_ms=6_000) as consumer,
    ):
        await values(consumer, 4)
        cluster.delay("OffsetCommit", 20, 1)  # and so the heartbeats behind it
        cluster.fail("OffsetCommit", ErrorCode.GROUP_AUTHORIZATION_FAILED, 1)
        cluster.delay("JoinGroup", 100)
        await until(lambda: "group 'g' for session_timeout_ms" in caplog.text, 0.1)
        await trio.sleep(20)
        assert "auto commit failed" in caplog.text
        assert "assign() took away" not in caplog.text


async def test_topic_left_by_assign_is_let_go(autojump_clock: Clock) -> None:
    """After its commit the topic may be deleted: nothing asks for it any more."""
    async with (
        cluster_of(1, records=9) as cluster,
        consumer_of(cluster, group_id="g") as consumer,
    ):
        cluster.create_topic("other")
        consumer.assign([T0])
        await values(consumer, 4)
        assert await consumer.position(T0) == 4
        consumer.assign([TopicPartition("other", 0)])
        await until(lambda: committed(cluster) == 3)
        cluster.delete_topic("t")
        before = len(cluster.requests("Metadata"))
        await trio.sleep(900)
        assert len(cluster.requests("Metadata")) - before < 10


async def test_stand_alone_commit_is_not_a_members(autojump_clock: Clock) -> None:
    """The consumer subscribed and joined while its commit from outside the group was repeated."""
    settings = {"group_id": "g", "enable_auto_commit": False}
    async with (
        cluster_of(records=9) as cluster,
        consumer_of(cluster, **settings) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def commit() -> None:
            with pytest.raises(CommitFailedError):
                await consumer.commit({T0: 3})

        cluster.fail("OffsetCommit", 14, 10)
        nursery.start_soon(commit)
        await trio.sleep(0.1)
        consumer.subscribe(["t"])
        await values(consumer, 5)
        await trio.sleep(20)
        assert committed(cluster) is None


@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_returning_partition_skips_nothing(reset: str, autojump_clock: Clock) -> None:
    """It is assigned again before the next auto commit, so the group has no offset of it."""
    settings = {"group_id": "g", "auto_offset_reset": reset, "auto_commit_interval_ms": 1_000}
    async with (
        cluster_of(2, records=9) as cluster,
        consumer_of(cluster, **settings) as consumer,
    ):
        consumer.assign([T0])
        consumer.seek(T0, 3)
        assert await values(consumer, 3) == [b"3", b"4", b"5"]
        consumer.assign([T1])
        consumer.assign([T1, T0])
        assert await consumer.position(T0) == 5  # the handling of the last one was cut short
        await trio.sleep(2)
        assert committed(cluster) == 5
        consumer.seek(T0, 7)
        consumer.assign([])
        consumer.assign([T0])
        consumer.seek(T0, 1)  # the newest wish counts
        assert await values(consumer, 1) == [b"1"]


@pytest.mark.parametrize("by", ["auto commit", "the user", "the user, ahead"])
async def test_returning_partition_is_ahead_of_a_commit(by: str, autojump_clock: Clock) -> None:
    """`assign` took it away while an older offset of it was being committed."""
    settings = {"group_id": "g", "auto_commit_interval_ms": 1_000}
    async with (
        cluster_of(2, records=9) as cluster,
        consumer_of(cluster, **settings) as consumer,
        trio.open_nursery() as nursery,
    ):
        consumer.assign([T0])
        await values(consumer, 3)
        if by != "auto commit":
            await trio.sleep(1.1)  # the next auto commit comes after all of this
            nursery.start_soon(consumer.commit, {T0: 8} if by == "the user, ahead" else {T0: 3})
        cluster.delay("OffsetCommit", 0.5, 1)
        await trio.sleep(0.2 if by != "auto commit" else 1.2)
        await values(consumer, 3)
        consumer.assign([T1])
        await trio.sleep(0.5)
        first = 8 if by == "the user, ahead" else 5
        assert committed(cluster) == first
        consumer.assign([T0, T1])
        assert await consumer.position(T0) == first
        consumer.assign([T1])
        await trio.sleep(2)
        assert committed(cluster) == first


async def test_returning_partition_of_a_new_topic(autojump_clock: Clock) -> None:
    """The topic was recreated, so the position in the old one means nothing."""
    settings = {"group_id": "g", "auto_commit_interval_ms": 60_000}
    async with (
        cluster_of(2, records=9) as cluster,
        consumer_of(cluster, **settings) as consumer,
    ):
        cluster.fail("OffsetCommit", 14, None)
        consumer.assign([T0])
        await values(consumer, 5)
        consumer.assign([T1])
        await values(consumer, 1)
        cluster.delete_topic("t")
        cluster.create_topic("t", 2)
        cluster.append("t", 0, [b"new %d" % number for number in range(9)])
        await trio.sleep(5)
        consumer.assign([T0])
        with trio.fail_after(10):
            assert await values(consumer, 1) == [b"new 0"]


@pytest.mark.parametrize("seen", [True, False])
async def test_left_position_is_not_of_a_new_topic(seen: bool, autojump_clock: Clock) -> None:
    """`assign` took the partition away, and its topic was recreated before the auto commit."""
    settings = {"group_id": "g", "auto_commit_interval_ms": 10_000}
    async with (
        cluster_of(2, records=9) as cluster,
        consumer_of(cluster, **settings) as consumer,
    ):
        refused = cluster.fail("OffsetCommit", 14, None)
        consumer.assign([T0])
        await values(consumer, 5)
        consumer.assign([T1])
        await values(consumer, 1)
        if seen:
            await trio.sleep(5)
        else:
            consumer.assign([])
            await trio.sleep(9.9)
        cluster.delete_topic("t")
        cluster.create_topic("t", 2)
        refused.remove()
        await trio.sleep(30)
        assert committed(cluster) is None
        assert consumer.health().ok


@pytest.mark.parametrize("code", [14, 15, 16, 7])
async def test_commit_is_retried(autojump_clock: Clock, code: int) -> None:
    async with (
        cluster_of(nodes=2, records=9) as cluster,
        member_of(cluster, enable_auto_commit=False) as consumer,
    ):
        await values(consumer, 4)
        cluster.fail("OffsetCommit", code, 3)
        await consumer.commit()
        assert committed(cluster) == 4
        cluster.fail("OffsetCommit", code, None)
        with pytest.raises(KafkaTimeoutError) as caught:
            await consumer.commit(timeout=3)
        assert isinstance(caught.value.__cause__, BrokerResponseError)


@pytest.mark.parametrize("code", [22, 25])
async def test_removed_member_cannot_commit(autojump_clock: Clock, code: int) -> None:
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, enable_auto_commit=False) as consumer,
    ):
        await values(consumer, 4)
        cluster.fail("OffsetCommit", code)
        with pytest.raises(CommitFailedError, match="has moved on"):
            await consumer.commit()


async def test_commit_waits_for_a_rebalance(
    autojump_clock: Clock,
) -> None:
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, enable_auto_commit=False) as consumer,
    ):
        await values(consumer, 4)
        cluster.fail("OffsetCommit", 27, 3)
        await consumer.commit()
        assert committed(cluster) == 4


async def test_commit_does_not_outlive_the_ownership(autojump_clock: Clock) -> None:
    """The partition is lost while its commit is retried.

    The commit must not overwrite the new owner's.
    """
    async with (
        cluster_of(records=9) as cluster,
        member_of(cluster, enable_auto_commit=False) as consumer,
    ):
        await values(consumer, 4)
        cluster.fail("OffsetCommit", 14, None)
        cluster.fail("Heartbeat", 25)

        errors: list[Exception] = []

        async def commit() -> None:
            try:
                await consumer.commit()
            except (CommitFailedError, RebalanceInProgressError) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.sleep(5)
            assert await values(consumer, 1) == [b"0"]
        assert len(errors) == 1
        assert committed(cluster) is None


async def test_auto_commit_stops_outside_the_group(autojump_clock: Clock) -> None:
    async with cluster_of(records=9) as cluster:
        with trio.move_on_after(20):
            async with member_of(
                cluster, session_timeout_ms=6_000, max_poll_interval_ms=6_000
            ) as consumer:
                await values(consumer, 4)
                cluster.fail("OffsetCommit", 14, 1)
                await trio.sleep(6.5)
                before = len(cluster.requests("OffsetCommit"))
                await trio.sleep_forever()
        assert len(cluster.requests("OffsetCommit")) == before


async def test_position_follows_a_reassigned_partition(autojump_clock: Clock) -> None:
    async with (
        cluster_of(records=9) as cluster,
        consumer_of(cluster) as consumer,
        trio.open_nursery() as nursery,
    ):
        cluster.fail("ListOffsets", 5, 10)
        consumer.assign([T0])
        found: list[int] = []

        async def ask() -> None:
            found.append(await consumer.position(T0))

        nursery.start_soon(ask)
        await trio.sleep(0.5)
        consumer.assign([])
        consumer.assign([T0])
        with trio.fail_after(30):
            assert await consumer.position(T0) == 0
            await trio.sleep(5)
        assert found == [0]
