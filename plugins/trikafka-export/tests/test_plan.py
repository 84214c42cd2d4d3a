"""Plans: ranges, names, refusals, and their form on disk. Pure."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trikafka_export.piece_log import ExportPiece, StagedFile
from trikafka_export.plan import (
    ExportWork,
    SourceView,
    after,
    check_identity,
    complete,
    exported_up_to,
    file_name,
    isolation_of,
    new_plan,
    split,
    turns,
    work_of,
)
from trikafka_export.plan_json import (
    files_from_json,
    letters_from_json,
    manifest_to_json,
    plan_from_json,
    plan_to_json,
    state_from_json,
)

from trikafka import ConfigurationError, ExportError, TopicPartition
from trikafka.interfaces import ExportPlan, ExportState, PlannedRange, RangeResult, WrittenFile

TP = TopicPartition("t", 0)
#: More than Kafka allows, but nothing that leads out of a directory.
TOPICS = st.text(st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1)


def plan_of(start: int, end: int, most: int = 10) -> ExportPlan:
    view = SourceView("c", {"t": "id"}, {TP: start}, {TP: end})
    plan = new_plan(
        ExportState(),
        view,
        ExportWork({TP: start}),
        max_records_per_file=most,
        isolation_level="read_committed",
        format={},
    )
    assert plan is not None
    return plan


def whole(planned: PlannedRange) -> RangeResult:
    file = WrittenFile(planned, planned.name, planned.start, planned.end, 1, 2)
    return RangeResult(planned, planned.end, (file,))


@given(start=st.integers(0, 2**62), width=st.integers(0, 5000), most=st.integers(1, 700))
def test_split_covers_the_range_once(start: int, width: int, most: int) -> None:
    parts = split(start, start + width, most)
    assert [offset for low, high in parts for offset in (low, high)][1:-1:2] == [
        low for low, _ in parts[1:]
    ]
    assert sum(high - low for low, high in parts) == width
    assert all(0 < high - low <= most for low, high in parts)
    assert len(parts) == -(-width // most)


def test_names_sort_like_offsets() -> None:
    """Readers that glob see them, and no name is over 255 bytes."""
    assert file_name("t", 3, 0, 250) == "t-00003-00000000000000000000-00000000000000000250.parquet"
    names = [file_name("t", 1, start, start + 1) for start in (5, 40, 300, 10**18)]
    assert names == sorted(names)
    assert file_name("_schemas", 0, 0, 1)[0] not in "_."
    long = [file_name("x" * 248 + last, 99_999, 0, 2**63 - 1) for last in "ab"]
    assert long[0] != long[1]
    assert max(len(name.encode()) for name in long) <= 255


@given(
    st.lists(
        st.tuples(TOPICS, st.integers(0, 9), st.integers(0, 2**62), st.integers(1, 50)),
        min_size=1,
        max_size=5,
    )
)
def test_stored_plan_is_read_unchanged(parts: list[tuple[str, int, int, int]]) -> None:
    beginnings = {TopicPartition(topic, number): start for topic, number, start, _ in parts}
    ends = {
        TopicPartition(topic, number): beginnings[TopicPartition(topic, number)] + width
        for topic, number, _, width in parts
    }
    view = SourceView(None, {tp.topic: None for tp in beginnings}, beginnings, ends)
    plan = new_plan(
        ExportState(),
        view,
        ExportWork(beginnings),
        max_records_per_file=20,
        isolation_level="read_uncommitted",
        format={"a": [1]},
        start=1_700_000_000_000,
    )
    assert plan is not None
    assert dict(plan.since) == dict.fromkeys(plan.topic_ids, 1_700_000_000_000)
    assert plan_from_json(plan_to_json(plan), "here") == plan
    manifest = complete(plan, [whole(planned) for planned in reversed(plan.ranges)])
    assert plan_from_json(manifest_to_json(manifest), "here") == plan
    assert json.loads(manifest_to_json(manifest))["rows"] == len(plan.ranges) == manifest.rows


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
def test_damaged_plan_is_an_error_with_its_file(text: str | bytes) -> None:
    with pytest.raises(ExportError, match=r"plan-7\.json"):
        plan_from_json(text, "plan-7.json")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_with_the_file(text: bytes) -> None:
    with pytest.raises(ExportError, match=r"plan-7\.json"):
        plan_from_json(text, "plan-7.json")


def unsummed(text: str) -> Any:
    """Return a plan or manifest as an older release wrote it: without a checksum."""
    body = json.loads(text)
    del body["checksum"]
    return body


@pytest.mark.parametrize(
    "name",
    ["../x.parquet", "/x.parquet", "a/x.parquet", "..", ".", "", "a\\x.parquet", "x\0.parquet"],
)
def test_name_outside_the_destination_is_refused(name: str) -> None:
    body = unsummed(plan_to_json(plan_of(0, 5)))
    body["ranges"][0]["planned_file"] = name
    with pytest.raises(
        ExportError,
        match=r"plan-7\.json cannot be used: .* is not the name of a file in the destination",
    ):
        plan_from_json(json.dumps(body), "plan-7.json")


def test_topic_outside_the_destination_is_refused() -> None:
    tp = TopicPartition("../t", 0)
    view = SourceView("c", {tp.topic: None}, {tp: 0}, {tp: 5})
    with pytest.raises(ExportError, match="is not the name of a file"):
        new_plan(
            ExportState(),
            view,
            ExportWork({tp: 0}),
            max_records_per_file=9,
            isolation_level="read_committed",
            format={},
        )


def test_plan_of_a_later_version_is_refused() -> None:
    text = plan_to_json(plan_of(0, 5)).replace('"version": 2', '"version": 9')
    with pytest.raises(ExportError, match="format version 9"):
        plan_from_json(text, "x")


def test_recreated_topic_is_refused() -> None:
    """So is another cluster."""
    state = ExportState(1, "c", {"t": "old"}, {TP: 5})
    with pytest.raises(ExportError, match="deleted and created again"):
        check_identity(state, SourceView("c", {"t": "new"}, {}, {}), "d")
    with pytest.raises(ExportError, match="another cluster"):
        check_identity(state, SourceView("d", {"t": "old"}, {}, {}), "d")
    check_identity(state, SourceView(None, {"t": None, "u": "x"}, {}, {}), "d")


def test_new_partition_begins_at_its_first_offset() -> None:
    view = SourceView(
        None, {}, {TP: 3, TopicPartition("t", 1): 40}, {TP: 9, TopicPartition("t", 1): 50}
    )
    state = ExportState(1, None, {}, {TP: 9})
    assert work_of(state, view, {}, fail_on_data_loss=True) == ExportWork(
        {TP: 9, TopicPartition("t", 1): 40}
    )


def test_positions_of_other_topics_are_kept() -> None:
    other = TopicPartition("other", 0)
    view = SourceView("c", {"t": "id"}, {TP: 0}, {TP: 4})
    state = ExportState(3, "c", {"other": "o"}, {other: 77})
    plan = new_plan(
        state,
        view,
        ExportWork({TP: 0}),
        max_records_per_file=9,
        isolation_level="read_uncommitted",
        format={},
    )
    assert plan is not None
    assert (plan.number, plan.positions, plan.topic_ids) == (
        4,
        {other: 77, TP: 4},
        {"other": "o", "t": "id"},
    )


@pytest.mark.parametrize("results", [0, 2])
def test_sink_returns_one_result_for_each_range(results: int) -> None:
    plan = plan_of(0, 5)
    with pytest.raises(ExportError, match="did not return one result"):
        complete(plan, [whole(plan.ranges[0])] * results)


@pytest.mark.parametrize("reached", [-1, 6])
def test_result_outside_of_its_range_is_refused(reached: int) -> None:
    (planned,) = plan_of(0, 5).ranges
    with pytest.raises(ExportError, match=rf"ends at {reached}, outside of it"):
        complete(plan_of(0, 5), [RangeResult(planned, reached)])


def spoiled(**changes: object) -> str:
    body = unsummed(plan_to_json(plan_of(0, 25)))
    for path, value in changes.items():
        where, _, name = path.partition("__")
        target = body["ranges"][int(where[1:])] if where[1:].isdigit() else body["positions"][where]
        target[name] = value
    return json.dumps(body)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r0__from": 9, "r0__to": 3}, r"t-0 \[9, 3\), which is not a range"),
        ({"r0__from": 8}, r"not a range of offsets"),
        ({"r0__from": -4}, "not a range of offsets"),
        ({"r1__from": 3}, "which overlap"),
        ({"r2__to": 90}, "beyond its own position 25"),
        ({"t__0": 3}, "beyond its own position 3"),
        ({"t__5": -3}, "positions that are not offsets: -3 of t-5"),
        ({"r0__partition": -1}, "not a range of offsets"),
    ],
)
def test_impossible_ranges_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        plan_from_json(spoiled(**changes), "plan-7.json")


def test_loss_of_a_partition_is_its_own() -> None:
    """A partition loses records at either end of its log; the others go on."""
    other, third = TopicPartition("t", 1), TopicPartition("t", 2)
    view = SourceView(None, {}, {TP: 5, other: 0, third: 0}, {TP: 9, other: 2, third: 7})
    state = ExportState(1, None, {}, {TP: 3, other: 4, third: 6})
    strict = work_of(state, view, {}, fail_on_data_loss=True)
    assert (dict(strict.starts), set(strict.errors), strict.lost) == ({third: 6}, {TP, other}, ())
    lenient = work_of(state, view, {}, fail_on_data_loss=False)
    assert (dict(lenient.starts), set(lenient.errors)) == ({TP: 5, third: 6}, {other})
    assert [(lost.start, lost.end) for lost in lenient.lost] == [(3, 5)]


def test_carried_ranges_come_first() -> None:
    """The group's offset stands before them."""
    plan = plan_of(0, 25)
    results = [whole(planned) for planned in plan.ranges]
    results[1] = RangeResult(
        plan.ranges[1], plan.ranges[1].start + 2, error=ExportError("no leader")
    )
    manifest = complete(plan, results)
    state = state_from_json(manifest_to_json(manifest), "here")
    assert state == after(manifest)
    assert [(left.start, left.end) for left in state.carried] == [
        (plan.ranges[1].start + 2, plan.ranges[1].end)
    ]
    assert exported_up_to(state) == {TP: plan.ranges[1].start + 2}
    view = SourceView("c", {"t": "id"}, {TP: 0}, {TP: 30})
    following = new_plan(
        state,
        view,
        work_of(state, view, {}, fail_on_data_loss=True),
        max_records_per_file=100,
        isolation_level="x",
        format={},
    )
    assert following is not None
    assert [(planned.start, planned.end) for planned in following.ranges] == [(10, 16), (25, 30)]


def test_partitions_take_turns() -> None:
    ranges = [
        PlannedRange("t", partition, start, start + 1, "")
        for partition in (0, 1, 2)
        for start in range(2 + partition)
    ]
    order = [planned.partition for planned in turns(ranges)]
    assert order == [0, 1, 2, 0, 1, 2, 1, 2, 2]


def test_plan_of_the_first_format_is_read() -> None:
    file = {"topic": "t", "partition": 0, "from": 0, "to": 5, "planned_file": "f.parquet"}
    body = {
        "version": 1,
        "number": 1,
        "plan_id": "x",
        "created": "then",
        "cluster_id": "c",
        "topic_ids": {"t": "id"},
    }
    body |= {"isolation_level": "read_uncommitted", "positions": {"t": {"0": 5}}}
    text = json.dumps(body | {"files": [{**file, "file": "f.parquet", "rows": 5, "bytes": 9}]})
    state = state_from_json(text, "here")
    assert (state.positions, state.isolation_level, state.format, state.carried) == (
        {TP: 5},
        "read_uncommitted",
        None,
        (),
    )
    assert [(f.name, f.rows, f.bytes) for f in files_from_json(text, "here")] == [
        ("f.parquet", 5, 9)
    ]


def test_destination_keeps_its_isolation() -> None:
    assert isolation_of(ExportState(), None, "d") == "read_committed"
    assert (
        isolation_of(ExportState(isolation_level="read_uncommitted"), None, "d")
        == "read_uncommitted"
    )
    with pytest.raises(
        ConfigurationError, match="was exported with isolation_level='read_committed' and keeps it"
    ):
        isolation_of(ExportState(isolation_level="read_committed"), "read_uncommitted", "d")


@pytest.mark.parametrize("field", ["from", "to", "rows", "bytes", "crc32c", "version", "name"])
@pytest.mark.parametrize("value", ["1e999", "-1", "null", "[]", "{}", '"../../etc/passwd"'])
@pytest.mark.parametrize("kind", ["files", "letters"])
def test_a_damaged_file_in_a_manifest_is_an_error(kind: str, field: str, value: str) -> None:
    plan = plan_of(0, 5)
    (planned,) = plan.ranges
    file = WrittenFile(planned, "f", 0, 5, 5, 9, version=1, crc32c="00000000")
    result = RangeResult(planned, 5, files=(file,), letters=(file,))
    body = unsummed(manifest_to_json(complete(plan, [result])))
    body["ranges"][0][kind][0][field] = "HERE"
    text = json.dumps(body).replace('"HERE"', value)
    read = letters_from_json if kind == "letters" else files_from_json
    with suppress(ExportError):
        (found,) = read(text, "here")
        assert min(found.start, found.end, found.rows, found.bytes) >= 0
        assert ".." not in found.name


@pytest.mark.parametrize(
    "damage",
    [
        {"crc32c": []},
        {"crc32c": None},
        {"crc32c": {"s": 5}},
        {"files": [["s", "f", float("inf"), 9, True]]},
        {"from": float("inf")},
        {"dead_letters": float("-inf")},
        {"lost": [[0, float("inf"), "x"]]},
    ],
)
def test_a_damaged_record_of_a_piece_is_refused(damage: dict[str, object]) -> None:
    piece = ExportPiece(0, 5, (StagedFile("s", "f", 5, 9, crc32c="00000000"),))
    with pytest.raises((ExportError, ValueError, KeyError, TypeError)):
        ExportPiece.from_json(piece.to_json() | damage, "here")
