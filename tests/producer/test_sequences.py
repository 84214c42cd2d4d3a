"""Sequence numbers: rows of events and the next number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trikafka._state.producer.sequences import (
    FORGOTTEN_AFTER,
    MAX_EPOCH,
    Idempotent,
    NonIdempotent,
    PartitionSequences,
    ProducerIdentity,
    ProducerState,
    Transactional,
    on_wire,
)
from trikafka._state.producer.transaction_state import ProducerTransaction
from trikafka.types import TopicPartition

FIRST = ProducerIdentity(1000, 0)
PLACE = TopicPartition("t", 0)
STRAYS = frozenset({1})


def idempotent(identity: ProducerIdentity = FIRST) -> tuple[Idempotent, PartitionSequences]:
    """Return the state of a producer with ``identity`` and the row of a partition in it."""
    producer = Idempotent()
    producer.initialized(identity)
    return producer, producer.partition(PLACE)


def test_numbers_keep_their_first_identity() -> None:
    producer, sequences = idempotent()
    assert [sequences.assign(count, 0.0) for count in (3, 1, 5)] == [0, 3, 4]
    producer.initialized(ProducerIdentity(2000, 0))
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
def test_later_acknowledgement_proves_the_lost(
    lost: tuple[int, int], acknowledged: tuple[int, int] | None, still: int | None
) -> None:
    _, sequences = idempotent()
    sequences.assign(10, 0.0)
    sequences.lose(*lost, STRAYS)
    if acknowledged is not None:
        sequences.acknowledge(*acknowledged, 0.0)
    assert sequences.lost == still
    assert sequences.possibly_in_flight_at == (STRAYS if still is not None else set())


def test_acknowledged_number_is_not_lost() -> None:
    _, sequences = idempotent()
    sequences.assign(10, 0.0)
    sequences.acknowledge(5, 5, 0.0)
    sequences.lose(0, 5, STRAYS)
    assert (sequences.lost, sequences.possibly_in_flight_at) == (None, set())


def test_brokers_with_lost_bytes_are_kept() -> None:
    _, sequences = idempotent()
    sequences.assign(10, 0.0)
    sequences.lose(0, 3, frozenset())  # refused: nothing is under way
    assert (sequences.lost, sequences.possibly_in_flight_at) == (3, set())
    sequences.lose(3, 3, STRAYS)
    assert (sequences.lost, sequences.possibly_in_flight_at) == (6, STRAYS)


@pytest.mark.parametrize(
    ("silent", "unproven"), [(FORGOTTEN_AFTER, False), (FORGOTTEN_AFTER + 0.001, True)]
)
def test_silence_makes_the_next_batch_unproven(silent: float, unproven: bool) -> None:
    """After a long silence a batch must be acknowledged before the next one is sent."""
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
        (ProducerIdentity(1, 0), ProducerIdentity(1, 0), ProducerIdentity(1, 1)),
        (ProducerIdentity(1, 7), ProducerIdentity(1, 0), ProducerIdentity(1, 8)),
        (ProducerIdentity(1, 7), None, ProducerIdentity(1, 8)),
        (ProducerIdentity(1, 7), ProducerIdentity(2, 0), ProducerIdentity(2, 0)),
        (ProducerIdentity(1, MAX_EPOCH), ProducerIdentity(1, 0), None),
        (ProducerIdentity(1, MAX_EPOCH), ProducerIdentity(2, 0), ProducerIdentity(2, 0)),
    ],
)
def test_new_epoch_begins_at_0(
    own: ProducerIdentity, current: ProducerIdentity | None, then: ProducerIdentity | None
) -> None:
    producer, sequences = idempotent(own)
    sequences.assign(5, 0.0)
    sequences.lose(0, 5, STRAYS)
    if current is None:
        producer.fenced(RuntimeError())
    else:
        producer.initialized(current)
    sequences.restart()
    assert (sequences.identity, sequences.next, sequences.lost, sequences.acknowledged) == (
        then,
        0,
        None,
        0,
    )
    assert not sequences.possibly_in_flight_at
    assert producer.current == (current if then is not None else None), (
        "the producer requests a new id when the epochs are used up"
    )


def test_partitions_have_their_own_epochs() -> None:
    producer, sequences = idempotent()
    other = producer.partition(TopicPartition("t", 1))
    for row in (sequences, other):
        row.assign(5, 0.0)
    sequences.restart()
    assert (sequences.identity, other.identity) == (ProducerIdentity(1000, 1), FIRST)
    sequences.reset()
    assert (sequences.identity, other.next) == (None, 5)
    assert sequences.assign(1, 0.0) == 0
    assert sequences.identity == FIRST


def transactional() -> Transactional:
    transaction = ProducerTransaction()
    transaction.initializing()
    transaction.initialized(FIRST)
    return Transactional(transaction)


@pytest.mark.parametrize(("kind", "anew"), [(Idempotent, True), (transactional, False)])
def test_only_idempotent_leaves_a_loss_behind(
    kind: Callable[[], ProducerState], anew: bool
) -> None:
    """A transactional producer keeps its epoch within the transaction."""
    producer = kind()
    producer.initialized(FIRST)
    sequences = producer.partition(PLACE)
    sequences.assign(5, 0.0)
    sequences.leave_behind()
    assert (sequences.identity, sequences.next) == (FIRST, 5), "nothing is lost"
    sequences.lose(0, 5, STRAYS)
    sequences.leave_behind()
    assert (sequences.lost is None) is anew
    assert sequences.identity == (ProducerIdentity(1000, 1) if anew else FIRST)


@pytest.mark.parametrize(
    ("first", "numbered", "lost", "unproven", "admitted"),
    [
        (True, True, False, False, True),
        (False, True, False, False, True),
        (True, True, True, False, True),  # its outcome will show whether the lost one is in the log
        (True, False, True, False, False),
        (False, True, True, False, False),
        (True, False, False, True, True),
        (False, False, False, True, False),
    ],
)
def test_numbers_admit_a_batch(
    first: bool, numbered: bool, lost: bool, unproven: bool, admitted: bool
) -> None:
    _, sequences = idempotent()
    sequences.assign(5, 0.0)
    if not unproven:
        sequences.acknowledge(0, 2, 0.0)
        sequences.acknowledge(2, 3, 0.0)
    if lost:
        sequences.assign(1, 0.0)
        sequences.lose(5, 1, STRAYS)
    assert sequences.allows_batch(first=first, numbered=numbered) is admitted


def test_non_idempotent_producer_has_no_numbers() -> None:
    producer = NonIdempotent()
    producer.initialized(FIRST)
    assert not producer.numbered
    assert producer.current is None
    assert producer.may_send(producer.partition(PLACE))


@pytest.mark.parametrize(
    ("sequence", "seen"),
    [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**31 + 5, 5), (2**33 + 1, 1)],
)
def test_sequence_wraps_at_31_bits(sequence: int, seen: int) -> None:
    assert on_wire(sequence) == seen
