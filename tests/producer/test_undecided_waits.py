"""An undecided commit is asked for again after the wait that the log names, not at once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from test_processing import Copying, consumer_settings, input_of
from transacting import producer_of
from trio.testing import MockClock as Clock

import trikafka
from trikafka import Record
from trikafka._net import retry
from trikafka.testing import ScriptedCluster

WAITS_FOR = "tried again in"


class Times(logging.Handler):
    """The time of each log line about a timed-out transaction, and the wait (seconds) that it
    names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[float, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if WAITS_FOR in (line := record.getMessage()):
            self.waits.append((trio.current_time(), float(line.split(WAITS_FOR)[1].split(" s")[0])))


@pytest.mark.parametrize("call", ["process", "run_tasks"])
async def test_undecided_commit_waits_as_logged(
    call: str,
    autojump_clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(retry._random, "uniform", lambda low, high: 1.0)
    times = Times()
    monkeypatch.setattr(logging.getLogger("trikafka"), "handlers", [times])
    caplog.set_level(logging.WARNING, "trikafka")
    settings: dict[str, Any] = {
        "default_api_timeout_ms": 2_000,
        "request_timeout_ms": 1_000,
        "close_timeout_ms": 1_000,
    }
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        input_of(cluster)
        async with (
            producer_of(
                cluster, **settings, retry_backoff_ms=300, retry_backoff_max_ms=700
            ) as producer,
            trikafka.open_consumer(
                "in", **consumer_settings(cluster, retry_backoff_ms=300, retry_backoff_max_ms=700)
            ) as consumer,
        ):

            async def copy(record: Record) -> None:
                await producer.enqueue("t", record.value, partition=0)

            async def work() -> None:
                if call == "process":
                    await trikafka.process(consumer, producer, Copying(producer))
                else:
                    await trikafka.run_tasks(consumer, copy, producer=producer)

            rule = cluster.silence("EndTxn", after=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work)
                with trio.fail_after(60):
                    while len(times.waits) < 3:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                rule.remove()
                nursery.cancel_scope.cancel()
        assert [wait for _, wait in times.waits[:3]] == [0.3, 0.6, 0.7]
        # A commit takes its two seconds each time; before, the next one began at once.
        starts = [logged_at + wait for logged_at, wait in times.waits[:2]]
        assert [logged_at - 2 for logged_at, _ in times.waits[1:3]] == [
            pytest.approx(start, abs=1e-6) for start in starts
        ]
