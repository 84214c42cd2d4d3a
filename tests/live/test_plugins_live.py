"""The example plugins on a real broker: each record is in the results once, despite rebalances.

Members of a group join, leave and die.
"""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported

from trikafka import (
    CommitFailedError,
    NewTopic,
    RecordBatch,
    open_admin,
    open_consumer,
    open_producer,
)

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
PARTITIONS, RECORDS = 4, 8000


async def test_plugins_store_each_record_once(
    kafka_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in EXAMPLES.iterdir():
        monkeypatch.syspath_prepend(str(package))
    import trikafka_group_log
    import trikafka_sqlite_offsets as offsets

    path, servers = tmp_path / "results.db", kafka_broker.bootstrap_servers
    topic, group = f"orders-{uuid.uuid4().hex[:8]}", f"workers-{uuid.uuid4().hex[:8]}"
    log = trikafka_group_log.GroupLog()
    given = {
        "bootstrap_servers": servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "max_poll_records": 50,
        "plugins": [offsets.SqliteOffsets(str(path)), log],
    }
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table results (part, at)")
    refused = 0

    def write(batch: RecordBatch) -> None:
        with (
            closing(sqlite3.connect(path, timeout=120, isolation_level="immediate")) as database,
            database,
        ):
            offsets.advance(database, group, batch)
            database.executemany(
                "insert into results values (?, ?)",
                [(batch.partition, offset) for offset in batch.offsets],
            )

    def count() -> int:
        with closing(sqlite3.connect(path, timeout=120)) as database:
            return int(database.execute("select count(*) from results").fetchone()[0])

    async def work(scope: trio.CancelScope) -> None:
        nonlocal refused
        with scope:
            async with open_consumer(topic, **given) as consumer:
                async for batch in consumer.batches():
                    try:
                        await trio.to_thread.run_sync(write, batch)
                    except CommitFailedError:  # another member owns the partition now
                        refused += 1

    async with open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({topic: NewTopic(PARTITIONS, 1)})
        await topic_reported(admin, topic, PARTITIONS)
    async with open_producer(bootstrap_servers=servers) as producer:
        for number in range(RECORDS):
            await producer.enqueue(topic, b"%d" % number, partition=number % PARTITIONS)
    members = [trio.CancelScope() for _ in range(4)]
    with trio.fail_after(300):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, members[0])
            for share, joins, leaves in ((0.1, 1, None), (0.3, 2, 0), (0.6, 3, 1)):
                while count() < share * RECORDS:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                nursery.start_soon(work, members[joins])
                if leaves is not None:
                    members[leaves].cancel()
            # The last member may open, and the partitions move, when all records are there.
            while (  # noqa: ASYNC110
                count() < RECORDS
                or log.counts["opened"] < len(members)
                or log.counts["assigned"] <= PARTITIONS
            ):
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
    with closing(sqlite3.connect(path)) as database:
        doubled = database.execute(
            "select part, at from results group by part, at having count(*) > 1"
        ).fetchall()
        assert not doubled
        assert database.execute(
            "select count(*), count(distinct part) from results"
        ).fetchone() == (RECORDS, PARTITIONS)
    assert log.counts["opened"] == log.counts["closed"] == 4
    assert log.counts["assigned"] > PARTITIONS
    async with open_admin(bootstrap_servers=servers) as admin:
        assert not await admin.list_group_offsets(group)  # Kafka has no offsets
        await admin.delete_topics([topic])
