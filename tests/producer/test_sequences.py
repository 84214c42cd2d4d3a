"""Sequence numbers: rows of what happened against what the next number is."""

from __future__ import annotations

import pytest

from trikafka._state.sequences import FORGOTTEN_AFTER, MAX_EPOCH, Identity, PartitionSequences, next_epoch, on_wire

FIRST = Identity(1000, 0)
STRAYS = frozenset({1})


def test_numbers_follow_each_other_and_keep_the_identity_they_began_with() -> None:
    sequences = PartitionSequences()
    assert [sequences.assign(count, FIRST, 0.0) for count in (3, 1, 5)] == [0, 3, 4]
    assert sequences.assign(1, Identity(2000, 0), 0.0) == 9
    assert sequences.identity == FIRST


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
    sequences = PartitionSequences()
    sequences.assign(10, FIRST, 0.0)
    sequences.lose(*lost, STRAYS)
    if acknowledged is not None:
        sequences.acknowledge(*acknowledged, 0.0)
    assert sequences.lost == still
    assert sequences.strays == (STRAYS if still is not None else set())


def test_what_the_broker_has_is_not_lost() -> None:
    sequences = PartitionSequences()
    sequences.assign(10, FIRST, 0.0)
    sequences.acknowledge(5, 5, 0.0)
    sequences.lose(0, 5, STRAYS)
    assert (sequences.lost, sequences.strays) == (None, set())


def test_brokers_that_may_read_what_is_lost_still() -> None:
    sequences = PartitionSequences()
    sequences.assign(10, FIRST, 0.0)
    sequences.lose(0, 3, frozenset())  # refused: nothing is under way
    assert (sequences.lost, sequences.strays) == (3, set())
    sequences.lose(3, 3, STRAYS)
    assert (sequences.lost, sequences.strays) == (6, STRAYS)


@pytest.mark.parametrize(("silent", "unproven"), [(FORGOTTEN_AFTER, False), (FORGOTTEN_AFTER + 0.001, True)])
def test_a_batch_after_a_silence_has_to_be_acknowledged_before_the_next(silent: float, unproven: bool) -> None:
    sequences = PartitionSequences()
    sequences.assign(3, FIRST, 0.0)
    assert sequences.unproven
    sequences.acknowledge(0, 3, 0.0)
    assert not sequences.unproven
    sequences.assign(2, FIRST, silent)
    assert sequences.unproven is unproven
    sequences.acknowledge(3, 2, silent)
    assert not sequences.unproven
    sequences.assign(2, FIRST, silent + 1)
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
    sequences = PartitionSequences()
    sequences.assign(5, own, 0.0)
    sequences.lose(0, 5, STRAYS)
    sequences.restart(next_epoch(own, current))
    assert (sequences.identity, sequences.next, sequences.lost, sequences.acknowledged) == (then, 0, None, 0)
    assert not sequences.strays


@pytest.mark.parametrize(("sequence", "seen"), [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, 0), (2**31 + 5, 5), (2**33 + 1, 1)])
def test_brokers_count_to_31_bits(sequence: int, seen: int) -> None:
    assert on_wire(sequence) == seen
