"""Sequence numbers: rows of what happened against what the next number is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trikafka._state.producer_state import Idempotent, Plain, ProducerState, Transactional
from trikafka._state.sequences import FORGOTTEN_AFTER, MAX_EPOCH, Identity, PartitionSequences, on_wire
from trikafka._state.transaction import ProducerTransaction
from trikafka.types import TopicPartition

FIRST = Identity(1000, 0)
PLACE = TopicPartition("t", 0)
STRAYS = frozenset({1})


def idempotent(identity: Identity = FIRST) -> tuple[Idempotent, PartitionSequences]:
    """The state of a producer that was given ``identity``, and the row of a partition in it."""
    producer = Idempotent()
    producer.initialized(identity)
    return producer, producer.partition(PLACE)


def test_numbers_follow_each_other_and_keep_the_identity_they_began_with() -> None:
    producer, sequences = idempotent()
    assert [sequences.assign(count, 0.0) for count in (3, 1, 5)] == [0, 3, 4]
    producer.initialized(Identity(2000, 0))
    assert sequences.assign(1, 0.0) == 9
    assert sequences.identity == FIRST
    assert producer.partition(PLACE) is sequences


@pytest.mark.parametrize(
    ("lost", "acknowledged", "still"),
    [
        ((0, 3), None, 3),
        ((0, 3), (3, 2), None),  # a later one in the log: so is this one
        ((3, 2), (0, 3), 5),  # an earlier one says nothing
        ((3, 2), (3, 2), None),
        ((3, 2), (5, 1), None),
    ],
)
def test_what_is_lost_is_found_by_what_comes_after(
    lost: tuple[int, int], acknowledged: tuple[int, int] | None, still: int | None
) -> None:
    _, sequences = idempotent()
    sequences.assign(10, 0.0)
    sequences.lose(*lost, STRAYS)
    if acknowledged is not None:
        sequences.acknowledge(*acknowledged, 0.0)
    assert sequences.lost == still
    assert sequences.strays == (STRAYS if still is not None else set())


def test_what_the_broker_has_is_not_lost() -> None:
    _, sequences = idempotent()
    sequences.assign(10, 0.0)
    sequences.acknowledge(5, 5, 0.0)
    sequences.lose(0, 5, STRAYS)
    assert (sequences.lost, sequences.strays) == (None, set())


def test_brokers_that_may_read_what_is_lost_still() -> None:
    _, sequences = idempotent()
    sequences.assign(10, 0.0)
    sequences.lose(0, 3, frozenset())  # refused: nothing is under way
    assert (sequences.lost, sequences.strays) == (3, set())
    sequences.lose(3, 3, STRAYS)
    assert (sequences.lost, sequences.strays) == (6, STRAYS)


@pytest.mark.parametrize(("silent", "unproven"), [(FORGOTTEN_AFTER, False), (FORGOTTEN_AFTER + 0.001, True)])
def test_a_batch_after_a_silence_has_to_be_acknowledged_before_the_next(silent: float, unproven: bool) -> None:
    _, sequences = idempotent()
    sequences.assign(3, 0.0)
    assert sequences.unproven
    sequences.acknowledge(0, 3, 0.0)
    assert not sequences.unproven
    sequences.assign(2, silent)
    assert sequences.unproven is unproven
    sequences.acknowledge(3, 2, silent)
    assert not sequences.unproven
    sequences.assign(2, silent + 1)
    assert not sequences.unproven


@pytest.mark.parametrize(
    ("own", "current", "then"),
    [
        (Identity(1, 0), Identity(1, 0), Identity(1, 1)),
        (Identity(1, 7), Identity(1, 0), Identity(1, 8)),
        (Identity(1, 7), None, Identity(1, 8)),
        (Identity(1, 7), Identity(2, 0), Identity(2, 0)),
        (Identity(1, MAX_EPOCH), Identity(1, 0), None),
        (Identity(1, MAX_EPOCH), Identity(2, 0), Identity(2, 0)),
    ],
)
def test_a_new_epoch_begins_at_0(own: Identity, current: Identity | None, then: Identity | None) -> None:
    producer, sequences = idempotent(own)
    sequences.assign(5, 0.0)
    sequences.lose(0, 5, STRAYS)
    if current is None:
        producer.fenced(RuntimeError())
    else:
        producer.initialized(current)
    sequences.restart()
    assert (sequences.identity, sequences.next, sequences.lost, sequences.acknowledged) == (then, 0, None, 0)
    assert not sequences.strays
    assert producer.current == (current if then is not None else None), "an id whose epochs are used up is asked for anew"


def test_a_partition_goes_on_under_its_own_epoch_and_others_under_theirs() -> None:
    producer, sequences = idempotent()
    other = producer.partition(TopicPartition("t", 1))
    for row in (sequences, other):
        row.assign(5, 0.0)
    sequences.restart()
    assert (sequences.identity, other.identity) == (Identity(1000, 1), FIRST)
    sequences.renounce()
    assert (sequences.identity, other.next) == (None, 5)
    assert sequences.assign(1, 0.0) == 0
    assert sequences.identity == FIRST


def transactional() -> Transactional:
    transaction = ProducerTransaction()
    transaction.initializing()
    transaction.initialized(FIRST)
    return Transactional(transaction)


@pytest.mark.parametrize(("kind", "anew"), [(Idempotent, True), (transactional, False)])
def test_who_begins_anew_when_nobody_can_tell_of_what_is_lost(kind: Callable[[], ProducerState], anew: bool) -> None:
    producer = kind()
    producer.initialized(FIRST)
    sequences = producer.partition(PLACE)
    sequences.assign(5, 0.0)
    sequences.leave_behind()
    assert (sequences.identity, sequences.next) == (FIRST, 5), "nothing is lost"
    sequences.lose(0, 5, STRAYS)
    sequences.leave_behind()
    assert (sequences.lost is None) is anew
    assert sequences.identity == (Identity(1000, 1) if anew else FIRST)


@pytest.mark.parametrize(
    ("first", "numbered", "lost", "unproven", "admitted"),
    [
        (True, True, False, False, True),
        (False, True, False, False, True),
        (True, True, True, False, True),  # its outcome will tell of what is lost
        (True, False, True, False, False),
        (False, True, True, False, False),
        (True, False, False, True, True),
        (False, False, False, True, False),
    ],
)
def test_what_the_numbers_admit(first: bool, numbered: bool, lost: bool, unproven: bool, admitted: bool) -> None:
    _, sequences = idempotent()
    sequences.assign(5, 0.0)
    if not unproven:
        sequences.acknowledge(0, 2, 0.0)
        sequences.acknowledge(2, 3, 0.0)
    if lost:
        sequences.assign(1, 0.0)
        sequences.lose(5, 1, STRAYS)
    assert sequences.admits(first=first, numbered=numbered) is admitted


def test_without_idempotence_there_is_nothing_to_number() -> None:
    producer = Plain()
    producer.initialized(FIRST)
    assert not producer.numbered
    assert producer.current is None
    assert producer.admits(producer.partition(PLACE))


@pytest.mark.parametrize(("sequence", "seen"), [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**31 + 5, 5), (2**33 + 1, 1)])
def test_brokers_count_to_31_bits(sequence: int, seen: int) -> None:
    assert on_wire(sequence) == seen
