"""The consumer's plain data: the member's table, partitions and positions, the fetch buffer, what members tell each other."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikafka import TopicPartition
from trikafka._managers import group_messages
from trikafka._state.fetch_buffer import Chunk, FetchBuffer
from trikafka._state.member import _AFTER, Member, MemberState
from trikafka._state.subscription import Mode, PartitionState, Subscription
from trikafka._wire.records import decode_records
from trikafka.config import ConsumerConfig
from trikafka.errors import IllegalStateError, ProtocolError
from trikafka.testing import encode_batch
from trikafka.types import OffsetSpec

A, B, C = (TopicPartition("t", number) for number in range(3))

# --- the member -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), list(product(MemberState, MemberState)))
def test_the_member_takes_only_the_steps_of_its_table(before: MemberState, after: MemberState) -> None:
    member = Member(None)
    member.state = before
    if after is before or after in _AFTER[before]:
        member.to(after)
        assert member.state is after
    else:
        with pytest.raises(AssertionError, match=f"from {before.value} to {after.value}"):
            member.to(after)


def test_every_state_can_be_left_by_closing_and_leads_back_to_unjoined() -> None:
    assert all(MemberState.LEAVING in _AFTER[state] for state in MemberState if state is not MemberState.LEAVING)
    for start in MemberState:
        reached, todo = {start}, [start]
        while todo:
            todo += (new := _AFTER[todo.pop()] - reached)
            reached |= new
        assert MemberState.UNJOINED in reached


def test_who_the_member_is() -> None:
    member = Member("instance")
    assert not member.identity.joined
    member.know_as("id")
    assert not member.identity.joined
    member.know_as("id", 3)
    assert member.identity.joined
    member.forget(keep_id=True)
    assert (member.identity.member_id, member.identity.joined, member.identity.instance_id) == ("id", False, "instance")
    member.forget()
    assert (member.identity.member_id, member.identity.instance_id) == ("", "instance")


# --- the subscription -------------------------------------------------------------------------------------------------


def test_the_ways_to_partitions_do_not_mix() -> None:
    for first, second in (("topics", "manual"), ("manual", "topics"), ("topics", "pattern"), ("pattern", "manual")):
        ways = {
            "topics": lambda s: s.subscribe(["t"]),
            "pattern": lambda s: s.subscribe_pattern(re.compile("t")),
            "manual": lambda s: s.assign([A]),
        }
        subscription = Subscription()
        ways[first](subscription)
        ways[first](subscription)
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            ways[second](subscription)
        subscription.clear()
        ways[second](subscription)


def test_assign_keeps_the_positions_of_what_stays_and_forgets_what_goes() -> None:
    subscription = Subscription()
    subscription.assign([A, B, A])
    subscription.state(A).jump(7)
    gone = subscription.state(B)
    epoch = gone.epoch
    subscription.assign([C, A])
    assert list(subscription.partitions) == [C, A]
    assert subscription.state(A).position == 7
    assert gone.epoch > epoch
    assert not gone.usable
    with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
        subscription.state(B)


def test_a_pattern_matches_whole_names() -> None:
    subscription = Subscription()
    subscription.subscribe_pattern(re.compile("a|ab"))
    assert subscription.match(["a", "ab", "abc", "xa"])
    assert subscription.topics == {"a", "ab"}
    assert not subscription.match(["ab", "a", "x"])
    assert subscription.grouped
    assert subscription.mode is Mode.PATTERN


def test_of_what_is_not_followed_any_more_nothing_is_handed_out() -> None:
    subscription = Subscription()
    subscription.subscribe(["t", "u"])
    subscription.add([A, TopicPartition("u", 0)], ready=True)
    subscription.subscribe(["u"])
    assert [tp for tp, state in subscription.partitions.items() if state.usable] == [("u", 0)]


def test_a_jump_forgets_all_that_was_asked_before() -> None:
    state = PartitionState(A, ready=True)
    state.ask_reset(OffsetSpec.LATEST)
    state.error, state.retry_at, epoch = ValueError(), 99.0, state.epoch
    assert state.position is None
    assert not state.fetchable
    state.jump(5)
    assert (state.position, state.done, state.fetch_offset, state.reset, state.error, state.retry_at) == (5, 5, 5, None, None, 0.0)
    assert state.epoch > epoch
    assert state.fetchable


def test_a_limit_ends_handing_out_and_fetching() -> None:
    state = PartitionState(A, ready=True)
    state.jump(5)
    state.fetch_offset = 10
    for limit, usable, fetchable in ((None, True, True), (11, True, True), (10, True, False), (5, False, False), (0, False, False)):
        state.limit = limit
        assert (state.usable, state.fetchable) == (usable, fetchable)


# --- the fetch buffer -------------------------------------------------------------------------------------------------


def chunk(state: PartitionState, size: int = 10) -> Chunk:
    return Chunk(state, state.epoch, memoryview(bytes(size)), None)


def ready(*tps: TopicPartition) -> list[PartitionState]:
    states = [PartitionState(tp, ready=True) for tp in tps]
    for state in states:
        state.jump(0)
    return states


def test_partitions_take_turns_and_each_keeps_its_order() -> None:
    buffer, (a, b, c) = FetchBuffer(1000), ready(A, B, C)
    put = [chunk(a), chunk(a), chunk(a), chunk(b), chunk(b), chunk(c)]
    for each in put:
        buffer.put(each)
    taken = [buffer.take() for _ in range(6)]
    assert [each.state.tp for each in taken if each] == [A, B, C, A, B, A]
    assert [each for each in taken if each and each.state is a] == put[:3]
    assert buffer.take() is None
    assert buffer.buffered == 0


def test_a_paused_partition_waits_aside_and_does_not_count() -> None:
    buffer, (a, b) = FetchBuffer(100), ready(A, B)
    buffer.put(chunk(a, 90))
    buffer.put(chunk(b, 20))
    assert buffer.buffered == 110
    a.paused = True
    assert buffer.buffered == 20
    taken = buffer.take()
    assert taken is not None
    assert taken.state is b
    assert buffer.take() is None
    a.paused = False
    taken = buffer.take()
    assert taken is not None
    assert taken.state is a


def test_what_was_overtaken_is_dropped() -> None:
    buffer, (a, b) = FetchBuffer(100), ready(A, B)
    for state in (a, a, b):
        buffer.put(chunk(state))
    a.jump(5)
    taken = buffer.take()
    assert taken is not None
    assert taken.state is b
    buffer.put(chunk(b))
    b.jump(9)
    buffer.drop_stale()
    assert (buffer.buffered, a.buffered, b.buffered) == (0, 0, 0)


def test_what_is_put_back_comes_first() -> None:
    buffer, (a, b) = FetchBuffer(100_000), ready(A, B)
    data = encode_batch([b"x", b"y", b"z"], timestamp=0)
    batch = decode_records(data, topic="t", partition=0, fetch_offset=0, aborted=None, check_crcs=True, max_bytes=10_000)
    for state in (a, b, a):
        buffer.put(chunk(state))
    first = buffer.take()
    assert first is not None
    rest = chunk(a)
    buffer.put_first(rest)
    buffer.put_back(a, batch[1:])
    again = buffer.take()
    assert again is not None
    assert again.batch is not None
    assert list(again.batch.offsets) == [1, 2]
    assert buffer.take_from(a) is rest
    assert [each.state.tp for each in (buffer.take(), buffer.take()) if each] == [B, A]
    assert (a.buffered, b.buffered) == (0, 0)


def test_the_share_of_a_partition() -> None:
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
        (1, 0, 1000, 1000, 25),  # but never keep everything from being fetched
        (1, 1, 1000, 1000, 0),
        (4, 0, 0, 1000, 6),  # a part of it
        (4, 40, 40, 1000, 6),
        (4, 41, 40, 1000, 0),
        (1000, 0, 0, 50, 1),
        (1000, 1, 0, 50, 0),
    ],
)
def test_the_room_for_a_fetch(brokers: int, buffered: int, held: int, wanted: int, room: int) -> None:
    buffer = FetchBuffer(400)
    buffer.hand_out(held // 2)
    buffer.hand_out(held - held // 2)
    assert buffer.room(brokers, buffered, wanted) == room
    buffer.begin()
    assert buffer.room(brokers, buffered, wanted) == room, "it still is with the user"
    buffer.begin()
    assert buffer.room(1, 275, 400) == 25


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["put", "take", "jump", "pause", "resume", "back"]))))
def test_the_buffer_counts_what_it_holds(steps: list[tuple[int, str]]) -> None:
    buffer, states = FetchBuffer(100), ready(A, B, C)
    waiting: list[list[Chunk]] = [[], [], []]
    for number, what in steps:
        state = states[number]
        match what:
            case "put":
                new = chunk(state, 7)
                buffer.put(new)
                waiting[number].append(new)
            case "jump":
                state.jump(0)
                waiting[number].clear()
            case "pause" | "resume":
                state.paused = what == "pause"
            case "take" | "back":
                taken = buffer.take()
                allowed = [chunks[0] for chunks, each in zip(waiting, states, strict=True) if chunks and each.usable]
                assert (taken is None) == (not allowed)
                if taken is not None:
                    assert any(taken is each for each in allowed)
                    waiting[states.index(taken.state)].pop(0)
    buffer.drop_stale()
    assert [state.buffered for state in states] == [7 * len(chunks) for chunks in waiting]


# --- what members tell each other -------------------------------------------------------------------------------------


def test_subscriptions_and_assignments_survive_the_wire() -> None:
    config = ConsumerConfig.build({"bootstrap_servers": "a:1", "group_id": "g", "client_rack": "r"})
    member = Member(None)
    member.know_as("m", 4)
    request = group_messages.join_request(config, member.identity, {"range": None}, frozenset({"t", "u"}), [A, C])
    told = group_messages.read_subscription(bytes(request.protocols[0].metadata), "i")
    assert (told.topics, told.owned, told.generation, told.instance_id) == ({"t", "u"}, (A, C), 4, "i")
    for assignment in ([], [A], [B, TopicPartition("u", 7), A]):
        assert sorted(group_messages.read_assignment(group_messages.encode_assignment(assignment))) == sorted(assignment)
    assert group_messages.read_assignment(b"") == []


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_of_older_members_are_read(version: int) -> None:
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    data = bytes(ConsumerProtocolSubscription(version=version, topics=["t"], user_data=None).encode(version=version))
    told = group_messages.read_subscription(data, None)
    assert (told.topics, told.owned, told.generation) == ({"t"}, (), -1)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_subscription_or_a_protocol_error(data: bytes) -> None:
    for read in (lambda: group_messages.read_subscription(data, None), lambda: group_messages.read_assignment(data)):
        with suppress(ProtocolError):
            read()
