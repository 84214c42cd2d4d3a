"""Batching, room, partitions, and responses: rows of responses with what must follow from them."""

from __future__ import annotations

import math

import pytest
from accumulating import Bench, Waiting, outcome, records

from trikafka._state.producer.producer_batch import BatchState
from trikafka._state.producer.sequences import ProducerIdentity
from trikafka._wire.partitioning import partition_for_key
from trikafka.errors import (
    ConfigurationError,
    DeliveryTimeoutError,
    KafkaConnectionError,
    RecordTooLargeError,
    TrikafkaError,
    from_code,
)
from trikafka.types import RecordMetadata

pytestmark = pytest.mark.usefixtures("record_path")
LOST = KafkaConnectionError("gone")
OUT_OF_ORDER = from_code(45)


def test_batch_is_ready_after_linger_or_when_full() -> None:
    bench = Bench(0)
    first, _, _ = bench.put(b"x" * 100, partition=0)
    assert bench.accumulator.due_at(0, bench.now) == 1.0
    bench.now = 0.99
    assert bench.drain() == []
    bench.put(b"x" * 300, partition=0)
    assert first.state is BatchState.WAITING, "the second did not fit in"
    assert bench.accumulator.due_at(0, bench.now) == 0.0
    assert bench.drain() == [first]
    bench.accumulator.completion.succeeded(first, 0, None)
    bench.now = 1.98
    assert bench.drain() == []
    bench.now = 1.99
    assert len(bench.drain()) == 1


def test_records_are_encoded_unchanged() -> None:
    bench = Bench(0)
    bench.put(b"v", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=5)
    bench.put(None, key=None, partition=0, timestamp=7)
    bench.put(memoryview(b"view"), partition=0, timestamp=7)
    bench.accumulator.close_open()
    found = [(r.timestamp, r.key, r.value, r.headers) for r in records(bench.drain()[0])]
    assert found == [
        (5, b"k", b"v", (("h", b"1"), ("n", None))),
        (7, None, None, ()),
        (7, None, b"view", ()),
    ]


def test_partitions_take_turns_in_requests() -> None:
    """A request has one batch of a partition, and partitions that did not fit are first in the next
    one.
    """
    bench = Bench(0, 0, 0, 1)
    for partition in (0, 1, 2):
        bench.prove(partition)
    for partition in (0, 1, 2, 3):
        bench.fill(2, partition)
    size = bench.accumulator.unsettled()[0].size
    assert [batch.partition for batch in bench.drain(limit=2 * size)] == [0, 1]
    assert [batch.partition for batch in bench.drain(limit=2 * size)] == [2, 0]
    assert [batch.partition for batch in bench.drain()] == [1, 2]
    assert [batch.partition for batch in bench.drain(1)] == [3]


def test_large_record_has_its_own_batch() -> None:
    """A record that exceeds max_request_size or buffer_memory is refused."""
    bench = Bench(0)
    batch, index, _ = bench.put(b"x" * 1_900, partition=0)
    # The batch lingers: another record may still come.
    assert (index, bench.drain(limit=1)) == (
        0,
        [],
    )
    bench.accumulator.close_open()
    assert bench.drain(limit=1) == [batch]
    used = bench.accumulator.used
    with pytest.raises(RecordTooLargeError, match="raise max_request_size and the topic's max"):
        bench.put(b"x" * 1_910, partition=0)
    assert bench.accumulator.used == used
    with pytest.raises(RecordTooLargeError, match="raise buffer_memory, or"):
        Bench(0, buffer_memory=500).put(b"x" * 500)


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"value": "text"}, TypeError, r"value must be bytes, not str; encode it"),
        ({"key": "text"}, TypeError, r"key must be bytes, not str"),
        ({"value": 5}, TypeError, "value must be bytes-like or None, not int"),
        ({"headers": {"a": b"b"}}, TypeError, "headers must be pairs"),
        ({"headers": [("a", "b")]}, TypeError, "header value must be bytes, not str"),
        ({"headers": [(b"a", b"b")]}, TypeError, "headers must be pairs"),
        ({"timestamp": 1.5}, ConfigurationError, "timestamp must be milliseconds"),
        ({"timestamp": -1}, ConfigurationError, "timestamp must be milliseconds"),
        ({"timestamp": 2**63}, ConfigurationError, "timestamp must be milliseconds"),
        ({"partition": -1}, ConfigurationError, "partition must be a whole number from 0"),
    ],
)
def test_invalid_record_takes_no_room(
    fields: dict[str, object], error: type[Exception], text: str
) -> None:
    bench = Bench(0)
    with pytest.raises(error, match=text):
        bench.put(**fields)  # type: ignore[arg-type]
    assert bench.accumulator.used == 0
    assert bench.accumulator.unsettled() == []


def test_room_is_counted_to_the_byte() -> None:
    bench = Bench(0, buffer_memory=1_000)
    tickets = []
    while (
        ticket := bench.accumulator.appender.append("t", b"x" * 100, None, (), None, 0)
    ) is not None:
        tickets.append(ticket)
    assert 500 < bench.accumulator.used <= 1_000
    assert bench.accumulator.used == sum(batch.size for batch in bench.accumulator.unsettled())
    while bench.accumulator.unsettled():
        bench.accumulator.close_open()
        for batch in bench.drain():
            bench.accumulator.completion.succeeded(batch, 0, None)
    assert bench.accumulator.used == 0


def test_waiter_for_room_ends_linger() -> None:
    """New records get no room before a task that waits for it."""
    bench = Bench(0)
    bench.put(partition=0)
    assert bench.accumulator.due_at(0, 0.0) == 1.0
    bench.accumulator.add_waiter(Waiting())
    assert bench.accumulator.due_at(0, 0.0) == 0.0
    assert bench.accumulator.appender.append("t", b"", None, (), None, 0) is None
    assert bench.accumulator.append("t", b"", None, (), None, 0, admitted=True) is not None


# --- partitions -----------------------------------------------------------------------------------


def test_keyed_records_go_where_java_puts_them() -> None:
    """An explicit partition takes precedence over the key."""
    bench = Bench(0, 0, 0)
    for number in range(20):
        key = b"%d" % number
        assert bench.put(key=key)[0].partition == partition_for_key(key, 3)
        assert bench.put(key=key, partition=1)[0].partition == 1


def test_keyless_records_stay_until_batch_is_full() -> None:
    bench = Bench(0, 0, 0)
    runs: list[int] = []
    for _ in range(60):
        partition = bench.put(b"x" * 50)[0].partition
        if not runs or runs[-1] != partition:
            runs.append(partition)
    assert 6 <= len(runs) <= 20, "at times the same again, as in Java's client"
    assert set(runs) == {0, 1, 2}


def test_slow_trickle_changes_partitions() -> None:
    """Keyless records change partitions after batch_size bytes, however small the batches are."""
    bench = Bench(0, 0)
    seen = []
    for _ in range(12):
        batch, _, _ = bench.put(b"x" * 50)
        seen.append(batch.partition)
        bench.now += 1
        bench.accumulator.completion.succeeded(bench.drain()[0], 0, None)
    assert seen[:4] == [seen[0]] * 4
    assert set(seen) == {0, 1}


def test_keyless_records_avoid_leaderless_ones() -> None:
    bench = Bench(None, 0, None)
    assert {bench.put(b"x" * 300)[0].partition for _ in range(10)} == {1}


def test_waiting_batches_go_to_the_new_leader() -> None:
    bench = Bench(0, None)
    bench.fill(1, 0)
    bench.fill(1, 1)
    assert bench.accumulator.leaderless == {"t"}
    bench.accumulator.update_topic("t", [2, 2, 2])
    assert bench.accumulator.leaderless == set()
    assert bench.drain(0) == []
    assert len(bench.drain(2)) == 2
    assert bench.put(partition=2)[0].partition == 2


def test_forgotten_topic_takes_no_records() -> None:
    bench = Bench(0)
    bench.fill(1)
    bench.accumulator.forget_topic("t")
    assert bench.accumulator.appender.append("t", b"", None, (), None, None) is None
    assert bench.accumulator.leaderless == {"t"}
    bench.accumulator.update_topic("t", [0])
    assert len(bench.drain()) == 1


# --- order and numbers ----------------------------------------------------------------------------


def test_batches_are_pipelined_in_sequence() -> None:
    """The first batch is sent alone, because a broker takes any number until it has one."""
    bench = Bench(0)
    batches = bench.fill(4)
    assert bench.drain() == [batches[0]]
    assert bench.drain() == [], "the broker would take any number until it has the first"
    bench.accumulator.completion.succeeded(batches[0], 9, None)
    assert [bench.drain() for _ in batches] == [[batches[1]], [batches[2]], [batches[3]], []]
    assert [batch.sequence for batch in batches] == [0, 1, 2, 3]
    batches.pop(0)
    bench.accumulator.completion.succeeded(batches[0], 10, None)
    assert outcome((batches[0], 0, 3)).offset == 10


def test_lost_batches_are_resent_in_order() -> None:
    """They are sent one by one and keep their sequence numbers."""
    bench = Bench(0)
    bench.prove()
    batches = bench.fill(4)
    for _ in range(3):
        bench.drain()
    for batch in batches[:3]:
        bench.accumulator.completion.refused(batch, LOST, bench.now)
    assert bench.accumulator.due_at(0, 0.0) == 0.1, "one backoff for what failed together"
    bench.now = 0.1
    for number, batch in enumerate(batches[:3]):
        assert bench.drain() == [batch]
        assert (batch.sequence, batch.identity) == (number + 1, ProducerIdentity(1000, 0))
        assert bench.drain() == ([batches[3]] if number == 2 else []), (
            "new ones may follow the last repeated one"
        )
        bench.accumulator.completion.succeeded(batch, number, None)
    assert batches[3].sequence == 4


def test_refused_follower_keeps_its_number() -> None:
    """A batch refused as out of order behind a batch that is sent again keeps its number."""
    bench = Bench(0)
    bench.prove()
    one, two = bench.fill(2)
    bench.drain(), bench.drain()
    bench.accumulator.completion.refused(one, from_code(6), bench.now)
    bench.accumulator.completion.refused(two, OUT_OF_ORDER, bench.now)
    bench.now = 0.1
    assert bench.drain() == [one]
    assert bench.drain() == []
    bench.accumulator.completion.succeeded(one, 0, None)
    assert bench.drain() == [two]
    assert (two.sequence, two.identity) == (2, ProducerIdentity(1000, 0))


def test_nothing_overtakes_the_former_leader() -> None:
    """Nothing is sent to the new leader while a batch is in flight to the former one."""
    bench = Bench(0)
    bench.prove()
    one, two = bench.fill(2)
    bench.drain()
    bench.accumulator.update_topic("t", [1])
    assert bench.drain(1) == []
    bench.accumulator.completion.refused(one, LOST, bench.now)
    bench.now = 1
    assert bench.drain(1) == [one]
    assert bench.drain(1) == [two]


@pytest.mark.parametrize("code", [45, 59])
def test_out_of_order_first_begins_a_new_epoch(
    code: int,
) -> None:
    """A refusal of the first batch in flight shows that the broker has forgotten the producer."""
    bench = Bench(0)
    bench.prove()
    two, three = bench.fill(2)
    for batch in (two, three):
        assert bench.drain() == [batch]
    bench.accumulator.completion.refused(two, from_code(code), bench.now)
    bench.now = 1
    assert bench.drain() == [two]
    assert (two.sequence, two.identity) == (0, ProducerIdentity(1000, 1))
    bench.fill(1)
    assert bench.drain() == [], "three is still in flight with the old epoch"
    bench.accumulator.completion.succeeded(two, 1, None)
    bench.accumulator.completion.refused(three, from_code(code), bench.now)
    assert bench.drain() == [three]
    assert (three.sequence, three.identity) == (1, ProducerIdentity(1000, 1))


def test_duplicate_is_delivered_without_offset() -> None:
    bench = Bench(0)
    ticket = bench.put(partition=0, timestamp=77)
    bench.accumulator.close_open()
    bench.drain()
    bench.accumulator.completion.refused(ticket[0], from_code(46), bench.now)
    assert outcome(ticket) == RecordMetadata("t", 0, None, 77)
    assert bench.accumulator.used == 0


def test_fenced_producer_needs_a_new_id() -> None:
    """The fenced batch fails; later batches wait for the new producer id."""
    bench = Bench(0)
    one, two = bench.fill(2)
    bench.drain()
    bench.accumulator.completion.refused(one, from_code(47), bench.now)
    assert isinstance(one.error, type(from_code(47)))
    assert bench.accumulator.producer.current is None
    assert bench.drain() == []
    bench.accumulator.identified(ProducerIdentity(2000, 0))
    assert bench.drain() == [two]
    assert (two.sequence, two.identity) == (0, ProducerIdentity(2000, 0))


def test_last_epoch_is_followed_by_a_new_id() -> None:
    bench = Bench(0)
    bench.accumulator.identified(ProducerIdentity(1000, 32_767))
    (batch,) = bench.fill(1)
    bench.drain()
    bench.accumulator.completion.refused(batch, OUT_OF_ORDER, bench.now)
    assert bench.accumulator.producer.current is None
    bench.now = 1
    assert bench.drain() == []
    bench.accumulator.identified(ProducerIdentity(2000, 0))
    assert bench.drain() == [batch]
    assert batch.identity == ProducerIdentity(2000, 0)


def test_order_holds_without_idempotence() -> None:
    bench = Bench(0, idempotent=False)
    one, two = bench.fill(2)
    bench.drain()
    bench.accumulator.completion.refused(one, LOST, bench.now)
    bench.now = 1
    assert (bench.drain(), bench.drain()) == ([one], [two])
    assert one.sequence is None


# --- expiry ---------------------------------------------------------------------------------------


def test_unsent_batches_expire_without_new_epoch() -> None:
    """Batches expire in order."""
    bench = Bench(0)
    one, two = bench.fill(2)
    bench.now = 1
    (three,) = bench.fill(1)
    bench.accumulator.completion.refused(one, LOST, bench.now)  # not in flight: says nothing
    assert bench.accumulator.completion.next_deadline() == 60
    assert bench.accumulator.completion.expire(59.9) == 0
    assert bench.accumulator.completion.expire(60) == 2
    assert isinstance(one.error, DeliveryTimeoutError)
    assert isinstance(two.error, DeliveryTimeoutError)
    assert bench.accumulator.completion.next_deadline() == 61
    assert bench.drain() == [three]
    assert (three.sequence, three.identity) == (0, ProducerIdentity(1000, 0))


def test_batch_expired_in_flight_keeps_its_place() -> None:
    """It fails at its deadline, and its room and number are kept until its response arrives."""
    bench = Bench(0)
    (one,) = bench.fill(1)
    bench.drain()
    assert bench.accumulator.completion.expire(60) == 1
    assert one.settled
    assert bench.accumulator.used > 0
    assert bench.accumulator.completion.next_deadline() == math.inf
    bench.accumulator.completion.succeeded(one, 0, None)
    assert isinstance(one.error, DeliveryTimeoutError), "the outcome stays"
    assert bench.accumulator.used == 0
    (two,) = bench.fill(1)
    assert bench.drain() == [two]
    assert (two.sequence, two.identity) == (1, ProducerIdentity(1000, 0)), (
        "the broker has it: no gap"
    )


def test_unknown_outcome_begins_a_new_epoch() -> None:
    bench = Bench(0)
    (one,) = bench.fill(1)
    bench.drain()
    bench.accumulator.completion.refused(one, LOST, bench.now)
    bench.now = 60
    (two,) = bench.fill(1)
    bench.accumulator.completion.expire(60)
    assert bench.drain() == [two]
    assert (two.sequence, two.identity) == (0, ProducerIdentity(1000, 1))


def test_follower_proves_the_lost_batch() -> None:
    """A batch acknowledged behind an expired one shows that the expired one is in the log."""
    bench = Bench(0)
    bench.prove()
    (one,) = bench.fill(1)
    bench.now = 30
    two, three = bench.fill(2)
    assert (bench.drain(), bench.drain()) == ([one], [two])
    bench.accumulator.completion.refused(one, LOST, bench.now)
    bench.accumulator.completion.refused(two, LOST, bench.now)
    bench.now = 60
    bench.accumulator.completion.expire(60)
    assert bench.drain() == [two]
    assert two.sequence == 2, "it may be in the log: the same number again"
    assert bench.drain() == [], "no new number yet"
    bench.accumulator.completion.succeeded(two, 1, None)
    assert bench.drain() == [three]
    assert (three.sequence, three.identity) == (3, ProducerIdentity(1000, 0)), (
        "two in the log: so is one"
    )


def test_refused_follower_begins_a_new_epoch() -> None:
    """A batch refused behind an expired one shows that the expired one is not in the log."""
    bench = Bench(0)
    bench.prove()
    (one,) = bench.fill(1)
    bench.now = 30
    two, three = bench.fill(2)
    assert (bench.drain(), bench.drain()) == ([one], [two])
    bench.accumulator.completion.expire(60)
    bench.now = 60
    bench.accumulator.completion.refused(one, LOST, bench.now)
    assert bench.drain() == []
    bench.accumulator.completion.refused(two, OUT_OF_ORDER, bench.now)
    bench.now = 61
    assert bench.drain() == [two]
    assert (two.sequence, two.identity) == (0, ProducerIdentity(1000, 1))
    bench.accumulator.completion.succeeded(two, 0, None)
    assert bench.drain() == [three]


# --- too large for the broker ---------------------------------------------------------------------


def test_oversized_batch_is_split_until_it_fits() -> None:
    bench = Bench(0)
    tickets = [bench.put(b"%d" % number, partition=0, timestamp=number) for number in range(5)]
    bench.accumulator.close_open()
    sent: list[tuple[int | None, list[bytes | None]]] = []
    offset = 0
    while bench.accumulator.unsettled():
        (batch,) = bench.drain()
        if batch.count > 2:
            bench.accumulator.completion.refused(batch, from_code(10), bench.now)
            continue
        found = [record.value for record in records(batch)]
        sent.append((batch.sequence, found))
        bench.accumulator.completion.succeeded(batch, offset, None)
        offset += len(found)
    assert sent == [(0, [b"0", b"1"]), (2, [b"2"]), (3, [b"3", b"4"])]
    assert [outcome(ticket).offset for ticket in tickets] == [0, 1, 2, 3, 4]
    assert [outcome(ticket).timestamp for ticket in tickets] == [0, 1, 2, 3, 4]
    assert bench.accumulator.used == 0


def test_unnumbered_batch_is_split_after_loss() -> None:
    """Without idempotence a batch that may be in the log is split, as it would be resent whole."""
    bench = Bench(0, idempotent=False)
    tickets = [bench.put(b"%d" % number, partition=0) for number in range(4)]
    bench.accumulator.close_open()
    bench.drain()
    bench.accumulator.completion.refused(tickets[0][0], LOST, bench.now)
    bench.now = 1
    bench.drain()
    bench.accumulator.completion.refused(tickets[0][0], from_code(10), bench.now)
    assert [
        [record.value for record in records(batch)] for batch in bench.accumulator.unsettled()
    ] == [[b"0", b"1"], [b"2", b"3"]]


def test_numbered_batch_is_split_after_loss() -> None:
    bench = Bench(0)
    tickets = [bench.put(b"%d" % number, partition=0) for number in range(4)]
    bench.accumulator.close_open()
    bench.drain()
    bench.accumulator.completion.refused(tickets[0][0], LOST, bench.now)
    bench.now = 1
    bench.drain()
    bench.accumulator.completion.refused(tickets[0][0], from_code(10), bench.now)
    for sequence in (0, 2):
        (part,) = bench.drain()
        assert part.sequence == sequence
        bench.accumulator.completion.succeeded(part, sequence, None)
    assert [outcome(ticket).offset for ticket in tickets] == [0, 1, 2, 3]


@pytest.mark.parametrize("code", [45, 46, 59])
def test_split_piece_keeps_its_number(
    code: int,
) -> None:
    """The broker may have the whole batch, so a refused piece is not sent under another number."""
    bench = Bench(0)
    bench.prove()
    tickets = [bench.put(b"%d" % number, partition=0) for number in range(4)]
    bench.accumulator.close_open()
    bench.drain()
    bench.accumulator.completion.refused(tickets[0][0], LOST, bench.now)
    bench.now = 1
    bench.drain()
    bench.accumulator.completion.refused(tickets[0][0], from_code(10), bench.now)
    for _ in range(2):
        (part,) = bench.drain()
        bench.accumulator.completion.refused(part, from_code(code), bench.now)
    if code == 46:  # the broker says that it has it
        assert [outcome(ticket).offset for ticket in tickets] == [None] * 4
    else:
        assert [ticket[0].part(ticket[1])[0].maybe_written for ticket in tickets] == [True] * 4
    assert bench.accumulator.used == 0


@pytest.mark.parametrize("error", [LOST, from_code(10), from_code(19), from_code(45)])
def test_late_error_does_not_revive_expired_batch(error: TrikafkaError) -> None:
    """An error that arrives after the expiry neither retries nor splits the batch."""
    bench = Bench(0)
    bench.prove()
    tickets = [bench.put(b"%d" % number, partition=0) for number in range(4)]
    bench.accumulator.close_open()
    assert len(bench.drain()) == 1
    assert bench.accumulator.completion.expire(60) == 1
    bench.accumulator.completion.refused(tickets[0][0], error, 61)
    assert bench.drain() == []
    assert bench.accumulator.batches() == []
    assert bench.accumulator.used == 0
    assert bench.accumulator.counters.batches_split == 0
    assert bench.accumulator.counters.failed == 4
    with pytest.raises(DeliveryTimeoutError):
        outcome(tickets[3])


def test_batches_of_a_request_expire_apart() -> None:
    bench = Bench(0, 0)
    (old,) = bench.fill(1, 0)
    bench.now = 1
    (young,) = bench.fill(1, 1)
    assert bench.drain() == [old, young], "one request"
    assert bench.accumulator.completion.expire(60.5) == 1
    assert (old.settled, young.settled) == (True, False)
    assert bench.accumulator.completion.next_deadline() == 61
    bench.accumulator.completion.succeeded(old, 0, None)
    bench.accumulator.completion.succeeded(young, 0, None)
    assert isinstance(old.error, DeliveryTimeoutError)
    assert young.error is None


@pytest.mark.parametrize("code", [45, 59])
def test_old_out_of_order_batch_counts_as_delivered(code: int) -> None:
    """The response to the first of seven batches is lost, and those to the six behind it arrive.

    The broker no longer knows that it has the first one.
    """
    bench = Bench(0)
    bench.prove()
    lost, *others = bench.fill(7)
    for batch in (lost, *others):
        assert bench.drain() == [batch]
    for offset, batch in enumerate(others):
        bench.accumulator.completion.succeeded(batch, 2 + offset, None)
    bench.accumulator.completion.refused(lost, LOST, bench.now)
    bench.now = 1
    assert bench.drain() == [lost]
    bench.accumulator.completion.refused(lost, from_code(code), bench.now)
    assert (lost.settled, lost.error, lost.base_offset) == (True, None, None)
    (more,) = bench.fill(1)
    assert bench.drain() == [more]
    assert (more.sequence, more.identity) == (8, ProducerIdentity(1000, 0)), "no new epoch"


def test_record_too_large_for_the_broker_fails() -> None:
    bench = Bench(0)
    ticket = bench.put(partition=0)
    bench.accumulator.close_open()
    bench.drain()
    bench.accumulator.completion.refused(ticket[0], from_code(10), bench.now)
    with pytest.raises(RecordTooLargeError):
        outcome(ticket)


def test_abort_fails_all_and_frees_the_room() -> None:
    bench = Bench(0, None)
    bench.fill(2, 0)
    bench.drain()
    tickets = [bench.put(partition=1), bench.put(partition=0)]
    bench.accumulator.abort(RuntimeError("closed"))
    assert bench.accumulator.used == 0
    for ticket in tickets:
        with pytest.raises(RuntimeError):
            outcome(ticket)
    assert bench.accumulator.counters.accepted == bench.accumulator.counters.failed == 4
