"""The consumer's plain data.

States of the member, partitions, positions, the fetch buffer, and messages of members.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikafka import TopicPartition
from trikafka._managers.group import group_messages
from trikafka._state.consumer.assignment import (
    AssignedPartition,
    Assignment,
    ChangeCallbacks,
    PartitionState,
)
from trikafka._state.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from trikafka._state.consumer.partition_state import SUCCESSORS as PARTITION_AFTER
from trikafka._state.consumer.subscription import Mode, Subscription
from trikafka._state.group.member import _AFTER, Member, MemberState
from trikafka._wire.columns import RecordBatch
from trikafka._wire.records import decode_records
from trikafka.config import ConsumerConfig
from trikafka.errors import IllegalStateError, ProtocolError
from trikafka.testing import encode_batch
from trikafka.types import OffsetSpec

A, B, C = (TopicPartition("t", number) for number in range(3))

# --- the member -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), list(product(MemberState, MemberState)))
def test_member_takes_only_steps_of_its_table(before: MemberState, after: MemberState) -> None:
    member = Member(None)
    member.state = before
    if after is before or after in _AFTER[before]:
        member.to(after)
        assert member.state is after
    else:
        with pytest.raises(AssertionError, match=f"from {before.value} to {after.value}"):
            member.to(after)


def test_every_member_state_can_leave_and_rejoin() -> None:
    assert all(
        MemberState.LEAVING in _AFTER[state]
        for state in MemberState
        if state is not MemberState.LEAVING
    )
    for start in MemberState:
        reached, todo = {start}, [start]
        while todo:
            todo += (new := _AFTER[todo.pop()] - reached)
            reached |= new
        assert MemberState.UNJOINED in reached


def test_identity_follows_joining_and_forgetting() -> None:
    member = Member("instance")
    assert not member.identity.joined
    member.know_as("id")
    assert not member.identity.joined
    member.know_as("id", 3)
    assert member.identity.joined
    member.forget(keep_id=True)
    assert (member.identity.member_id, member.identity.joined, member.identity.instance_id) == (
        "id",
        False,
        "instance",
    )
    member.forget()
    assert (member.identity.member_id, member.identity.instance_id) == ("", "instance")


# --- the subscription -----------------------------------------------------------------------------


def test_ways_of_subscribing_do_not_mix() -> None:
    for first, second in (
        ("topics", "manual"),
        ("manual", "topics"),
        ("topics", "pattern"),
        ("pattern", "manual"),
    ):
        ways = {
            "topics": lambda s: s.subscribe(["t"]),
            "pattern": lambda s: s.subscribe_pattern(re.compile("t")),
            "manual": lambda s: s.assign([A]),
        }
        subscription = Subscription(Assignment())
        ways[first](subscription)
        ways[first](subscription)
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            ways[second](subscription)
        subscription.clear()
        ways[second](subscription)


def test_pattern_matches_whole_names() -> None:
    subscription = Subscription(Assignment())
    subscription.subscribe_pattern(re.compile("a|ab"))
    assert subscription.match(["a", "ab", "abc", "xa"])
    assert subscription.topics == {"a", "ab"}
    assert not subscription.match(["ab", "a", "x"])
    assert subscription.grouped
    assert subscription.mode is Mode.PATTERN


def test_unsubscribed_topic_is_not_delivered() -> None:
    assignment = Assignment()
    subscription = Subscription(assignment)
    subscription.subscribe(["t", "u"])
    new = assignment.add([A, TopicPartition("u", 0)])
    assignment.callback_done(new)
    for partition in assignment:
        partition.located(0)
    subscription.subscribe(["u"])
    assert [partition.tp for partition in assignment if partition.deliverable] == [("u", 0)]
    assert assignment.get(A).state is PartitionState.REVOKING


# --- the assignment -------------------------------------------------------------------------------


class Woken:
    """A record of what was woken."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.wake = ChangeCallbacks(
            deliver=lambda partition: self.names.append("deliver"),
            fetch=lambda: self.names.append("fetch"),
            locate=lambda: self.names.append("locate"),
            commit=lambda: self.names.append("commit"),
            assigned=lambda: self.names.append("assigned"),
            overtaken=lambda partition: self.names.append("overtaken"),
        )

    def take(self) -> set[str]:
        names = self.names
        self.names = []
        return set(names)


def assigned(*tps: TopicPartition, wake: ChangeCallbacks | None = None) -> list[AssignedPartition]:
    """Return partitions assigned by hand, with unknown positions."""
    table = Assignment(wake)
    table.assign(tps)
    return list(table)


def records(count: int = 3, first: int = 0) -> RecordBatch:
    data = encode_batch([b"%d" % number for number in range(count)], timestamp=0)
    data = first.to_bytes(8) + data[8:]  # the base offset is outside the checksum
    return decode_records(
        data,
        topic="t",
        partition=0,
        fetch_offset=first,
        aborted=None,
        check_crcs=True,
        max_bytes=10_000,
    )


def test_lost_partition_is_lost_at_once() -> None:
    """A lost partition stays lost until it is removed.

    Had it counted as owned until the listeners returned, a sink could write what another member
    writes.
    """
    assignment = Assignment()
    assignment.add([A, B])
    assignment.begin_revocation([A])
    partitions = [assignment.get(tp) for tp in (A, B)]
    assert assignment.begin_revocation(lost=True) == [A, B]
    assignment.begin_revocation()  # the consumer leaves
    assert [(partition.state, partition.owned) for partition in partitions] == [
        (PartitionState.LOST, False)
    ] * 2
    assignment.lost([A, B])
    assert [partition.state for partition in partitions] == [PartitionState.GONE] * 2


def test_assign_keeps_only_remaining_positions() -> None:
    table = Assignment()
    table.assign([A, B, A])
    table.get(A).seek(7)
    gone = table.get(B)
    ticket = gone.ticket
    table.assign([C, A])
    assert list(table.partitions) == [C, A]
    assert table.get(A).position == 7
    assert not gone.accepts(ticket)
    assert (gone.state, gone.deliverable, gone.owned) == (PartitionState.GONE, False, False)
    with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
        table.get(B)


def test_life_of_a_group_partition() -> None:
    woken = Woken()
    table = Assignment(woken.wake)
    assert table.add([A]) == [A]
    partition = table.get(A)
    assert (partition.state, partition.awaits_callback, list(table.unlocated)) == (
        PartitionState.AWAITING_CALLBACK,
        True,
        [],
    )
    assert "assigned" in woken.take()
    table.callback_done([A])
    assert (partition.state, list(table.unlocated)) == (
        PartitionState.AWAITING_POSITION,
        [partition],
    )
    assert woken.take() == {"locate", "deliver"}
    partition.located(5)
    assert (partition.state, partition.fetchable, partition.deliverable) == (
        PartitionState.FETCHING,
        True,
        True,
    )
    assert (list(table.fetchable), list(table.unlocated)) == ([partition], [])
    assert woken.take() == {"fetch", "deliver", "overtaken"}
    partition.pause()
    assert (partition.fetchable, partition.deliverable) == (False, False)
    partition.resume()
    assert table.begin_revocation() == [A]
    assert (partition.state, partition.fetchable, partition.deliverable) == (
        PartitionState.REVOKING,
        False,
        False,
    )
    table.revoked([A])
    assert (partition.state, len(table)) == (PartitionState.GONE, 0)


@pytest.mark.parametrize(("before", "after"), list(product(PartitionState, PartitionState)))
def test_partition_takes_only_steps_of_its_table(
    before: PartitionState, after: PartitionState
) -> None:
    partition = AssignedPartition(Assignment(), A, before)
    if after is before or after in PARTITION_AFTER[before]:
        partition.enter(after)
        assert partition.state is after
    else:
        with pytest.raises(AssertionError, match=f"from {before.value} to {after.value}"):
            partition.enter(after)


def test_seek_in_the_listener_stands() -> None:
    table = Assignment()
    table.add([A])
    table.get(A).seek(3)
    assert table.get(A).state is PartitionState.AWAITING_CALLBACK
    assert not table.get(A).deliverable
    table.callback_done([A])
    assert (table.get(A).state, table.get(A).position, list(table.unlocated)) == (
        PartitionState.FETCHING,
        3,
        [],
    )


def test_requested_position_precedes_callback_end() -> None:
    """A position that is asked for is located before the rebalance callback has returned."""
    table = Assignment()
    table.add([A])
    table.get(A).request_position()
    assert list(table.unlocated) == [table.get(A)]
    table.get(A).located(9)
    assert (table.get(A).state, list(table.unlocated)) == (PartitionState.AWAITING_CALLBACK, [])


def test_seek_forgets_earlier_requests() -> None:
    (partition,) = assigned(A)
    partition.ask_reset(OffsetSpec.LATEST)
    partition.failed(ValueError())
    ticket = partition.ticket
    assert partition.position is None
    assert not partition.fetchable
    partition.seek(5)
    known = (
        partition.position,
        partition.processed,
        partition.fetch_offset,
        partition.reset,
        partition.error,
    )
    assert known == (5, 5, 5, None, None)
    assert not partition.accepts(ticket)
    assert partition.fetchable


def test_limit_ends_delivering_and_fetching() -> None:
    (partition,) = assigned(A)
    partition.seek(5)
    partition.fetched(10)
    for limit, deliverable, fetchable in (
        (None, True, True),
        (11, True, True),
        (10, True, False),
        (5, False, False),
        (0, False, False),
    ):
        partition.limit_to(limit)
        assert (partition.deliverable, partition.fetchable) == (deliverable, fetchable)


def test_error_is_raised_once_then_retried() -> None:
    woken = Woken()
    table = Assignment(woken.wake)
    table.assign([A, B])
    for partition in table:
        partition.seek(0)
    woken.take()
    table.get(B).failed(error := ValueError())
    assert woken.take() == {"deliver"}
    assert list(table.fetchable) == [table.get(A)]
    assert (table.pop_error(), table.pop_error()) == (error, None)
    assert woken.take() == {"fetch"}
    assert set(table.fetchable) == set(table)


# --- how far the user is --------------------------------------------------------------------------


def test_processed_is_kept_for_each_partition() -> None:
    a, b = assigned(A, B)
    for partition in (a, b):
        partition.seek(0)
        partition.delivered(records(3))
    assert (a.position, a.processed, b.position, b.processed) == (3, 0, 3, 0)
    a.mark_all_processed()
    assert (a.processed, b.processed) == (3, 0)


def test_cursor_delivers_record_by_record() -> None:
    (a,) = assigned(A)
    a.seek(0)
    cursor = a.begin_records(records(3))
    assert [cursor.take().offset, a.position, a.processed] == [0, 1, 0]
    assert [cursor.take().offset, a.position, a.processed] == [1, 2, 1]
    assert cursor.live
    assert [cursor.take().offset, a.position, a.processed] == [2, 3, 2]
    assert not cursor.live
    a.mark_all_processed()
    assert (a.position, a.processed) == (3, 3)


@pytest.mark.parametrize("what", ["seek", "ask_reset", "pause", "enter", "limit_to"])
def test_overtaken_cursor_ends(what: str) -> None:
    (a,) = assigned(A)
    a.seek(0)
    cursor = a.begin_records(records(3))
    cursor.take()
    arguments = {
        "seek": 7,
        "ask_reset": OffsetSpec.LATEST,
        "enter": PartitionState.REVOKING,
        "limit_to": 1,
    }
    getattr(a, what)(*([arguments[what]] if what in arguments else []))
    assert not cursor.live
    assert [record.offset for record in cursor.rest] == [1, 2]


def test_empty_range_is_processed_unless_behind() -> None:
    """An offset range without records is processed, unless the user holds a record before it."""
    (a,) = assigned(A)
    a.seek(0)
    a.passed_over(2)
    assert (a.position, a.processed) == (2, 2)
    a.delivered(records(3, first=2))
    a.passed_over(9)
    assert (a.position, a.processed) == (9, 2)


def test_marks_commit_only_up_to_a_gap() -> None:
    table = Assignment(marks=True)
    table.assign([A])
    a = table.get(A)
    a.seek(10)
    a.delivered(records(3, first=10))
    a.mark_all_processed()
    assert a.processed == 10
    for offset, processed in ((11, 10), (11, 10), (99, 10), (10, 12), (12, 13)):
        a.mark_processed([offset])
        assert a.processed == processed


@given(st.permutations(range(8)), st.integers(1, 8))
def test_marks_work_in_any_order(order: list[int], cut: int) -> None:
    table = Assignment(marks=True)
    table.assign([A])
    partition = table.get(A)
    partition.seek(0)
    batch = records(8)
    cursor = partition.begin_records(batch)
    taken = [cursor.take().offset for _ in range(cut)]
    partition.end_records()
    partition.delivered(batch[cut:])
    marked = set()
    for offset in order:
        partition.mark_processed([offset])
        marked.add(offset)
        assert partition.processed == next(number for number in range(9) if number not in marked)
    assert taken == list(range(cut))


# --- the fetch buffer -----------------------------------------------------------------------------


def fetch(partition: AssignedPartition, size: int = 10) -> CompletedFetch:
    return CompletedFetch(partition, partition.ticket, memoryview(bytes(size)), None)


def ready(*tps: TopicPartition, limit: int = 1000) -> tuple[FetchBuffer, list[AssignedPartition]]:
    """Return a buffer and deliverable partitions.

    What overtakes a partition drops its buffered fetches.
    """
    buffers: list[FetchBuffer] = []
    wake = ChangeCallbacks(overtaken=lambda partition: buffers[0].drop(partition))
    buffers.append(FetchBuffer(limit, wake))
    table = Assignment(wake)
    table.assign(tps)
    for partition in table:
        partition.seek(0)
    return buffers[0], list(table)


def take(buffer: FetchBuffer) -> CompletedFetch | None:
    """Return the next fetch to deliver."""
    partition = buffer.next_partition()
    return None if partition is None else buffer.pop(partition)


def test_partitions_take_turns_in_order() -> None:
    """Each partition's fetches keep their order."""
    buffer, (a, b, c) = ready(A, B, C)
    put = [fetch(a), fetch(a), fetch(a), fetch(b), fetch(b), fetch(c)]
    for each in put:
        buffer.put(each)
    taken = [take(buffer) for _ in range(6)]
    assert [each.partition.tp for each in taken if each] == [A, B, C, A, B, A]
    assert [each for each in taken if each and each.partition is a] == put[:3]
    assert take(buffer) is None
    assert buffer.buffered == 0


def test_paused_partition_waits_and_counts() -> None:
    buffer, (a, b) = ready(A, B)
    buffer.put(fetch(a, 90))
    buffer.put(fetch(b, 20))
    a.pause()
    assert (buffer.buffered, buffer.size_of(a), buffer.has(a), buffer.has(b)) == (
        110,
        90,
        False,
        True,
    )
    taken = take(buffer)
    assert taken is not None
    assert taken.partition is b
    assert take(buffer) is None
    a.resume()
    taken = take(buffer)
    assert taken is not None
    assert taken.partition is a


def test_overtaken_fetches_are_dropped() -> None:
    buffer, (a, b) = ready(A, B)
    for partition in (a, a, b):
        buffer.put(fetch(partition))
    a.seek(5)
    assert (buffer.buffered, buffer.size_of(a)) == (10, 0)
    taken = take(buffer)
    assert taken is not None
    assert taken.partition is b
    buffer.put(fetch(b))
    b.seek(9)
    assert buffer.empty


def test_returned_fetch_comes_first() -> None:
    buffer, (a, b) = ready(A, B)
    for partition in (a, b, a):
        buffer.put(fetch(partition))
    assert take(buffer) is not None
    rest = fetch(a)
    buffer.put_first(rest)
    buffer.put_back(a, records(3)[1:])
    again = take(buffer)
    assert again is not None
    assert again.batch is not None
    assert list(again.batch.offsets) == [1, 2]
    assert buffer.pop(a) is rest
    assert [each.partition.tp for each in (take(buffer), take(buffer)) if each] == [B, A]
    assert buffer.empty


def test_taking_wakes_an_idle_fetcher() -> None:
    woken = Woken()
    buffer = FetchBuffer(100, woken.wake)
    (a,) = assigned(A)
    a.seek(0)
    buffer.put(fetch(a))
    assert woken.take() == {"deliver"}
    buffer.fetcher_idle(True)
    buffer.pop(a)
    assert woken.take() == {"fetch"}


def test_share_of_a_partition() -> None:
    buffer = FetchBuffer(100)
    assert (buffer.share(4), buffer.share(0), buffer.share(1000)) == (25, 100, 1)


@pytest.mark.parametrize(
    ("brokers", "buffered", "held", "wanted", "room"),
    [
        (1, 0, 0, 1000, 25),
        (1, 0, 0, 7, 7),
        (1, 275, 0, 1000, 25),
        (1, 276, 0, 1000, 0),
        (1, 300, 0, 7, 7),  # small fetches need little room
        (1, 125, 50, 1000, 25),  # the user's records count three times
        (1, 126, 50, 1000, 0),
        (1, 0, 1000, 1000, 25),  # but some fetch is always allowed
        (1, 1, 1000, 1000, 0),
        (4, 0, 0, 1000, 6),  # a part of it
        (4, 40, 40, 1000, 6),
        (4, 41, 40, 1000, 0),
        (1000, 0, 0, 50, 1),
        (1000, 1, 0, 50, 0),
    ],
)
def test_room_for_a_fetch(brokers: int, buffered: int, held: int, wanted: int, room: int) -> None:
    buffer = FetchBuffer(400)
    buffer.count_delivered(held // 2)
    buffer.count_delivered(held - held // 2)
    assert buffer.room(brokers, buffered, wanted) == room
    buffer.begin()
    assert buffer.room(brokers, buffered, wanted) == room, "it still is with the user"
    buffer.begin()
    assert buffer.room(1, 275, 400) == 25


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["put", "take", "seek", "pause", "resume"]))
    )
)
def test_buffer_counts_its_bytes(steps: list[tuple[int, str]]) -> None:
    buffer, partitions = ready(A, B, C)
    waiting: list[list[CompletedFetch]] = [[], [], []]
    for number, what in steps:
        partition = partitions[number]
        match what:
            case "put":
                new = fetch(partition, 7)
                buffer.put(new)
                waiting[number].append(new)
            case "seek":
                partition.seek(0)
                waiting[number].clear()
            case "pause":
                partition.pause()
            case "resume":
                partition.resume()
            case "take":
                taken = take(buffer)
                allowed = [
                    fetches[0]
                    for fetches, each in zip(waiting, partitions, strict=True)
                    if fetches and each.deliverable
                ]
                assert (taken is None) == (not allowed)
                if taken is not None:
                    assert any(taken is each for each in allowed)
                    waiting[partitions.index(taken.partition)].pop(0)
    assert [buffer.size_of(partition) for partition in partitions] == [
        7 * len(fetches) for fetches in waiting
    ]


# --- messages of members --------------------------------------------------------------------------


def test_subscriptions_and_assignments_roundtrip() -> None:
    config = ConsumerConfig.build({"bootstrap_servers": "a:1", "group_id": "g", "client_rack": "r"})
    member = Member(None)
    member.know_as("m", 4)
    request = group_messages.join_request(
        config, member.identity, {"range": None}, frozenset({"t", "u"}), [A, C]
    )
    decoded = group_messages.decode_subscription(bytes(request.protocols[0].metadata), "i")
    assert (decoded.topics, decoded.owned, decoded.generation, decoded.instance_id) == (
        {"t", "u"},
        (A, C),
        4,
        "i",
    )
    for assignment in ([], [A], [B, TopicPartition("u", 7), A]):
        assert sorted(
            group_messages.decode_assignment(group_messages.encode_assignment(assignment))
        ) == sorted(assignment)
    assert group_messages.decode_assignment(b"") == []


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_of_older_members_are_read(version: int) -> None:
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    data = bytes(
        ConsumerProtocolSubscription(version=version, topics=["t"], user_data=None).encode(
            version=version
        )
    )
    decoded = group_messages.decode_subscription(data, None)
    assert (decoded.topics, decoded.owned, decoded.generation) == ({"t"}, (), -1)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_a_protocol_error(data: bytes) -> None:
    for read in (
        lambda: group_messages.decode_subscription(data, None),
        lambda: group_messages.decode_assignment(data),
    ):
        with suppress(ProtocolError):
            read()
