"""Exports into tables of a real REST catalog, Iceberg's reference implementation, with outages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from iceberg_rest import RestCatalogServer, rest_catalog
from known_topics import add_records
from lakes import IcebergLake
from rest_door import Door, door
from test_lake_live import Stop, stop_at

import trikafka
from trikafka import ExportError, ExportProgress

RECORDS = 400
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with rest_catalog(tmp_path_factory.mktemp("warehouse")) as started:
        yield started


@pytest.fixture
def front(server: RestCatalogServer) -> Iterator[Door]:
    with door(server.url) as made:
        yield made


@pytest.fixture
def lake(server: RestCatalogServer, front: Door) -> IcebergLake:
    name = server.new_table()
    options = {
        "format": "iceberg",
        "catalog": "rest",
        "catalog.type": "rest",
        "catalog.uri": front.url,
    }
    return IcebergLake(name, options, server.warehouse.joinpath(*name.split(".")))


def when(stage: str, act: Callable[[], Any]) -> Callable[[ExportProgress], None]:
    """Return a progress callback that calls ``act`` once, at the stage."""
    done = []

    def tell(step: ExportProgress) -> None:
        if step.stage == stage and not done:
            done.append(step)
            act()

    return tell


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)


async def test_repeated_exports_fill_a_table(
    kafka_broker: Any, new_topic: Any, lake: IcebergLake
) -> None:
    """Repeated exports create a table, append to it, and pass the check."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    options = {**lake.options, "partition_by": "date,topic"}
    async with trikafka.open_exporter(
        topic, lake.destination, bootstrap_servers=servers, sink_options=options
    ) as exporter:
        for number in range(3):
            result = await exporter.run()
            assert (result.rows, len(result.versions), result.exactly_once) == (
                40 if number else RECORDS,
                1,
                True,
            )
            await add_records(servers, topic, RECORDS + 40 * number, 40, 4)
    lake.check(RECORDS + 80)
    found = await trikafka.check_export(lake.destination, sink_options=lake.options)
    assert (found.rows, found.problems) == (RECORDS + 80, ())


async def test_lost_response_of_a_commit_ends_no_export(
    kafka_broker: Any, new_topic: Any, lake: IcebergLake, front: Door
) -> None:
    """The export finds a commit whose response was lost."""
    topic = await new_topic(RECORDS)
    where = {"bootstrap_servers": kafka_broker.bootstrap_servers, "sink_options": lake.options}
    lose = when("writing", lambda: setattr(front, "lose_a_commit", True))
    result = await trikafka.export(topic, lake.destination, on_progress=lose, **where)
    assert not front.lose_a_commit, "a response was lost"
    assert (result.resumed, result.rows) == (False, RECORDS)
    lake.check(RECORDS)


async def test_renamed_table_continues_by_its_new_name(
    kafka_broker: Any, new_topic: Any, lake: IcebergLake, server: RestCatalogServer
) -> None:
    """A plan of a table that is renamed meanwhile continues under the new name."""
    topic = await new_topic(RECORDS)
    where = {"bootstrap_servers": kafka_broker.bootstrap_servers, "sink_options": lake.options}
    other = server.new_table()
    rename = when("writing", lambda: lake.catalog.rename_table(lake.destination, other))
    with pytest.raises(
        ExportError,
        match="no longer exists: if it was renamed, export to its new name",
    ):
        await trikafka.export(topic, lake.destination, on_progress=rename, **where)
    lake.destination = other
    result = await trikafka.export(topic, other, **where)
    assert (result.resumed, result.rows) == (True, RECORDS)
    lake.check(RECORDS)


@pytest.mark.parametrize("again", [False, True], ids=["dropped", "recreated"])
async def test_dropped_table_ends_the_export(
    kafka_broker: Any, new_topic: Any, lake: IcebergLake, again: bool
) -> None:
    """A table that is dropped, or dropped and recreated, during an export gets no commit."""
    topic = await new_topic(RECORDS)
    where = {"bootstrap_servers": kafka_broker.bootstrap_servers, "sink_options": lake.options}

    def drop() -> None:
        schema = lake.table.schema()
        lake.drop()
        if again:
            lake.catalog.create_table(lake.destination, schema)

    message = (
        "is not the table that earlier exports wrote to"
        if again
        else "if it was dropped, choose another table"
    )
    with pytest.raises(ExportError, match=message):
        await trikafka.export(topic, lake.destination, on_progress=when("writing", drop), **where)
    if again:
        assert lake.read().num_rows == 0


async def test_catalog_outage_is_logged_once(
    kafka_broker: Any, new_topic: Any, lake: IcebergLake, front: Door
) -> None:
    """An outage of the catalog is logged once, and the repeated exports continue."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    options = [
        f"--option={name}={value}" for name, value in lake.options.items() if name != "format"
    ]
    command = [
        sys.executable,
        "-m",
        "trikafka",
        "export",
        topic,
        lake.destination,
        "--format",
        "iceberg",
        "-b",
        servers,
    ]
    refused = threading.Semaphore(0)
    front.refuse = refused.release
    with running([*command, "--every", "0.2s", "--json", *options]) as process:

        def rows() -> int:
            assert process.stdout is not None
            while line := process.stdout.readline():
                if count := json.loads(line)["records"]:
                    return int(count)
            return -1

        with trio.fail_after(900):
            assert await trio.to_thread.run_sync(rows) == RECORDS
            front.mode = "away"
            await add_records(servers, topic, RECORDS, 40, 4)
            for _ in range(6):  # a read is tried four times, and a round has several
                assert await trio.to_thread.run_sync(lambda: refused.acquire(timeout=240))
            front.mode = "open"
            found = 0
            while found < 40:  # a round that had begun may have some of them in a plan of its own
                count = await trio.to_thread.run_sync(rows)
                assert count > 0
                found += count
            assert found == 40
            process.send_signal(signal.SIGINT)
            _, said = await trio.to_thread.run_sync(process.communicate)
    warnings = [line for line in said.splitlines() if "closed for a while" in line]
    # A round that had begun before the outage may fail at a later request, with another text.
    assert 1 <= len(warnings) == len(set(warnings)) <= 2, said
    lake.check(RECORDS + 40)


async def test_expired_token_is_renewed_by_credential(
    kafka_broker: Any, new_topic: Any, lake: IcebergLake, front: Door
) -> None:
    """An expired token is replaced if the settings have a credential."""
    servers = kafka_broker.bootstrap_servers
    topic = await new_topic(RECORDS)
    front.token = "nobody's"
    options = {**lake.options, "catalog.credential": "the-client:the-secret-word"}
    async with trikafka.open_exporter(
        topic, lake.destination, bootstrap_servers=servers, sink_options=options
    ) as exporter:
        assert (await exporter.run()).rows == RECORDS
        given = front.tokens_given
        front.token = "nobody's any more"
        await add_records(servers, topic, RECORDS, 40, 4)
        assert (await exporter.run()).rows == 40
        assert front.tokens_given == given + 1
    front.token = None
    lake.check(RECORDS + 40)


async def test_expired_token_is_reported_and_hidden(
    kafka_broker: Any, new_topic: Any, lake: IcebergLake, front: Door
) -> None:
    """The error about an expired token of the settings does not show the token."""
    servers = kafka_broker.bootstrap_servers
    topic = await new_topic(RECORDS)
    front.token = "the-secret-token"
    options = {**lake.options, "catalog.token": "the-secret-token"}
    expire = when("writing", lambda: setattr(front, "token", "another"))
    with pytest.raises(ExportError, match="the token is not good any more") as caught:
        await trikafka.export(
            topic,
            lake.destination,
            bootstrap_servers=servers,
            sink_options=options,
            on_progress=expire,
        )
    assert "the-secret-token" not in str(caught.value)
    front.token = "the-secret-token"
    result = await trikafka.export(
        topic, lake.destination, bootstrap_servers=servers, sink_options=options
    )
    assert (result.resumed, result.rows) == (True, RECORDS)
    front.token = None
    lake.check(RECORDS)


def shown(value: bytes | None) -> str:
    return "null" if value is None else value.hex()


async def test_java_reads_what_was_exported(
    kafka_broker: Any, new_topic: Any, lake: IcebergLake, server: RestCatalogServer
) -> None:
    """Iceberg's own reader finds the exported rows, values, times, and partitions of files."""
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(RECORDS)
    where = {
        "bootstrap_servers": servers,
        "sink_options": {**lake.options, "partition_by": "date,topic"},
    }
    with pytest.raises(Stop):
        await trikafka.export(topic, lake.destination, on_progress=stop_at("written"), **where)
    await trikafka.export(topic, lake.destination, **where)
    await add_records(servers, topic, RECORDS, 40, 4)
    await trikafka.export(topic, lake.destination, **where)
    rows = lake.check(RECORDS + 40)
    with trio.fail_after(900):
        read = await trio.to_thread.run_sync(
            server.read, lake.destination, 2, 50, abandon_on_cancel=True
        )
    assert {name: kind for name, kind in read.columns.items() if name != "headers"} == {
        "key": "BINARY",
        "value": "BINARY",
        "topic": "STRING",
        "partition": "INTEGER",
        "offset": "LONG",
        "timestamp": "TIMESTAMP",
        "timestampType": "INTEGER",
    }
    assert read.rows == sorted(
        (
            row["topic"],
            row["partition"],
            row["offset"],
            (row["timestamp"] - EPOCH) // MICROSECOND,
            shown(row["value"]),
        )
        for row in rows.to_pylist()
    )
    assert set(read.partitions) == {f"topic={topic}/timestamp_day=2023-11-14"}
    assert read.some == [row for row in read.rows if row[1] == 2 and row[2] >= 50]
