"""Plans: ranges, names, what refuses to be planned, and their form on disk. Pure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikafka import ExportError, TopicPartition
from trikafka._api.export_plan import (
    SourceView,
    check_identity,
    complete,
    file_name,
    manifest_to_json,
    new_plan,
    plan_from_json,
    plan_to_json,
    split,
    starting_offsets,
)
from trikafka.interfaces import ExportPlan, ExportState, WrittenFile

TP = TopicPartition("t", 0)
#: More than Kafka allows, but nothing that could lead out of a directory.
TOPICS = st.text(st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1)


def plan_of(start: int, end: int, most: int = 10) -> ExportPlan:
    view = SourceView("c", {"t": "id"}, {TP: start}, {TP: end})
    plan = new_plan(ExportState(), view, {TP: start}, max_records_per_file=most, isolation_level="read_committed")
    assert plan is not None
    return plan


@given(start=st.integers(0, 2**62), width=st.integers(0, 5000), most=st.integers(1, 700))
def test_a_split_covers_the_range_once_with_no_part_too_large(start: int, width: int, most: int) -> None:
    parts = split(start, start + width, most)
    assert [offset for low, high in parts for offset in (low, high)][1:-1:2] == [low for low, _ in parts[1:]]
    assert sum(high - low for low, high in parts) == width
    assert all(0 < high - low <= most for low, high in parts)
    assert len(parts) == -(-width // most)


def test_names_sort_as_offsets_do_and_are_seen_by_readers_that_glob() -> None:
    assert file_name("t", 3, 0, 250) == "t-00003-00000000000000000000-00000000000000000250.parquet"
    names = [file_name("t", 1, start, start + 1) for start in (5, 40, 300, 10**18)]
    assert names == sorted(names)
    assert file_name("_schemas", 0, 0, 1)[0] not in "_."
    long = [file_name("x" * 248 + last, 99_999, 0, 2**63 - 1) for last in "ab"]
    assert long[0] != long[1]
    assert max(len(name.encode()) for name in long) <= 255


@given(st.lists(st.tuples(TOPICS, st.integers(0, 9), st.integers(0, 2**62), st.integers(1, 50)), min_size=1, max_size=5))
def test_what_is_stored_is_read_back_as_it_was(parts: list[tuple[str, int, int, int]]) -> None:
    beginnings = {TopicPartition(topic, number): start for topic, number, start, _ in parts}
    ends = {TopicPartition(topic, number): beginnings[TopicPartition(topic, number)] + width for topic, number, _, width in parts}
    view = SourceView(None, {tp.topic: None for tp in beginnings}, beginnings, ends)
    plan = new_plan(ExportState(), view, beginnings, max_records_per_file=20, isolation_level="read_uncommitted")
    assert plan is not None
    assert plan_from_json(plan_to_json(plan), "here") == plan
    manifest = complete(plan, [WrittenFile(file, file.name, 1, 2) for file in reversed(plan.files)])
    assert plan_from_json(manifest_to_json(manifest), "here") == plan
    assert json.loads(manifest_to_json(manifest))["rows"] == len(plan.files) == manifest.rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1}',
        "nonsense",
        '{"version": 1, "number": "x"}',
        '{"version": 1, "number": Infinity}',
        b"\xff\xfe\x00",
        b"\x80",
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
    ids=lambda text: repr(text[:32]),
)
def test_a_damaged_plan_is_an_error_that_names_the_file(text: str | bytes) -> None:
    with pytest.raises(ExportError, match=r"plan-7\.json"):
        plan_from_json(text, "plan-7.json")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_plan_or_an_error_that_names_the_file(text: bytes) -> None:
    with pytest.raises(ExportError, match=r"plan-7\.json"):
        plan_from_json(text, "plan-7.json")


@pytest.mark.parametrize("name", ["../x.parquet", "/x.parquet", "a/x.parquet", "..", ".", "", "a\\x.parquet", "x\0.parquet"])
def test_a_name_that_leads_out_of_the_destination_is_refused(name: str) -> None:
    body = json.loads(plan_to_json(plan_of(0, 5)))
    body["files"][0]["planned_file"] = name
    with pytest.raises(ExportError, match=r"plan-7\.json cannot be used: .* is not the name of a file in the destination"):
        plan_from_json(json.dumps(body), "plan-7.json")


def test_a_topic_whose_name_leads_out_of_the_destination_is_not_planned() -> None:
    tp = TopicPartition("../t", 0)
    view = SourceView("c", {tp.topic: None}, {tp: 0}, {tp: 5})
    with pytest.raises(ExportError, match="is not the name of a file"):
        new_plan(ExportState(), view, {tp: 0}, max_records_per_file=9, isolation_level="read_committed")


def test_a_plan_of_a_later_version_is_not_guessed_at() -> None:
    text = plan_to_json(plan_of(0, 5)).replace('"version": 1', '"version": 9')
    with pytest.raises(ExportError, match="format version 9"):
        plan_from_json(text, "x")


def test_a_topic_created_anew_and_another_cluster_are_refused() -> None:
    state = ExportState(1, "c", {"t": "old"}, {TP: 5})
    with pytest.raises(ExportError, match="deleted and created anew"):
        check_identity(state, SourceView("c", {"t": "new"}, {}, {}), "d")
    with pytest.raises(ExportError, match="another cluster"):
        check_identity(state, SourceView("d", {"t": "old"}, {}, {}), "d")
    check_identity(state, SourceView(None, {"t": None, "u": "x"}, {}, {}), "d")


def test_new_partitions_begin_at_their_beginning_whatever_is_lost_there() -> None:
    view = SourceView(None, {}, {TP: 3, TopicPartition("t", 1): 40}, {TP: 9, TopicPartition("t", 1): 50})
    state = ExportState(1, None, {}, {TP: 9})
    assert starting_offsets(state, view, {}, fail_on_data_loss=True) == {TP: 9, TopicPartition("t", 1): 40}


def test_positions_of_other_topics_are_carried_over() -> None:
    other = TopicPartition("other", 0)
    view = SourceView("c", {"t": "id"}, {TP: 0}, {TP: 4})
    state = ExportState(3, "c", {"other": "o"}, {other: 77})
    plan = new_plan(state, view, {TP: 0}, max_records_per_file=9, isolation_level="read_uncommitted")
    assert plan is not None
    assert (plan.number, plan.positions, plan.topic_ids) == (4, {other: 77, TP: 4}, {"other": "o", "t": "id"})


@pytest.mark.parametrize("answers", [0, 2])
def test_a_sink_must_answer_for_each_file_once(answers: int) -> None:
    plan = plan_of(0, 5)
    with pytest.raises(ExportError, match="did not answer once"):
        complete(plan, [WrittenFile(plan.files[0], None, 0, 0)] * answers)
