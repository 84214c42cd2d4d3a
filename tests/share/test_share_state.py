"""The state of share groups by properties: what goes into requests, and what becomes of records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trikafka import TopicPartition
from trikafka._state.share.acknowledgements import Run, fold, runs_of
from trikafka._state.share.acquired import AcquiredRecords, Holdings, RecordState
from trikafka._state.share.session import ShareRequest, ShareSession
from trikafka._wire.share import AckBatch, AckType
from trikafka.errors import (
    ErrorCode,
    KafkaConnectionError,
    LockLostError,
    TrikafkaError,
    from_code,
)

TP = TopicPartition("t", 0)
KEYS = [(UUID(int=1), number) for number in range(3)]
LOCK = 30.0


def unfold(batches: Iterable[AckBatch]) -> Iterator[tuple[int, AckType]]:
    """Yield each offset of the ranges with its acknowledgement."""
    for first, last, types in batches:
        for offset in range(first, last + 1):
            kind = types[0] if len(types) == 1 else types[offset - first]
            yield offset, AckType(kind)


@given(st.dictionaries(st.integers(0, 80), st.sampled_from(list(AckType)), max_size=60))
def test_folded_acks_say_the_same(kinds: dict[int, AckType]) -> None:
    offsets = sorted(kinds)
    types = bytes(kinds[offset] for offset in offsets)
    runs = list(runs_of(offsets, types, 0, len(offsets))) if offsets else []
    batches = fold(reversed(runs))
    assert dict(unfold(batches)) == kinds
    # As brokers want them: in order, apart, with one type or one an offset.
    for before, after in pairwise(batches):
        assert before.last < after.first
    for first, last, given_types in batches:
        assert len(given_types) in (1, last - first + 1)


def test_long_runs_are_ranges_of_one_type() -> None:
    runs = [
        Run(0, 99, AckType.ACCEPT),
        Run(100, 100, AckType.REJECT),
        Run(101, 102, AckType.ACCEPT),
    ]
    assert fold(runs) == [(0, 99, b"\x01"), (100, 102, b"\x03\x01\x01")]


class Sessions(RuleBasedStateMachine):
    """A session beside a broker that only records acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.session = ShareSession(linger=0.005)
        self.holdings = Holdings()
        self.now = 0.0
        self.next_offset = 0
        self.all: list[AcquiredRecords] = []
        self.request: ShareRequest | None = None
        self.epoch = 0  # of the broker's next request
        self.final: dict[tuple[object, int], int] = {}  # final acknowledgements in this session
        self.locks: dict[tuple[object, int], float] = {}  # the ends of the broker's locks
        self.sent_at = 0.0

    def acquire(self, count: int, key: tuple[UUID, int]) -> None:
        offsets = range(self.next_offset, self.next_offset + count)
        self.next_offset += count
        acquired = AcquiredRecords(
            TP,
            key,
            offsets,
            1,
            None,
            holdings=self.holdings,
            queue=lambda *entry: self.session.queue(*entry, self.now),
            settled=lambda: None,
        )
        self.session.add(acquired, self.now, LOCK)
        self.locks.update(((key, offset), self.now + LOCK) for offset in offsets)
        acquired.keep(self.now + 100)
        acquired.deliver(0, count)
        self.all.append(acquired)

    @rule(wanted=st.sets(st.sampled_from(KEYS)))
    def assign(self, wanted: set[tuple[UUID, int]]) -> None:
        self.session.want(wanted)

    def check_none_failed_too_early(self) -> None:
        """An acknowledgement is too late only if the broker's lock has ended."""
        for acquired in self.all:
            for index, offset in enumerate(acquired.offsets):
                error = acquired.error(index)
                if isinstance(error, LockLostError) and "could be sent" in str(error):
                    assert self.locks[acquired.key, offset] <= self.now

    @precondition(lambda self: self.request is None)
    @rule(count=st.integers(0, 4))
    def fetch(self, count: int) -> None:
        if self.session.must_acknowledge(self.now):
            return
        request = self.session.fetch(self.now)
        self.check_none_failed_too_early()
        self.send(request, fetches=True)

    @precondition(lambda self: self.request is None)
    @rule(closes=st.booleans(), keeps=st.booleans())
    def acknowledge(self, closes: bool, keeps: bool) -> None:
        request = self.session.acknowledge(
            self.now, closes=closes, keeps_unfinished=keeps and not closes
        )
        self.check_none_failed_too_early()
        if request is not None:
            self.send(request, fetches=False)

    def send(self, request: ShareRequest, *, fetches: bool) -> None:
        self.request = request
        self.sent_at = self.now
        # One request at a time, its epoch the broker's next one, and no acknowledgement at epoch 0.
        assert self.session.in_flight is request
        assert request.epoch in (self.epoch, -1) or request.epoch == 0
        if request.epoch == 0:
            assert fetches
            assert not any(request.named.values())
            self.final.clear()
        if fetches:
            assert not request.renews
            # A fetch names what is wanted and nothing else, so nothing joins by an acknowledgement.
            assert request.named.keys() <= self.session.wanted.keys()
        for key, batches in request.named.items():
            for offset, kind in unfold(batches):
                if kind is not AckType.RENEW:
                    # Never twice.
                    assert (key, offset) not in self.final
                    # Nor for a record that the group may have given to another delivery.
                    assert self.locks[key, offset] > self.now
                    self.final[key, offset] = kind

    @precondition(lambda self: self.request is not None)
    @rule(
        codes=st.lists(st.sampled_from([0, 0, 6, 15, 121]), min_size=3, max_size=3),
        count=st.integers(0, 4),
    )
    def respond(self, codes: Sequence[int], count: int) -> None:
        request = self.request
        assert request is not None
        self.request = None
        self.epoch = 0 if request.epoch < 0 else request.epoch + 1
        outcomes = dict(zip(KEYS, codes, strict=True))
        if request.epoch < 0:
            self.outcomes(request, outcomes)
            self.session.responded(request)
            return
        self.session.responded(request)
        self.outcomes(request, outcomes)
        if count and not request.renews:
            self.acquire(count, KEYS[count % 3])

    def outcomes(self, request: ShareRequest, codes: dict[tuple[UUID, int], int]) -> None:
        for key in request.awaited:
            code = codes[key]
            error: TrikafkaError | None = from_code(ErrorCode(code)) if code else None
            if code == 15:
                for offset, kind in unfold(request.named[key]):
                    if kind is not AckType.RENEW:
                        del self.final[key, offset]
            elif not code:
                for offset, kind in unfold(request.named[key]):
                    if kind is AckType.RENEW:
                        self.locks[key, offset] = self.sent_at + LOCK
            self.session.acknowledged(request, key, error, self.sent_at, LOCK, self.sent_at)

    @rule()
    def lose_the_session(self) -> None:
        self.session.lost(KafkaConnectionError("gone"))
        self.request = None
        self.epoch = 0
        assert self.holdings.held == 0
        assert not list(self.session.waiting())

    @precondition(lambda self: self.all)
    @rule(which=st.integers(0), index=st.integers(0), kind=st.sampled_from([1, 2, 3]))
    def decide(self, which: int, index: int, kind: int) -> None:
        acquired = self.all[which % len(self.all)]
        at = index % len(acquired)
        acquired.decide(at, at + 1, bytes((kind,)))

    @rule(seconds=st.sampled_from([1.0, 16.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.session.expire(self.now)
        assert all(acquired.lock_ends > self.now for acquired in self.all if acquired.held)

    @invariant()
    def counts_agree(self) -> None:
        states = [each.state(index) for each in self.all for index in range(len(each))]
        held = sum(state <= RecordState.OPEN for state in states)
        assert held == self.holdings.held == sum(each.held for each in self.all)
        waiting = sum(stop - start for _, start, stop in self.session.waiting())
        assert waiting == sum(state in (RecordState.DECIDED, RecordState.SENT) for state in states)
        assert sum(each.unsettled for each in self.all) == held + waiting


TestSessions = Sessions.TestCase


def test_epochs_wrap_to_one() -> None:
    session = ShareSession()
    session.want(KEYS[:1])
    request = session.fetch(0.0)
    session.responded(request)
    session._epoch = 2**31 - 1
    request = session.fetch(0.0)
    assert request.epoch == 2**31 - 1
    session.responded(request)
    assert session.fetch(0.0).epoch == 1


def opened(linger: float = 0.005) -> ShareSession:
    """Return the session of one partition, after its first fetch."""
    session = ShareSession(linger)
    session.want(KEYS[:1])
    session.responded(session.fetch(0.0))
    return session


def records_of(session: ShareSession, now: list[float]) -> AcquiredRecords:
    """Return 1,000 records that the program has, whose acknowledgements are queued at ``now``."""
    acquired = AcquiredRecords(
        TP,
        KEYS[0],
        range(1000),
        1,
        None,
        holdings=Holdings(),
        queue=lambda *entry: session.queue(*entry, now[0]),
        settled=lambda: None,
    )
    session.add(acquired, now[0], LOCK)
    acquired.deliver(0, 1000)
    return acquired


def accept(acquired: AcquiredRecords, start: int, stop: int) -> None:
    for index in range(start, stop):
        acquired.decide_one(index, AckType.ACCEPT)


# A part of what the broker acquired together costs it a state and a timer for each record of it.
def test_a_quick_program_acknowledges_whole_batches() -> None:
    now = [0.0]
    session = opened()
    acquired = records_of(session, now)
    accept(acquired, 0, 500)
    now[0] = 0.007
    assert session.due_at(now[0]) == 0.012
    accept(acquired, 500, 600)
    request = session.fetch(now[0])
    assert not request.named
    assert session.kept_until == 0.05
    session.responded(request)
    accept(acquired, 600, 1000)
    assert session.due_at(now[0]) == 0.005
    assert session.fetch(now[0]).named == {KEYS[0]: [(0, 999, b"\x01")]}
    assert session.pending_since == math.inf


@pytest.mark.parametrize(
    ("linger", "decided", "now"),
    [
        pytest.param(0.005, 500, 0.03, id="slow"),
        pytest.param(0.005, 1, 0.0, id="one record"),
        pytest.param(0.0, 500, 0.001, id="no linger"),
        pytest.param(0.001, 500, 0.006, id="short linger"),
    ],
)
def test_acks_of_a_slow_program_go_at_once(linger: float, decided: int, now: float) -> None:
    session = opened(linger)
    accept(records_of(session, [0.0]), 0, decided)
    assert session.due_at(now) == linger
    assert session.fetch(now).named == {KEYS[0]: [(0, decided - 1, b"\x01")]}


def test_no_ack_stays_near_the_end_of_its_lock() -> None:
    now = [0.0]
    session = opened()
    acquired = records_of(session, now)
    now[0] = LOCK - 0.04
    accept(acquired, 0, 500)
    assert session.due_at(now[0] + 0.005) == now[0] + 0.005
    assert session.fetch(now[0] + 0.005).named == {KEYS[0]: [(0, 499, b"\x01")]}


def test_a_flush_keeps_no_ack() -> None:
    now = [0.0]
    session = opened()
    acquired = records_of(session, now)
    accept(acquired, 0, 500)
    assert session.acknowledge(0.0, keeps_unfinished=True) is None
    request = session.acknowledge(0.0)
    assert request is not None
    assert request.named == {KEYS[0]: [(0, 499, b"\x01")]}


def test_an_unfetched_partition_keeps_no_ack() -> None:
    now = [0.0]
    session = opened()
    accept(records_of(session, now), 0, 500)
    session.want(())
    assert session.must_acknowledge(0.0)
    assert session.acknowledge(0.0, keeps_unfinished=True) is not None


@pytest.mark.parametrize("state", ["settled", "failed", "lost"])
def test_final_states_stay(state: str) -> None:
    queued: list[tuple[int, int]] = []
    acquired = AcquiredRecords(
        TP,
        KEYS[0],
        range(5, 8),
        2,
        None,
        holdings=Holdings(),
        queue=lambda _, start, stop: queued.append((start, stop)),
        settled=lambda: None,
    )
    acquired.deliver(0, 3)
    if state == "lost":
        acquired.lose("the test")
    else:
        acquired.decide(0, 3, b"\x01")
        assert queued == [(0, 3)]
        acquired.sent(0, 3)
        if state == "settled":
            acquired.settle(0, 3)
        else:
            acquired.fail(0, 3, KafkaConnectionError("gone"))
    acquired.decide(0, 3, b"\x02")
    acquired.lose("again")
    assert {acquired.state(index).name.lower() for index in range(3)} == {state}
    assert (acquired.error(1) is None) == (state == "settled")
    assert acquired.delivery_count(0) == 2


class Held:
    """A session with three records, fetched at time 0, of which the program has all."""

    def __init__(self) -> None:
        self.session = ShareSession()
        self.session.want(KEYS[:1])
        self.session.responded(self.session.fetch(0.0))
        self.now = 0.0
        self.acquired = AcquiredRecords(
            TP,
            KEYS[0],
            range(3),
            1,
            None,
            holdings=Holdings(),
            queue=lambda *entry: self.session.queue(*entry, self.now),
            settled=lambda: None,
        )
        self.session.add(self.acquired, 0.0, LOCK)
        self.acquired.deliver(0, 3)

    def acknowledge(self, now: float, code: int = 0) -> dict[int, AckType]:
        """Send the next ShareAcknowledge and take in its response; return what it carried."""
        self.now = now
        request = self.session.acknowledge(now)
        if request is None:
            return {}
        carried = dict(unfold(request.named[KEYS[0]]))
        error: TrikafkaError | None = from_code(ErrorCode(code)) if code else None
        self.session.responded(request)
        self.session.acknowledged(request, KEYS[0], error, now, LOCK, now)
        return carried


def test_a_renewal_is_none_of_decided_records() -> None:
    """Their lock ends as if nothing had been renewed, and then they may be of another delivery."""
    held = Held()
    held.acquired.decide(0, 1, b"\x01")
    assert held.acknowledge(16.0) == {1: AckType.RENEW, 2: AckType.RENEW}
    held.acquired.decide(1, 2, b"\x01")
    assert held.acknowledge(30.5) == {1: AckType.ACCEPT}
    assert [held.acquired.state(index).name for index in range(3)] == [
        "FAILED",
        "SETTLED",
        "DELIVERED",
    ]
    assert isinstance(held.acquired.error(0), LockLostError)


@pytest.mark.parametrize("code", [0, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_renewal_in_flight_counts_for_decisions(code: int) -> None:
    """The record decided before it keeps its lock; the one decided meanwhile gets the new one."""
    held = Held()
    session, acquired = held.session, held.acquired
    acquired.decide(0, 1, b"\x01")
    request = session.acknowledge(16.0)
    assert request is not None
    assert dict(unfold(request.named[KEYS[0]])) == {1: AckType.RENEW, 2: AckType.RENEW}
    acquired.decide(1, 2, b"\x01")
    session.responded(request)
    error = from_code(ErrorCode(code)) if code else None
    session.acknowledged(request, KEYS[0], error, 16.0, LOCK, 16.0)
    acquired.decide(2, 3, b"\x01")
    expected = {1: AckType.ACCEPT, 2: AckType.ACCEPT} if not code else {}
    assert held.acknowledge(30.5) == expected
    states = [acquired.state(index).name for index in range(3)]
    assert states == ["FAILED", *(["SETTLED"] * 2 if not code else ["FAILED"] * 2)]


def test_a_repetition_ends_with_the_first_lock() -> None:
    held = Held()
    held.acquired.decide(0, 1, b"\x01")
    assert held.acknowledge(1.0, ErrorCode.COORDINATOR_NOT_AVAILABLE) == {0: AckType.ACCEPT}
    assert held.acknowledge(16.0) == {1: AckType.RENEW, 2: AckType.RENEW}
    held.acquired.decide(1, 2, b"\x02")
    assert held.acknowledge(17.0, ErrorCode.NOT_COORDINATOR) == {
        0: AckType.ACCEPT,
        1: AckType.RELEASE,
    }
    assert held.acknowledge(30.5) == {1: AckType.RELEASE}
    assert held.acquired.state(0) is RecordState.FAILED


def test_an_answer_after_the_lock_proves_nothing() -> None:
    """The broker accepts acknowledgements before its start offset from any member."""
    held = Held()
    held.acquired.decide(0, 3, b"\x01")
    request = held.session.acknowledge(1.0)
    assert request is not None
    held.session.responded(request)
    held.session.acknowledged(request, KEYS[0], None, 1.0, LOCK, held.acquired.lock_ends)
    assert [held.acquired.state(index).name for index in range(3)] == ["FAILED"] * 3
    for index in range(3):
        error = held.acquired.error(index)
        assert isinstance(error, LockLostError)
        assert "before the broker's answer" in str(error)
        assert error.offset == held.acquired.offsets[index]


def test_a_refused_response_fails_its_acks() -> None:
    held = Held()
    held.acquired.decide(0, 2, b"\x01")
    request = held.session.acknowledge(1.0)
    assert request is not None
    held.session.responded(request)
    held.session.failed(request, from_code(ErrorCode.GROUP_AUTHORIZATION_FAILED), 1.0)
    assert [held.acquired.state(index).name for index in range(2)] == ["FAILED"] * 2
