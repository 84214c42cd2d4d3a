"""Tables in an S3 store with temporary keys from the catalog: an export outlives its keys."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from known_topics import add_records
from lakes import IcebergLake, make_lake
from s3_server import S3Server

import trikafka
from trikafka import ExportError


class Catalog:
    """A catalog that vends keys, and the store that accepts no others."""

    def __init__(self, s3: S3Server, path: Path) -> None:
        self._s3 = s3
        self._path = path
        self.bucket = s3.bucket()

    def hand_out(self, key: str, seconds: float) -> None:
        """Vend this key from now on; the store refuses those before."""
        ends = str(int((time.time() + seconds) * 1000))
        keys = {
            "access-key-id": key,
            "secret-access-key": "the-secret-word",
            "session-token": "the-token",
        }
        told = {f"s3.{name}": value for name, value in keys.items()} | {
            "s3.session-token-expires-at-ms": ends
        }
        self._path.write_text(json.dumps(told))
        self._s3.only(self.bucket, "the-catalog", key)


def make(s3: S3Server, folder: Path) -> tuple[Catalog, IcebergLake]:
    catalog = Catalog(s3, folder / "keys.json")
    options = make_lake("iceberg", folder).options | {
        "catalog.type": "",
        "catalog.py-catalog-impl": "lossy_catalog.VendingCatalog",
        "catalog.keys": str(folder / "keys.json"),
        "catalog.warehouse": f"s3://{catalog.bucket}/lake",
        "catalog.s3.endpoint": s3.url,
        "catalog.s3.region": "us-east-1",
        "catalog.s3.access-key-id": "the-catalog",
        "catalog.s3.secret-access-key": "the-catalog's",
    }
    return catalog, IcebergLake("shop.flights", options, Path(catalog.bucket))


async def test_exporter_renews_expired_keys(
    kafka_broker: Any,
    new_topic: Any,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "somebody's-own")  # which the table's store would refuse
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(400)
    catalog, lake = make(s3, tmp_path)
    catalog.hand_out("key-0", 0)  # they have expired already: a client has to request new ones
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    async with trikafka.open_exporter(topic, lake.destination, **where) as exporter:
        for number in range(3):
            catalog.hand_out(f"key-{number}", 0)
            result = await exporter.run()
            assert (result.rows, len(result.versions)) == (40 if number else 400, 1)
            await add_records(servers, topic, 400 + 40 * number, 40, 4)
    lake.check(480)
    assert not (await trikafka.check_export(lake.destination, sink_options=lake.options)).problems


async def test_refusal_of_the_store_hides_the_keys(
    kafka_broker: Any, new_topic: Any, s3: S3Server, tmp_path: Path
) -> None:
    servers, topic = kafka_broker.bootstrap_servers, await new_topic(40)
    catalog, lake = make(s3, tmp_path)
    catalog.hand_out("key-0", 3600)
    where = {"bootstrap_servers": servers, "sink_options": lake.options}
    async with trikafka.open_exporter(topic, lake.destination, **where) as exporter:
        await exporter.run()
        s3.only(catalog.bucket, "the-catalog", "another")
        await add_records(servers, topic, 40, 40, 4)
        with pytest.raises(ExportError, match="403") as told:
            await exporter.run()
        assert not any(word in str(told.value) for word in ("the-secret-word", "the-token"))
        s3.only(catalog.bucket, "the-catalog", "key-0")
        assert (await exporter.run()).rows == 40
    lake.check(80)
