"""Exports from a real Kafka to an S3 server, by the command and by Spark."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import trio
from known_topics import make_topic
from s3_server import S3Server
from test_stores import seen
from trikafka_export.destination import store_of
from trikafka_export.object_pieces import work_folder
from trikafka_export.plan import ExportWork, SourceView, new_plan

import trikafka
from trikafka import TopicPartition


def environment(s3: S3Server) -> dict[str, str]:
    """Return the usual variables, as users set them."""
    own = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "the-secret-word",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3.url,
    }
    return {**os.environ, **own}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trikafka.cli", "export", *arguments]


def arguments_of(topic: str, destination: str, kafka_broker: Any) -> list[str]:
    """Return the arguments of an export by one thread, into many small files."""
    servers = kafka_broker.bootstrap_servers
    sizes = ("--max-records-per-file", "100", "--option", "threads=1")
    return [topic, destination, "-b", servers, *sizes]


@asynccontextmanager
async def held(
    nursery: trio.Nursery, arguments: list[str], s3: S3Server
) -> AsyncIterator[trio.Process]:
    """Start a process, and wait until the server holds its requests in the middle of its work."""
    exporter: trio.Process = await nursery.start(
        partial(trio.run_process, arguments, env=environment(s3), capture_stderr=True, check=False)
    )
    with trio.fail_after(900):
        while not s3.held():
            assert exporter.returncode is None
            await trio.sleep(0.02)
    yield exporter


def read(s3: S3Server, bucket: str) -> list[tuple[int, int]]:
    """Return partition and offset of all rows that a reader with a glob finds."""
    rows = []
    for name, body in s3.objects(bucket).items():
        if seen(name):
            table = pq.read_table(io.BytesIO(body), columns=["partition", "offset"])
            rows += list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return rows


async def test_killed_command_is_finished_by_the_next(
    kafka_broker: Any, new_topic: Any, s3: S3Server
) -> None:
    topic, bucket = await new_topic(2_000), s3.bucket()
    destination = f"s3://{bucket}/lake/{topic}"
    arguments = arguments_of(topic, destination, kafka_broker)
    s3.allow(bucket, 130, hold="yes")
    async with trio.open_nursery() as nursery, held(nursery, command(*arguments), s3) as exporter:
        exporter.send_signal(signal.SIGKILL)
    s3.allow(bucket, -1)
    before = read(s3, bucket)
    assert 0 < len(before) < 2_000
    assert len(before) == len(set(before))
    done = await trio.run_process(
        command(*arguments, "--json"), env=environment(s3), capture_stdout=True, capture_stderr=True
    )
    result = json.loads(done.stdout)
    assert (result["destination"], result["resumed"], result["records"]) == (
        destination,
        True,
        2_000,
    )
    assert b"is dead; this export takes the lock" in done.stderr
    rows = read(s3, bucket)
    assert sorted(rows) == sorted((number % 4, number // 4) for number in range(2_000))
    left = [name for name in s3.objects(bucket) if "/_trikafka/" in name]
    assert [name.rpartition("/")[2] for name in left] == [
        "lock",
        "manifest-000001.json",
        "plan-000001.json",
    ]
    check = await trio.run_process(
        command("--check", destination), env=environment(s3), capture_stdout=True
    )
    assert check.stdout.startswith(b"2,000 records in 20 files (")
    again = await trio.run_process(command(*arguments), env=environment(s3), capture_stdout=True)
    assert again.stdout.startswith(b"nothing new")


async def test_abandoned_export_reads_nothing(
    kafka_broker: Any, new_topic: Any, s3: S3Server
) -> None:
    """``--abandon`` publishes the decided pieces of a killed export and reads nothing.

    The next export begins with the rest.
    """
    topic, bucket = await new_topic(1_000), s3.bucket()
    destination = f"s3://{bucket}/lake"
    arguments = arguments_of(topic, destination, kafka_broker)
    s3.allow(bucket, 70, hold="yes")
    async with trio.open_nursery() as nursery, held(nursery, command(*arguments), s3) as exporter:
        exporter.send_signal(signal.SIGKILL)
    s3.allow(bucket, -1)
    before = read(s3, bucket)
    assert 0 < len(before) < 1_000
    nobody = [topic, destination, "-b", "127.0.0.1:1", "--abandon", "--json"]
    done = await trio.run_process(
        command(*nobody), env=environment(s3), capture_stdout=True, capture_stderr=True
    )
    given_up = json.loads(done.stdout)
    assert (given_up["resumed"], given_up["already_done"]) == (True, False)
    assert set(before) <= set(rows := read(s3, bucket)), (
        "decided pieces get their names, if they had none yet"
    )
    assert (given_up["records"], len(set(rows))) == (len(rows), len(rows))
    assert sum(each["to"] - each["from"] for each in given_up["carried"]) == 1_000 - len(rows)
    assert not [name for name in s3.objects(bucket) if "/work/" in name]
    again = await trio.run_process(command(*nobody), env=environment(s3), capture_stdout=True)
    assert json.loads(again.stdout)["records"] == 0, "there is nothing to be given up any more"
    done = await trio.run_process(
        command(*arguments, "--json"), env=environment(s3), capture_stdout=True
    )
    assert json.loads(done.stdout)["records"] == 1_000 - len(rows)
    assert sorted(read(s3, bucket)) == sorted((number % 4, number // 4) for number in range(1_000))


async def test_spark_exports_to_a_store(
    kafka_broker: Any, s3: S3Server, spark_context: Any
) -> None:
    """Spark writes to a store with the credentials of its tasks; invalid JSON is a dead letter."""
    servers, bucket = kafka_broker.bootstrap_servers, s3.bucket()
    topic = f"{bucket}-topic"
    await make_topic(servers, topic, 1_000, 2)
    async with trikafka.open_producer(bootstrap_servers=servers) as producer:
        await (await producer.enqueue(topic, b"no json", partition=0)).wait()
    options = {**s3.options, "spark_above": 0, "partition_by": "date,topic", "value_format": "json"}

    async def export() -> trikafka.ExportResult:
        return await trikafka.export(
            topic,
            f"s3://{bucket}",
            bootstrap_servers=servers,
            max_records_per_file=200,
            sink_options=options,
        )

    result = await export()
    assert (result.rows, result.dead_letters, len(result.files)) == (1_000, 1, 6)
    assert all(file.name.startswith(f"topic={topic}/date=") for file in result.files)
    assert sorted(read(s3, bucket)) == sorted((number % 2, number // 2) for number in range(1_000))
    (letter,) = [
        body for name, body in s3.objects(bucket).items() if name.startswith("_dead_letters/")
    ]
    assert json.loads(letter)["offset"] == 500
    assert (await export()).already_done
    check = await trikafka.check_export(f"s3://{bucket}", sink_options=s3.options)
    assert (check.rows, check.problems) == (1_000, ())


async def test_plan_that_was_ending_is_published(
    kafka_broker: Any, new_topic: Any, s3: S3Server
) -> None:
    """A plan whose end has begun is published as it is; the next plan has its rest.

    Another export may be about to publish the plan, too, so no more is added.
    """
    topic, bucket = await new_topic(400), s3.bucket()
    destination = f"s3://{bucket}/lake"
    store: Any = store_of(destination, s3.options)[0]
    await trio.to_thread.run_sync(store.open)
    ends = {TopicPartition(topic, partition): 100 for partition in range(4)}
    view = SourceView(None, {topic: None}, dict.fromkeys(ends, 0), ends)
    format = {"name": "parquet", "partition_by": [], "value": "binary"}
    plan = new_plan(
        store.load(),
        view,
        ExportWork(dict.fromkeys(ends, 0)),
        max_records_per_file=50,
        isolation_level="read_committed",
        format=format,
    )
    store.store_plan(plan)
    store._objects.put_new(f"{work_folder(plan)}/closed", b"by a process that is killed now")
    store.close()
    result = await trikafka.export(
        topic,
        destination,
        bootstrap_servers=kafka_broker.bootstrap_servers,
        sink_options={**s3.options, "threads": 2},
    )
    assert (result.resumed, len(result.plans), result.rows, result.carried) == (True, 2, 400, ())
    assert sorted(read(s3, bucket)) == sorted((number % 4, number // 4) for number in range(400))
