"""An exporter that is killed again and again: each record once, at every moment.

``make export-exactly-once`` is the long run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from benchmarks.export_exactly_once.run import Options, run


async def test_each_row_is_seen_once_at_any_moment(kafka_broker: Any, tmp_path: Path) -> None:
    options = Options(seed=3, records=24_000, kills=3, broker_kills=0, pause=2.0)
    with trio.fail_after(900):
        figures = await run(options, kafka_broker.bootstrap_servers, [kafka_broker], tmp_path)
    assert figures.exact, (figures, (tmp_path / "exporters.log").read_text()[-2_000:])
    assert (figures.fed, figures.kills) == (24_000, 3)
    assert figures.looks > 5
    assert figures.files > 3
