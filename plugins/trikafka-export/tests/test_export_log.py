"""The log of an export while a broker is away: each fact once, then every five minutes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from test_flow import World
from trikafka_export.shared_log import ExportLog, Reminders
from trio.testing import MockClock

import trikafka
from trikafka import ExportIncompleteError
from trikafka.testing import ScriptedCluster


@pytest.fixture
async def world(tmp_path: Path, autojump_clock: MockClock) -> Any:
    async with ScriptedCluster(topics={"t": 3}, nodes=2) as cluster:
        made = World(cluster, tmp_path / "out")
        cluster.move_leader("t", 0, 0)
        for partition in (1, 2):
            cluster.move_leader("t", partition, 1)
        for partition in range(3):
            made.fill(partition, 10)
        yield made


def warnings(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and words in record.getMessage()
    ]


async def test_dead_broker_is_logged_once(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.cluster.stop(1, noticed=False)
    with pytest.raises(ExportIncompleteError):
        await world.export(task_timeout_ms=310_000)
    assert len(warnings(caplog, "broker 1 is lost")) == 1
    skipped = warnings(caplog, "skipped for now")
    assert len(skipped) == 4, skipped  # two partitions, at the beginning and after five minutes
    assert {text.split(" is ")[0] for text in skipped} == {"exporting t-1", "exporting t-2"}


async def test_partition_with_progress_is_logged_again(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.exporter("t", task_timeout_ms=10_000) as exporter:
        for outage in (1, 2, 3):
            world.cluster.stop(1, noticed=False)
            for partition in range(3):
                world.fill(partition, 10)
            with pytest.raises(ExportIncompleteError):
                await exporter.run()
            assert len(warnings(caplog, "exporting t-1 is skipped for now")) == outage
            with pytest.raises(ExportIncompleteError):
                await exporter.run()  # the same outage
            assert len(warnings(caplog, "exporting t-1 is skipped for now")) == outage
            assert len(warnings(caplog, "broker 1 is lost")) == outage
            world.cluster.start(1)
            await exporter.run()


async def test_clients_outside_of_exports_log_normally(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.cluster.stop(1, noticed=False)
    settings = {"bootstrap_servers": world.cluster.bootstrap_servers, "dial": world.cluster.dial}
    for count in (1, 2):
        async with trikafka.open_consumer(**settings, default_api_timeout_ms=2_000) as consumer:
            with pytest.raises(trikafka.KafkaTimeoutError):
                await consumer.end_offsets([trikafka.TopicPartition("t", 1)])
        assert len(warnings(caplog, "broker 1 is lost")) == count


def record(level: int, message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("trikafka.brokers", level, __file__, 1, message, args, None)


def test_broker_lost_again_is_logged_again() -> None:
    log = ExportLog()
    lost = record(logging.WARNING, "broker %d is lost", 1)
    back = record(logging.INFO, "broker %d is back", 1)
    other = record(logging.WARNING, "broker %d is lost", 2)
    plain = record(logging.WARNING, "something else")
    given = [
        lost,
        lost,
        other,
        back,
        back,
        lost,
        plain,
        plain,
        record(logging.DEBUG, "details"),
        record(logging.DEBUG, "details"),
    ]
    assert [log.lets_through(each) for each in given] == [
        True,
        False,
        True,
        True,
        False,
        True,
        True,
        False,
        True,
        True,
    ]


def test_reminder_is_due_after_five_minutes() -> None:
    now = 0.0
    reminders = Reminders(lambda: now)
    due = []
    for now in (0.0, 299.0, 300.0, 301.0, 600.0):  # noqa: B007  (the clock reads it)
        due.append(reminders.is_due("a"))
    assert due == [True, False, True, False, True]
    assert reminders.is_due("b")
    assert reminders.forget("a")
    assert not reminders.forget("a")


@pytest.mark.usefixtures("autojump_clock")
async def test_exports_have_separate_logs(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with ScriptedCluster(topics={"t": 2}, nodes=2) as cluster:
        first, second = World(cluster, tmp_path / "a"), World(cluster, tmp_path / "b")
        async with (
            first.exporter("t") as one,
            second.exporter("t") as other,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(one.run)
            nursery.start_soon(other.run)
        assert one._log is not other._log
