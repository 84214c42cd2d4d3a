"""Small exports by threads of this process, from a real Kafka, without Spark and Java."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import trio
from known_topics import (
    TIME,
    add_records,
    check_whole,
    create_known,
    data_files,
    make_anew,
    times_of_files,
)
from trikafka_export import task
from trikafka_export.columns import SCHEMA
from trikafka_export.reading import read_range

import trikafka
from trikafka import (
    ConfigurationError,
    ExportError,
    ExportIncompleteError,
    ExportProgress,
)


def delete_records(servers: str, topic: str, before: int) -> None:
    """Delete the records of partition 0 below an offset, as retention does.

    trikafka's admin client has no such call.
    """
    from confluent_kafka import TopicPartition as Place
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.delete_records([Place(topic, 0, before)]).values():
        future.result(120)


async def test_exports_add_only_new_records(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await new_topic(4_000)
    progress: list[ExportProgress] = []
    options = {"row_group_bytes": 10_000, "max_bytes_per_file": 1_500}

    async def export() -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            root,
            group_id="gl",
            bootstrap_servers=servers,
            max_partition_fetch_bytes=1_000,  # one batch of the log at a time
            on_progress=progress.append,
            sink_options=options,
        )

    first = await export()
    assert first.rows == 4_000
    assert len(first.files) > 8, "several files a range, by their bytes"
    assert {file.planned.start for file in first.files} == {0}
    check_whole(root, 4_000, 4)
    assert [step.stage for step in progress if step.stage != "writing"] == [
        "planned",
        "starting",
        "written",
        "published",
        "committed",
    ]
    assert (progress[-1].ranges_done, progress[-1].rows_done) == (4, 4_000)
    assert pq.read_schema(data_files(root)[0]).equals(SCHEMA)
    assert pq.read_metadata(data_files(root)[0]).row_group(0).column(1).compression == "ZSTD"
    before = times_of_files(root)
    assert (await export()).already_done
    assert times_of_files(root) == before
    await add_records(servers, topic, 4_000, 1_000, 4)
    assert (await export()).rows == 1_000
    check_whole(root, 5_000, 4)


async def test_threads_need_neither_java_nor_pyspark(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = await new_topic(1_000)
    program = (
        "import sys, trikafka, trio\n"
        "async def main():\n"
        "    result = await trikafka.export(sys.argv[1], sys.argv[2], "
        "bootstrap_servers=sys.argv[3])\n"
        "    print(result.rows, 'pyspark' in sys.modules)\n"
        "trio.run(main)"
    )
    command = [sys.executable, "-c", program, topic, str(tmp_path), kafka_broker.bootstrap_servers]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "PATH": "/nonexistent"
    }
    done = await trio.run_process(command, capture_stdout=True, env=environment)
    assert done.stdout == b"1000 False\n"
    check_whole(tmp_path, 1_000, 4)


async def test_exporter_locks_its_destination(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """An exporter keeps its destination locked between its exports."""
    topic, servers = await new_topic(100), kafka_broker.bootstrap_servers
    async with trikafka.open_exporter(topic, tmp_path, bootstrap_servers=servers) as exporter:
        assert (await exporter.run()).rows == 100
        with pytest.raises(ExportError, match="another export to"):
            await trikafka.export(topic, tmp_path, bootstrap_servers=servers)
        assert (await exporter.run()).already_done
        await add_records(servers, topic, 100, 20, 4)
        assert (await exporter.run()).rows == 20
    check_whole(tmp_path, 120, 4)


async def test_cancelled_export_ends_and_is_resumed(
    kafka_broker: Any, new_topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled export ends quickly, and the next one resumes it.

    The thread stands in its second range until the export stops it.
    """
    topic, servers = await new_topic(4_000), kafka_broker.bootstrap_servers
    root, asked, ranges = tmp_path / "out", list[float](), itertools.count()

    def standing(*place: Any, on_start: Any, **more: Any) -> Iterator[Any]:
        stopped, stands = threading.Event(), next(ranges) > 0
        on_start(stopped.set)
        with contextlib.closing(read_range(*place, on_start=on_start, **more)) as batches:
            for batch in batches:
                assert not stands or stopped.wait(600)
                yield batch

    def tell(step: ExportProgress) -> None:
        if step.stage == "writing" and step.rows_done:
            asked.append(trio.current_time())
            scope.cancel()

    with monkeypatch.context() as patched, trio.CancelScope() as scope:
        patched.setattr(task, "read_range", standing)
        await trikafka.export(
            topic,
            root,
            bootstrap_servers=servers,
            max_records_per_file=50,
            on_progress=tell,
            sink_options={"threads": 1},
        )
    assert scope.cancelled_caught
    assert trio.current_time() - asked[0] < 60, "a second, as far as a shared machine goes"
    assert len(data_files(root)) == 1
    result = await trikafka.export(topic, root, bootstrap_servers=servers)
    assert result.resumed
    check_whole(root, 4_000, 4)


async def test_values_and_folders_with_dead_letters(kafka_broker: Any, tmp_path: Path) -> None:
    """Parsed values are in partition folders, and invalid ones in dead letters."""
    servers, day = kafka_broker.bootstrap_servers, 86_400_000
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await create_known(admin, "parsed")
    good = [b'{"n": %d, "who": {"name": "a\\nb"}, "tags": ["x"]}' % number for number in range(60)]
    bad = [b"nonsense", None, b'{"n": "text"}', b"[1]", b'{"n": 1} {"n": 2}']
    values = [*good[:30], *bad, b'{"n": 7,\n "more": true}', *good[30:]]
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        for number, value in enumerate(values):
            await producer.enqueue(
                "parsed",
                value,
                key=b"k",
                timestamp=TIME + number // 40 * day,
                headers=[("h", b"\xff")],
            )
    options = {
        "partition_by": "date,topic",
        "value_format": "json",
        "value_schema": '{"n": "int64", "who": {"name": "string"}}',
    }

    async def export(**more: Any) -> trikafka.ExportResult:
        return await trikafka.export(
            "parsed", tmp_path, bootstrap_servers=servers, sink_options=options | more
        )

    result = await export()
    assert (result.rows, result.dead_letters, len(result.files)) == (62, 4, 2)
    table = (
        ds.dataset(tmp_path, partitioning="hive", exclude_invalid_files=True)
        .to_table()
        .sort_by("offset")
    )
    found = dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert found[0] == {"n": 0, "who": {"name": "a\nb"}}
    assert (found[31], found[35]) == (None, {"n": 7, "who": None})
    assert sorted(set(range(66)) - set(found)) == [30, 32, 33, 34]
    assert set(table["topic"].to_pylist()) == {"parsed"}
    folders = {Path(file.name).parent.name for file in result.files}
    assert folders == {"date=2023-11-14", "date=2023-11-15"}
    (letters,) = (tmp_path / "_dead_letters").iterdir()
    lines = [json.loads(line) for line in letters.read_text().splitlines()]
    assert [line["offset"] for line in lines] == [30, 32, 33, 34]
    assert lines[0]["value"] == "bm9uc2Vuc2U="
    assert lines[0]["headers"] == [["h", "/w=="]]
    assert all(line["error"] for line in lines)
    with pytest.raises(ConfigurationError, match="was exported with partition_by="):
        await export(partition_by="date")


async def test_inferred_schema_is_kept(kafka_broker: Any, new_topic: Any, tmp_path: Path) -> None:
    topic, servers = await new_topic(100, partitions=2), kafka_broker.bootstrap_servers
    for more in (0, 100):
        await add_records(servers, topic, more, more, 2)
        await trikafka.export(
            topic, tmp_path, bootstrap_servers=servers, sink_options={"value_format": "json"}
        )
    manifest = json.loads((tmp_path / "_trikafka" / "manifest-000002.json").read_text())
    assert manifest["format"]["schemas"] == {topic: {"n": "int64", "pad": "string"}}
    assert (
        str(pq.read_schema(data_files(tmp_path)[-1]).field("value").type)
        == "struct<n: int64, pad: string>"
    )


async def test_recreated_topic_is_not_mixed_in(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """Records of a topic that was recreated between plan and work are not exported.

    The other topics are exported. If losing the topic is allowed, the export continues and reports
    the loss.
    """
    topic = await new_topic(100, partitions=1)
    other = await new_topic(100, partitions=1)
    servers = kafka_broker.bootstrap_servers

    class Stop(Exception):
        pass

    def stop(step: ExportProgress) -> None:
        raise Stop

    with pytest.raises(Stop):
        await trikafka.export([topic, other], tmp_path, bootstrap_servers=servers, on_progress=stop)
    await make_anew(servers, topic, 200)
    with pytest.raises(ExportIncompleteError, match="was deleted and created again") as caught:
        await trikafka.export([topic, other], tmp_path, bootstrap_servers=servers)
    assert {file.planned.topic for file in caught.value.result.files} == {other}
    result = await trikafka.export(
        other, tmp_path, bootstrap_servers=servers, fail_on_data_loss=False
    )
    assert [(lost.topic, lost.start, lost.end) for lost in result.lost] == [(topic, 0, 100)]
    assert "deleted and created again" in result.lost[0].reason
    assert ds.dataset([str(path) for path in data_files(tmp_path)]).count_rows() == 100
    assert (await trikafka.export(other, tmp_path, bootstrap_servers=servers)).already_done


async def test_aborted_records_are_exported_on_request(kafka_broker: Any, tmp_path: Path) -> None:
    """Records of aborted transactions are only exported with read_uncommitted."""
    servers = kafka_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await create_known(admin, "undecided")
    async with trikafka.open_producer(
        bootstrap_servers=servers, transactional_id="undecided"
    ) as producer:
        async with producer.transaction():
            await producer.send("undecided", b"good")
        with contextlib.suppress(ZeroDivisionError):
            async with producer.transaction():
                await producer.send("undecided", b"bad")
                raise ZeroDivisionError

    async def values(name: str, **more: Any) -> list[bytes]:
        await trikafka.export("undecided", tmp_path / name, bootstrap_servers=servers, **more)
        found: list[bytes] = pq.read_table(data_files(tmp_path / name))["value"].to_pylist()
        return found

    assert await values("a") == [b"good"]
    assert await values("b", isolation_level="read_uncommitted") == [b"good", b"bad"]
    with pytest.raises(
        ConfigurationError, match="was exported with isolation_level='read_committed' and keeps it"
    ):
        await values("a", isolation_level="read_uncommitted")


async def test_records_lost_to_retention_are_reported(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    """Records that retention removes during a plan are reported with their offsets."""
    topic, servers = await new_topic(100, partitions=1), kafka_broker.bootstrap_servers

    class Stop(Exception):
        pass

    def stop(step: ExportProgress) -> None:
        raise Stop

    with pytest.raises(Stop):
        await trikafka.export(topic, tmp_path, bootstrap_servers=servers, on_progress=stop)
    await trio.to_thread.run_sync(delete_records, servers, topic, 30)
    with pytest.raises(
        ExportIncompleteError,
        match=r"holds the offsets \[30, 100\), but \[0, 100\) were to be read",
    ) as caught:
        await trikafka.export(topic, tmp_path, bootstrap_servers=servers)
    assert "fail_on_data_loss=False (--allow-data-loss) continues" in str(caught.value)
    result = await trikafka.export(
        topic, tmp_path, bootstrap_servers=servers, fail_on_data_loss=False
    )
    assert ([(lost.start, lost.end) for lost in result.lost], result.rows) == ([(0, 30)], 70)
    manifest = json.loads((tmp_path / "_trikafka" / "manifest-000002.json").read_text())
    assert [(lost["from"], lost["to"]) for lost in manifest["lost"]] == [(0, 30)]


async def test_check_finds_lost_and_foreign_files(
    kafka_broker: Any, new_topic: Any, tmp_path: Path
) -> None:
    topic = await new_topic(400)
    await trikafka.export(topic, tmp_path, bootstrap_servers=kafka_broker.bootstrap_servers)
    found = await trikafka.check_export(tmp_path)
    assert (found.files, found.rows, found.problems) == (4, 400, ())
    first, second, third, _ = data_files(tmp_path)
    third.write_bytes(first.read_bytes() + b"x")
    first.rename(tmp_path / "foreign.parquet")
    second.write_bytes(b"short")
    found = await trikafka.check_export(tmp_path)
    assert found.rows == 100
    assert [problem.split(" ", 1)[1].split(":")[0] for problem in found.problems] == [
        "is lost, with 100 rows",
        "is not a whole Parquet file",
        "is not a whole Parquet file",
        "is in no manifest, but readers of the directory see it",
    ]
    command = [sys.executable, "-m", "trikafka.cli", "export", "--check", str(tmp_path)]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.returncode, done.stdout.count(b"\n")) == (1, 4)
    assert b"differs from its manifests (4 differences)" in done.stderr
    with pytest.raises(ExportError, match="nothing holds no export: there is no plan in it"):
        await trikafka.check_export(tmp_path / "nothing")
