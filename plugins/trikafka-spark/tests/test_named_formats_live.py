"""Exports in formats of Spark's, by their name, such as ORC: at least once.

The report says so, and ``--check`` counts the rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from known_topics import add_records

import trikafka
from trikafka import ExportError

ORC = {"format": "orc", "write.compression": "snappy"}
pytestmark = pytest.mark.usefixtures("spark_context")


async def test_check_finds_rows_written_twice(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any
) -> None:
    """Rows of a plan whose manifest was not written are there twice; the check finds them."""
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await new_topic(400)

    async def export() -> trikafka.ExportResult:
        return await trikafka.export(topic, root, bootstrap_servers=servers, sink_options=ORC)

    first = await export()
    assert (first.rows, first.format, first.exactly_once, first.versions) == (400, "orc", False, ())
    assert (await export()).already_done
    await add_records(servers, topic, 400, 100, 4)
    assert (await export()).rows == 100
    rows = await trio.to_thread.run_sync(
        lambda: spark.read.orc(str(root)).select("partition", "offset").collect()
    )
    assert sorted(map(tuple, rows)) == [
        (partition, offset) for partition in range(4) for offset in range(125)
    ]
    assert (await trikafka.check_export(root, sink_options=ORC)).problems == ()

    (root / "_trikafka" / "manifest-000002.json").unlink()  # as if killed before it was written
    again = await export()
    assert (again.resumed, again.exactly_once, again.rows) == (True, False, 200)
    found = await trikafka.check_export(root, sink_options=ORC)
    assert found.rows == 600
    assert (
        found.problems[0]
        == f"{topic}-0 [100, 125) has 50 rows, 25 of them not for the first time, not 50"
    )
    assert len(found.problems) == 4


async def test_unknown_format_and_foreign_folder_fail(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic, root = await new_topic(10), tmp_path / "out"
    with pytest.raises(ExportError, match="Spark does not know the format 'nosuch'"):
        await trikafka.export(
            topic,
            root,
            bootstrap_servers=kafka_broker.bootstrap_servers,
            sink_options={"format": "nosuch"},
        )
    assert not (root / "_trikafka").exists(), "no plan pins the name"
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"is not empty \(such as notes.txt\)"):
        await trikafka.export(
            topic, other, bootstrap_servers=kafka_broker.bootstrap_servers, sink_options=ORC
        )
