"""Exports into tables in an S3 store, from a real Kafka, also killed and resumed."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from known_topics import add_records
from lakes import IcebergLake, Lake, StoredDelta, make_lake
from s3_server import S3Server
from test_lake_live import Stop, stop_at

import trikafka
from trikafka import ExportError


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> Lake:
    bucket = s3.bucket()
    if request.param == "delta":
        return StoredDelta(f"s3://{bucket}/lake", {"format": "delta", **s3.options}, Path(bucket))
    options = make_lake("iceberg", tmp_path).options | {
        "catalog.warehouse": f"s3://{bucket}/lake",
        "catalog.s3.endpoint": s3.url,
        "catalog.s3.region": "us-east-1",
        "catalog.s3.access-key-id": "the-key",
        "catalog.s3.secret-access-key": "the-secret-word",
    }
    return IcebergLake("shop.flights", options, Path(bucket))


async def test_export_survives_kills_at_many_requests(
    kafka_broker: Any, new_topic: Any, lake: Lake, s3: S3Server
) -> None:
    """A table in a store has each record once, although exports end at many requests."""
    servers, topic, bucket = kafka_broker.bootstrap_servers, await new_topic(400), lake.root.name

    async def export(lease: int = 600, **more: Any) -> trikafka.ExportResult:
        # While requests are counted, none renews the lock.
        return await trikafka.export(
            topic,
            lake.destination,
            bootstrap_servers=servers,
            sink_options={**lake.options, "store.lease": lease},
            **more,
        )

    first = await export()
    assert (first.rows, len(first.versions), first.exactly_once) == (400, 1, True)
    lake.check(400)
    await add_records(servers, topic, 400, 100, 4)
    s3.allow(bucket, -1)
    with pytest.raises(Stop):
        await export(on_progress=stop_at("planned"))
    planned = s3.allow(bucket, -1)
    result = await export()
    assert (result.resumed, result.rows) == (True, 100)
    total = s3.allow(bucket, -1)
    assert planned < total
    done = 500
    # These moments lie in the work, at its end, in the commit and at the manifest.
    for requests in range(total // 4, total, max(total // 5, 1)):
        await add_records(servers, topic, done, 20, 4)
        done += 20
        s3.allow(bucket, requests)
        with trio.move_on_after(1), suppress(ExportError):
            await export(lease=1)
        s3.allow(bucket, -1)
        rows = lake.read()
        found = Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        assert max(found.values()) == 1
        with trio.fail_after(900):
            while True:  # until the lock is free
                with suppress(ExportError):
                    await export(lease=1)
                    break
                await trio.sleep(0.1)
        lake.check(done)
    checked = await trikafka.check_export(lake.destination, sink_options=lake.options)
    assert (checked.rows, checked.problems) == (done, ())


async def test_spark_writes_files_without_a_catalog(
    kafka_broker: Any, new_topic: Any, lake: Lake, spark_context: Any
) -> None:
    topic = await new_topic(400)
    options = {**lake.options, "spark_above": 0}
    result = await trikafka.export(
        topic,
        lake.destination,
        bootstrap_servers=kafka_broker.bootstrap_servers,
        sink_options=options,
        max_records_per_file=100,
    )
    assert (result.rows, len(result.versions)) == (400, 1)
    assert isinstance(lake.check(400), pa.Table)
