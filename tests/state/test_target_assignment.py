"""What a member of the consumer protocol owns and is to own, while the broker changes its mind: each way leads to the target."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from trikafka import TopicPartition
from trikafka._state.target_assignment import TargetAssignment

A, B, NEW_A = (uuid.UUID(int=number) for number in (1, 2, 3))
NAMES = {A: "a", B: "b"}


def anything(topic: str) -> bool:
    return True


def bring_about(target: TargetAssignment, names: dict[uuid.UUID, str] = NAMES) -> list[tuple[str, list[TopicPartition]]]:
    """Do the steps to the end, and say what they were."""
    done: list[tuple[str, list[TopicPartition]]] = []
    before: set[TopicPartition] = set()
    while (step := target.step(names, anything)).revoke:
        done.append(("revoke", step.revoke))
        target.gave_up(step.revoke)
    before = {TopicPartition(names[topic_id], number) for topic_id, number in target.report.owned if topic_id in names}
    if added := [tp for tp in step.wanted if tp not in before]:
        done.append(("add", added))
    target.took(step)
    return done


def test_a_target_is_reached_by_giving_up_first() -> None:
    target = TargetAssignment()
    assert target.reached
    target.aim([(A, 0), (A, 1)])
    assert not target.reached
    assert bring_about(target) == [("add", [("a", 0), ("a", 1)])]
    assert target.reached
    target.aim([(A, 1), (B, 0)])
    assert bring_about(target) == [("revoke", [("a", 0)]), ("add", [("b", 0)])]
    assert target.report.by_topic() == {A: [1], B: [0]}


def test_the_same_target_again_is_no_news_but_each_other_one_is_to_be_reported() -> None:
    target = TargetAssignment()
    target.aim([(A, 0)])
    bring_about(target)
    report = target.report
    target.aim([(A, 0)])
    assert target.reached
    target.aim([(A, 0), (B, 0)])
    target.aim([(A, 0)])  # taken back before anything was done
    assert not target.reached
    bring_about(target)
    assert target.report != report
    assert target.report.owned == report.owned


def test_what_has_no_name_waits_and_what_is_owned_stays() -> None:
    target = TargetAssignment()
    target.aim([(A, 0)])
    bring_about(target)
    target.aim([(A, 0), (B, 0)])
    step = target.step({A: "a"}, anything)
    assert (step.revoke, step.added, step.unnamed) == ([], False, {B})
    target.took(step)
    assert not target.reached
    gone = target.step({}, anything)  # the cluster does not show a topic any more: its name is known all the same
    assert gone.revoke == []
    target.name({B: "b"})
    assert bring_about(target, {A: "a"})[-1][0] == "add"
    assert target.reached


def test_a_topic_made_anew_is_another() -> None:
    target = TargetAssignment()
    target.aim([(A, 0)])
    bring_about(target)
    target.aim([(NEW_A, 0)])
    step = target.step({NEW_A: "a"}, anything)
    assert step.revoke == [("a", 0)]
    target.aim([(A, 0), (NEW_A, 0)])  # a broker that has not noticed yet
    assert target.step({NEW_A: "a"}, anything).wanted == {("a", 0): NEW_A}


def test_a_topic_that_is_not_followed_goes_and_one_that_was_not_for_a_moment_comes_back() -> None:
    target = TargetAssignment()
    target.aim([(A, 0), (B, 0)])
    bring_about(target)
    assert target.step(NAMES, lambda topic: topic == "a").revoke == [("b", 0)]
    step = target.step(NAMES, anything, [TopicPartition("b", 0)])
    assert (step.revoke, step.added) == ([("b", 0)], True)


parts = st.frozensets(st.tuples(st.sampled_from([A, B]), st.integers(0, 3)))


@given(st.lists(parts))
def test_whatever_the_broker_wants_one_after_the_other(targets: list[frozenset[tuple[uuid.UUID, int]]]) -> None:
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
