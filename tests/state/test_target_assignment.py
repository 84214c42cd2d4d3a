"""The assignment of a member of the consumer protocol, owned and targeted.

The broker may change the target at any time; every way leads to it.
"""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from trikafka import TopicPartition
from trikafka._state.group.target_assignment import TargetAssignment

A, B, NEW_A = (uuid.UUID(int=number) for number in (1, 2, 3))
NAMES = {A: "a", B: "b"}


def anything(topic: str) -> bool:
    return True


def bring_about(
    target: TargetAssignment, names: dict[uuid.UUID, str] = NAMES
) -> list[tuple[str, list[TopicPartition]]]:
    """Do all steps and return them."""
    done: list[tuple[str, list[TopicPartition]]] = []
    before: set[TopicPartition] = set()
    while (step := target.step(names, anything)).revoke:
        done.append(("revoke", step.revoke))
        target.revoked(step.revoke)
    before = {
        TopicPartition(names[topic_id], number)
        for topic_id, number in target.report.owned
        if topic_id in names
    }
    if added := [tp for tp in step.wanted if tp not in before]:
        done.append(("add", added))
    target.took(step)
    return done


def test_target_is_reached_by_revoking_first() -> None:
    target = TargetAssignment()
    assert target.reached
    target.aim([(A, 0), (A, 1)])
    assert not target.reached
    assert bring_about(target) == [("add", [("a", 0), ("a", 1)])]
    assert target.reached
    target.aim([(A, 1), (B, 0)])
    assert bring_about(target) == [("revoke", [("a", 0)]), ("add", [("b", 0)])]
    assert target.report.by_topic() == {A: [1], B: [0]}


def test_repeated_target_is_not_reported_again() -> None:
    """Every other target is to be reported, even if the owned partitions are the same."""
    target = TargetAssignment()
    target.aim([(A, 0)])
    bring_about(target)
    report = target.report
    target.aim([(A, 0)])
    assert target.reached
    target.aim([(A, 0), (B, 0)])
    target.aim([(A, 0)])  # taken back before any step was done
    assert not target.reached
    bring_about(target)
    assert target.report != report
    assert target.report.owned == report.owned


def test_topic_without_name_waits() -> None:
    """Owned partitions stay owned while the name of a topic is unknown."""
    target = TargetAssignment()
    target.aim([(A, 0)])
    bring_about(target)
    target.aim([(A, 0), (B, 0)])
    step = target.step({A: "a"}, anything)
    assert (step.revoke, step.added, step.unnamed) == ([], False, {B})
    target.took(step)
    assert not target.reached
    gone = target.step({}, anything)  # the cluster no longer shows a topic, but its name is known
    assert gone.revoke == []
    target.name({B: "b"})
    assert bring_about(target, {A: "a"})[-1][0] == "add"
    assert target.reached


def test_recreated_topic_is_another() -> None:
    target = TargetAssignment()
    target.aim([(A, 0)])
    bring_about(target)
    target.aim([(NEW_A, 0)])
    step = target.step({NEW_A: "a"}, anything)
    assert step.revoke == [("a", 0)]
    target.aim([(A, 0), (NEW_A, 0)])  # a broker that has not noticed yet
    assert target.step({NEW_A: "a"}, anything).wanted == {("a", 0): NEW_A}


def test_topic_not_followed_is_revoked() -> None:
    """One that was not followed for a moment is added again."""
    target = TargetAssignment()
    target.aim([(A, 0), (B, 0)])
    bring_about(target)
    assert target.step(NAMES, lambda topic: topic == "a").revoke == [("b", 0)]
    step = target.step(NAMES, anything, [TopicPartition("b", 0)])
    assert (step.revoke, step.added) == ([("b", 0)], True)


parts = st.frozensets(st.tuples(st.sampled_from([A, B]), st.integers(0, 3)))


@given(st.lists(parts))
def test_any_sequence_of_targets_is_reached(
    targets: list[frozenset[tuple[uuid.UUID, int]]],
) -> None:
    target = TargetAssignment()
    owned: set[TopicPartition] = set()
    for wanted in targets:
        target.aim(wanted)
        for what, tps in bring_about(target):
            assert owned.issuperset(tps) if what == "revoke" else owned.isdisjoint(tps)
            owned = owned.difference(tps) if what == "revoke" else owned.union(tps)
        assert owned == {TopicPartition(NAMES[topic_id], number) for topic_id, number in wanted}
        assert target.report.owned == wanted
        assert target.reached
