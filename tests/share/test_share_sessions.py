"""Share sessions: errors that end them, what travels when, and what is never sent."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest
import trio
from sharing import GROUP, cluster_of, queue_of, shared, states, until
from trio.testing import MockClock as Clock

from trikafka._managers.share import fetch
from trikafka.errors import AcknowledgementError, AuthorizationError, LockLostError
from trikafka.testing import ScriptedCluster
from trikafka.testing.script import Seen
from trikafka.testing.share import ShareGroup


def conversation(cluster: ScriptedCluster, node: int = 0) -> list[Seen]:
    """Return the requests of a share session, in order."""
    return [
        seen
        for seen in cluster.log
        if seen.api_name in ("ShareFetch", "ShareAcknowledge") and seen.node_id == node
    ]


def epochs(cluster: ScriptedCluster, node: int = 0) -> list[int]:
    return [seen.request.share_session_epoch for seen in conversation(cluster, node)]


def acknowledges(request: Any) -> bool:
    return any(part.acknowledgement_batches for item in request.topics for part in item.partitions)


@pytest.mark.parametrize("code", [122, 123, 133])
async def test_a_lost_session_begins_again(autojump_clock: Clock, code: int) -> None:
    async with cluster_of(2, records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        await trio.sleep(2)
        cluster.fail("ShareFetch", code)
        with pytest.raises(LockLostError, match="the session with its broker ended"):
            async with delivery:
                await trio.sleep(5)
        await until(lambda: epochs(cluster).count(0) == 2)
        found = conversation(cluster)
        opened = [seen for seen in found if seen.request.share_session_epoch == 0]
        # All partitions, and nothing of the old session.
        assert len(opened[1].request.topics[0].partitions) == 2
        assert not acknowledges(opened[1].request)


async def test_acks_of_a_lost_session_are_not_repeated(autojump_clock: Clock) -> None:
    async with cluster_of(records=3) as cluster, queue_of(cluster) as queue:
        held = [await queue.receive() for _ in range(3)]
        await trio.sleep(1)
        cluster.fail("ShareAcknowledge", 122)
        for each in held:
            each.accept()
        with pytest.raises(AcknowledgementError, match="SHARE_SESSION_NOT_FOUND"):
            await queue.flush()
        await trio.sleep(40)
        assert sum(acknowledges(seen.request) for seen in conversation(cluster)) == 1
        again = await queue.receive()
        assert again.delivery_count == 2


async def test_no_session_opens_with_acks(autojump_clock: Clock) -> None:
    """Connections break all the time, and acknowledgements are always pending."""
    async with cluster_of(2, records=200, nodes=2) as cluster:
        done = 0
        cluster.shares.times.delivery_limit = 1000
        async with queue_of(cluster, max_in_flight=20, reconnect_backoff_ms=1) as queue:
            while done < 300:
                try:
                    async with await queue.receive():
                        done += 1
                        await trio.sleep(0.01)
                except LockLostError:
                    pass
                if done % 40 == 0:
                    cluster.disconnect(done // 40 % 2)
        for node in (0, 1):
            opened = [s for s in conversation(cluster, node) if s.request.share_session_epoch == 0]
            assert len(opened) > 1
            assert not any(acknowledges(seen.request) for seen in opened)


async def test_epochs_follow_each_other(autojump_clock: Clock) -> None:
    async with cluster_of(records=10) as cluster:
        async with queue_of(cluster, max_in_flight=10) as queue:
            for _ in range(10):
                async with await queue.receive():
                    await trio.sleep(0.3)
        found = epochs(cluster)
        assert found == [*range(len(found) - 1), -1]
        assert {seen.api_name for seen in conversation(cluster)} == {
            "ShareFetch",
            "ShareAcknowledge",
        }


async def test_one_request_of_a_session_is_in_flight(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=200) as cluster:
        cluster.delay("ShareFetch", 0.01)
        cluster.delay("ShareAcknowledge", 0.02)
        cluster.shares.times.lock = 15
        async with queue_of(cluster, max_in_flight=50, ack_linger_ms=0) as queue:
            for number in range(400):
                delivery = await queue.receive()
                async with delivery:
                    await trio.sleep(0.1 if number % 9 == 0 else 0)
                if number % 31 == 0:
                    await delivery.acknowledged()
        found = conversation(cluster)
        assert len(found) > 20
        for before, after in pairwise(found):
            assert before.answered_at is not None
            assert before.answered_at <= after.time


async def test_kept_acks_wait_for_no_slow_fetch(autojump_clock: Clock) -> None:
    """A fetch that keeps acknowledgements, and finds no records, responds before they are late."""
    for milliseconds in range(0, 60, 3):
        async with cluster_of(1) as cluster, queue_of(cluster, max_in_flight=200) as queue:
            await trio.sleep(2.9)
            cluster.append("t", 0, [b"x"] * 60)
            held = [await queue.receive()]
            for _ in range(59):
                held.append(queue.receive_nowait())
            await trio.sleep(1 + milliseconds / 1000)
            before, begun = len(conversation(cluster)), trio.current_time()
            for delivery in held[:59]:
                async with delivery:
                    pass
                await trio.sleep(0.0008)
            await trio.sleep(0.3)
            sent = [seen for seen in conversation(cluster)[before:] if acknowledges(seen.request)]
            assert sent[0].time - begun < 0.0601


async def test_an_unassigned_partitions_ack_does_not_join(autojump_clock: Clock) -> None:
    async with cluster_of(2, records=1) as cluster, queue_of(cluster) as queue:
        held = [await queue.receive() for _ in range(2)]
        async with queue_of(cluster) as other:
            await until(lambda: len(queue.assignment) == 1 and len(other.assignment) == 1)
            await trio.sleep(2)
            gone = next(
                each
                for each in held
                if each.record.partition not in {tp.partition for tp in queue.assignment}
            )
            before = len(conversation(cluster))
            gone.release()
            await gone.acknowledged()
            taken = await other.receive()
            assert (taken.record.partition, taken.delivery_count) == (gone.record.partition, 2)
            taken.accept()
            await other.flush()
            cluster.append("t", gone.record.partition, [b"more"])
            assert (await other.receive()).record.value == b"more"
            mine = [
                seen
                for seen in conversation(cluster)[before:]
                if seen.request.member_id == queue.member_id
            ]
            for seen in mine:
                if seen.api_name == "ShareFetch":
                    named = [
                        part.partition_index
                        for item in seen.request.topics
                        for part in item.partitions
                    ]
                    assert gone.record.partition not in named
            session = cluster.shares.sessions[0, GROUP, queue.member_id]
            assert [index for _, index in session.partitions] == [
                tp.partition for tp in queue.assignment
            ]


async def test_a_partition_that_leaves_is_forgotten(autojump_clock: Clock) -> None:
    async with cluster_of(2) as cluster, queue_of(cluster) as queue:
        await until(lambda: len(queue.assignment) == 2)
        await trio.sleep(1)
        async with queue_of(cluster):
            await until(lambda: len(queue.assignment) == 1)
            await trio.sleep(1)
        forgotten = [
            (item.topic_id, list(item.partitions))
            for seen in cluster.requests("ShareFetch")
            for item in seen.request.forgotten_topics_data
        ]
        assert len(forgotten) == 1


async def test_a_partition_unknown_to_metadata_is_kept(autojump_clock: Clock) -> None:
    """The coordinator names a new partition once; the metadata come later."""
    async with cluster_of(1) as cluster:
        late = trio.Event()

        async def old_metadata(request: Any, default: Any) -> Any:
            response = await default()
            if not late.is_set():
                for topic in response.topics:
                    topic.partitions[:] = topic.partitions[:1]
            return response

        cluster.on("Metadata", old_metadata)
        async with queue_of(cluster) as queue:
            await until(lambda: len(queue.assignment) == 1)
            cluster.add_partitions("t", 2)
            cluster.append("t", 1, [b"new"])
            await until(lambda: len(queue.assignment) == 2, step=0.1)
            await trio.sleep(3)
            late.set()
            with trio.fail_after(3):
                assert (await queue.receive()).record.value == b"new"


async def test_a_retriable_ack_is_sent_again(autojump_clock: Clock) -> None:
    async with cluster_of(records=2) as cluster, queue_of(cluster) as queue:
        held = [await queue.receive() for _ in range(2)]
        cluster.fail("ShareAcknowledge", 15, topic="t", partition=0)
        for each in held:
            each.accept()
        await queue.flush()
        assert states(cluster) == ["acknowledged"] * 2
        assert queue.statistics().failed == 0


async def test_a_not_leader_ack_fails(autojump_clock: Clock) -> None:
    async with cluster_of(records=1, nodes=2) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        cluster.fail("ShareAcknowledge", 6, topic="t")
        delivery.accept()
        with pytest.raises(AcknowledgementError, match="NOT_LEADER"):
            await delivery.acknowledged()


async def test_other_errors_move_the_epoch_on(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster, queue_of(cluster) as queue:
        delivery = await queue.receive()
        await trio.sleep(1)

        async def refuse(request: Any, default: Any) -> Any:
            from trikafka.testing import respond

            await default()
            return respond(request, error_code=15, responses=[])

        cluster.on("ShareFetch", refuse, 1)
        await trio.sleep(2)
        async with delivery:
            pass
        await delivery.acknowledged()
        assert 0 not in epochs(cluster)[1:]


async def test_a_refused_group_is_raised(autojump_clock: Clock) -> None:
    async with cluster_of(records=1) as cluster:
        cluster.fail("ShareFetch", 30, 3)
        async with queue_of(cluster) as queue:
            with pytest.raises(AuthorizationError, match="GROUP_AUTHORIZATION_FAILED"):
                await queue.receive()
            assert (await queue.receive()).record.value == b"0"


async def test_a_moved_leader_is_followed(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2) as cluster, queue_of(cluster) as queue:
        await until(lambda: bool(cluster.requests("ShareFetch", node=0)))
        cluster.move_leader("t", 0, 1)
        cluster.append("t", 0, [b"0"])
        with trio.fail_after(2):
            async with await queue.receive():
                pass
        await queue.flush()
        assert shared(cluster)[0].count == 1


async def test_an_unused_session_is_closed(autojump_clock: Clock) -> None:
    async with cluster_of(nodes=2) as cluster, queue_of(cluster) as queue:
        await until(lambda: bool(cluster.shares.sessions))
        cluster.move_leader("t", 0, 1)
        await until(lambda: (0, GROUP, queue.member_id) not in cluster.shares.sessions, 0.1)
        assert epochs(cluster, 0)[-1] == -1
        await until(lambda: (1, GROUP, queue.member_id) in cluster.shares.sessions)


async def test_records_of_a_partition_that_goes_are_kept(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    """The broker's last partition is assigned elsewhere while a fetch of it is in flight."""
    assign = ShareGroup.assign
    gone: set[int] = set()

    def assign_others(self: ShareGroup, parts_of: Any) -> Any:
        return {
            member: frozenset(part for part in parts if part[1] not in gone)
            for member, parts in assign(self, parts_of).items()
        }

    monkeypatch.setattr(ShareGroup, "assign", assign_others)
    async with (
        cluster_of(2, nodes=2) as cluster,
        queue_of(cluster, fetch_max_wait_ms=20_000) as queue,
    ):
        await until(lambda: len(queue.assignment) == 2)
        await trio.sleep(3)
        gone.add(1)
        await until(lambda: len(queue.assignment) == 1)
        cluster.append("t", 1, [b"x"] * 10)
        async with await queue.receive():
            await trio.sleep(0.3)
        assert queue.statistics().lost == 0
        for _ in range(9):
            (await queue.receive()).accept()
        await queue.flush()
        assert states(cluster, 1) == ["acknowledged"] * 10


async def test_quick_records_do_not_wait_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = threading.Event()
    pieces_of = fetch.pieces_of

    def decode(part: Any, *args: Any, **settings: Any) -> Any:
        if part.key[1] == 1:
            decoding.wait(60)
        return pieces_of(part, *args, **settings)

    monkeypatch.setattr(fetch, "is_quick", lambda part: part.key[1] == 0)
    monkeypatch.setattr(fetch, "pieces_of", decode)
    async with cluster_of(2, records=1) as cluster, queue_of(cluster) as queue:
        try:
            with trio.fail_after(30):
                assert (await queue.receive()).record.partition == 0
        finally:
            decoding.set()
