"""A stream that is killed: librdkafka counts each record once.

``make stream-exactly-once`` kills the stream ten times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import quick_spark
import trio

from benchmarks.stream_exactly_once.run import Options, run


async def test_killed_stream_copies_each_record_once(
    kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in quick_spark.child_environment().items():
        monkeypatch.setenv(name, value)
    with trio.fail_after(1_800):
        figures = await run(
            Options(seed=7, records=4_000, kills=1, pause=1.0, batches=5),
            kafka_broker.bootstrap_servers,
            tmp_path,
        )
    assert figures.exact, (figures, (tmp_path / "runs.log").read_text()[-2_000:])
    assert (figures.fed, figures.kills) == (4_000, 1)
    assert figures.batches >= 2, "one of each run; the kill may come before the second"
