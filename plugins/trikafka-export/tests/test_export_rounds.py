"""Rounds of an export: one partition does not stop the others (KIP-572).

What times out is repeated, and what is left is carried into the next plan.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from export_sinks import STALL_LIMIT, LinesSink
from test_flow import T0, T1, Killed, World, manifest_of
from trikafka_export.directory_pieces import RangeWork

from trikafka import BootstrapError, ExportIncompleteError, ExportProgress, KafkaTimeoutError
from trikafka.interfaces import ExportState, PlannedRange, RangeResult
from trikafka.testing import ScriptedCluster


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: object) -> Any:
    async with ScriptedCluster(topics={"t": 2, "other": 1}, nodes=2) as cluster:
        made = World(cluster, tmp_path / "out")
        cluster.move_leader("t", 0, 0)
        cluster.move_leader("t", 1, 1)
        made.fill(0, 25)
        made.fill(1, 7)
        yield made


def partitions_of(result: Any) -> list[int]:
    return [file.planned.partition for file in result.files]


async def test_missing_leader_does_not_stop_the_others(
    autojump_clock: object, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.cluster.move_leader("t", 1, None)
    begun = trio.current_time()
    with pytest.raises(
        ExportIncompleteError, match=r"t-1 could not be exported: end|t-1 could not be exported: "
    ) as caught:
        await world.export(task_timeout_ms=100_000, group_id="g")
    result = caught.value.result
    assert partitions_of(result) == [0]
    assert result.positions == {T0: 25}
    assert world.cluster.committed("g", T0).offset == 25  # type: ignore[union-attr]
    assert world.cluster.committed("g", T1) is None
    assert isinstance(caught.value.__cause__, KafkaTimeoutError)
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    warnings = [text for text in told if "tried again" in text]
    assert warnings
    assert all(
        text.startswith("exporting t-1 is skipped for now and tried again in ") for text in warnings
    )
    assert 100 <= trio.current_time() - begun < 200
    world.cluster.move_leader("t", 1, 1)
    assert partitions_of(await world.export()) == [1]
    world.check_whole()


async def test_timeouts_in_a_group_are_retried(
    autojump_clock: object, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that reads a range by several tasks raises a group."""
    write, failures = LinesSink._write, []

    async def failing(
        sink: LinesSink, work: RangeWork, planned: PlannedRange, client: Any
    ) -> RangeResult:
        if planned.partition == 1 and len(failures) < 2:
            failures.append(trio.current_time())
            late = [KafkaTimeoutError("reading", 1.0), BootstrapError("no broker")]
            return work.result(ExceptionGroup("tasks", [ExceptionGroup("more tasks", late)]))
        return await write(sink, work, planned, client)

    monkeypatch.setattr(LinesSink, "_write", failing)
    result = await world.export(task_timeout_ms=100_000)
    assert (partitions_of(result), result.rows, len(failures)) == ([0, 1], 32, 2)
    world.check_whole()


async def test_zero_task_timeout_means_one_attempt(autojump_clock: object, world: World) -> None:
    world.cluster.move_leader("t", 1, None)
    begun = trio.current_time()
    with pytest.raises(ExportIncompleteError):
        await world.export(task_timeout_ms=0, default_api_timeout_ms=7_000)
    assert 7 <= trio.current_time() - begun < 8


async def test_returning_leader_is_waited_for(autojump_clock: object, world: World) -> None:
    """The leader goes between the plan and the work.

    Its range is carried into a second plan, in the same call.
    """

    def lose_leader(step: ExportProgress) -> None:
        if step.stage == "planned" and step.plan.number == 1:
            world.cluster.move_leader("t", 1, None)
        if step.stage == "published" and step.plan.number == 2:
            world.cluster.move_leader("t", 1, 1)

    world.tell = lose_leader  # type: ignore[method-assign]
    begun = trio.current_time()
    result = await world.export(task_timeout_ms=200_000)
    assert trio.current_time() - begun > STALL_LIMIT
    assert (partitions_of(result), result.carried, result.rows) == ([0, 1], (), 32)
    first = manifest_of(world.root, 1)
    assert [(each["partition"], each["start"], each["end"]) for each in first["carried"]] == [
        (1, 0, 7)
    ]
    assert "KafkaTimeoutError" in next(
        each["error"] for each in first["ranges"] if each["partition"] == 1
    )
    world.check_whole()


async def test_brokers_lost_while_reading_return(autojump_clock: object, world: World) -> None:
    """No attempt finds a bootstrap address meanwhile, which does not end the export."""
    world.fill(0, 25)
    begun = trio.current_time()

    def go(index: int) -> None:
        if index == 1 and trio.current_time() - begun < 10:
            for node in range(2):
                world.cluster.stop(node)

    async def come_back() -> None:
        await trio.sleep(60)
        for node in range(2):
            world.cluster.start(node)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_back)
        result = await world.export(
            task_timeout_ms=200_000, max_records_per_file=10, before_file=go
        )
    assert 60 <= trio.current_time() - begun < 100
    assert (result.carried, result.rows) == ((), 57)
    world.check_whole()


@pytest.mark.parametrize("patience", [0, 100_000])
async def test_sinks_requests_before_a_plan_are_retried(
    autojump_clock: object, world: World, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    """A registry of schemas, for example."""
    attempts = []

    async def pin(self: LinesSink, state: ExportState, wanted: Any, settings: Any) -> Any:
        if wanted and trio.current_time() - begun < 60:
            attempts.append(len(wanted))
            await trio.sleep(15)
            raise KafkaTimeoutError("asking the registry", 15.0)
        return state.format or {"name": "lines"}

    monkeypatch.setattr(LinesSink, "pin", pin)
    begun = trio.current_time()
    if not patience:
        with pytest.raises(
            ExportIncompleteError, match=r"t-0, t-1 could not be exported: .*asking the registry"
        ) as caught:
            await world.export(task_timeout_ms=0)
        assert (caught.value.result.rows, attempts) == (0, [2])
        return
    result = await world.export(task_timeout_ms=patience)
    assert 60 <= trio.current_time() - begun < 90
    assert (result.rows, result.carried, set(attempts)) == (32, (), {2})
    world.check_whole()


async def test_brokers_missing_from_the_start_fail_it(autojump_clock: object, world: World) -> None:
    for node in range(2):
        world.cluster.stop(node)
    with pytest.raises(BootstrapError):
        await world.export(task_timeout_ms=200_000)
    assert trio.current_time() < 5


async def test_carried_ranges_are_not_committed(autojump_clock: object, world: World) -> None:
    def lose_leader(step: ExportProgress) -> None:
        if step.stage == "planned":
            world.cluster.move_leader("t", 1, None)

    await world.export(group_id="g")
    world.fill(0, 5)
    world.fill(1, 5)
    world.tell = lose_leader  # type: ignore[method-assign]
    with pytest.raises(ExportIncompleteError) as caught:
        await world.export(group_id="g", task_timeout_ms=0)
    assert [(each.partition, each.start, each.end) for each in caught.value.result.carried] == [
        (1, 7, 12)
    ]
    assert [world.cluster.committed("g", tp).offset for tp in (T0, T1)] == [30, 7]  # type: ignore[union-attr]
    world.cluster.move_leader("t", 1, 1)
    world.tell = lambda step: None  # type: ignore[method-assign]
    await world.export(group_id="g")
    assert [world.cluster.committed("g", tp).offset for tp in (T0, T1)] == [30, 12]  # type: ignore[union-attr]
    world.check_whole()


async def test_abandoned_plan_keeps_its_files(autojump_clock: object, world: World) -> None:
    """The next plan has the rest."""

    def stop(index: int) -> None:
        if index == 2:
            raise Killed

    with pytest.raises(Killed):
        await world.export(max_records_per_file=10, before_file=stop)
    result = await world.abandon()
    assert (result.resumed, len(result.files), result.rows) == (True, 2, 15)
    assert [(each.partition, each.start, each.end) for each in result.carried] == [
        (0, 8, 16),
        (0, 16, 25),
    ]
    again = await world.export(max_records_per_file=100)
    assert [(file.start, file.end) for file in again.files] == [(8, 16), (16, 25)]
    assert not again.resumed
    world.check_whole()


async def test_deleted_topic_does_not_block_its_place(autojump_clock: object, world: World) -> None:
    world.cluster.append("other", 0, [b"x"] * 5)
    world.kill_at = "planned"
    with pytest.raises(Killed):
        await world.export(["t", "other"])
    world.kill_at = None
    world.cluster.delete_topic("other")
    with pytest.raises(ExportIncompleteError, match="topic 'other' was deleted") as caught:
        await world.export(["t", "other"])
    assert {file.planned.topic for file in caught.value.result.files} == {"t"}
    world.fill(0, 3)
    with pytest.raises(ExportIncompleteError, match="'other'"):
        await world.export("t")
    assert len(list((world.root / "_trikafka").glob("plan-*"))) == 2, (
        "the others go on in plans of their own"
    )
    result = await world.export("t", fail_on_data_loss=False)
    assert [(str(lost), lost.reason) for lost in result.lost] == [
        ("other-0 [0, 5)", "topic 'other' was deleted")
    ]
    assert (await world.export("t")).already_done
    world.check_whole()


async def test_loss_of_a_partition_stops_no_other(autojump_clock: object, world: World) -> None:
    await world.export()
    world.fill(0, 10)
    world.fill(1, 2)
    world.cluster.delete_records("t", 0, 30)
    with pytest.raises(ExportIncompleteError, match=r"gone from the log: t-0 \[25, 30\)") as caught:
        await world.export()
    assert partitions_of(caught.value.result) == [1]
    result = await world.export(fail_on_data_loss=False)
    assert [(lost.start, lost.end) for lost in result.lost] == [(25, 30)]
    assert [(lost["from"], lost["to"]) for lost in manifest_of(world.root, 3)["lost"]] == [(25, 30)]
