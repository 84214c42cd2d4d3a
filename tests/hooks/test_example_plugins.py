"""The example packages, installed and run as users would.

On a real broker: tests/live/test_plugins_live.py.
"""

from __future__ import annotations

import ast
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trikafka
from trikafka import CommitFailedError, OffsetAndMetadata, RecordBatch, TopicPartition
from trikafka.testing import ScriptedCluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
T0 = TopicPartition("t", 0)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the importable modules of the packages."""
    for package in EXAMPLES.iterdir():
        monkeypatch.syspath_prepend(str(package))
    import trikafka_group_log
    import trikafka_sqlite_offsets

    return trikafka_sqlite_offsets, trikafka_group_log


def writer(path: Path, offsets: Any) -> Any:
    def write(batch: RecordBatch) -> None:
        with closing(sqlite3.connect(path, isolation_level="immediate")) as database, database:
            offsets.advance(database, "g", batch)
            database.execute("create table if not exists results (part, at, value)")
            database.executemany(
                "insert into results values (?, ?, ?)",
                [(r.partition, r.offset, r.value) for r in batch],
            )

    return write


def results(path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("select part, at from results order by part, at").fetchall()


def settings(cluster: ScriptedCluster, *plugins: object, **more: Any) -> dict[str, Any]:
    given = {
        "bootstrap_servers": cluster.bootstrap_servers,
        "dial": cluster.dial,
        "group_id": "g",
        "plugins": plugins,
    }
    return given | {"auto_offset_reset": "earliest", "enable_auto_commit": False} | more


async def test_sqlite_offsets_survive_a_handover(modules: Any, tmp_path: Path) -> None:
    """One member dies between two batches, one goes on, and one returns too late.

    Each record counts once.
    """
    offsets, _ = modules
    path = tmp_path / "results.db"
    write, plugin = writer(path, offsets), offsets.SqliteOffsets(str(path))
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        for number in range(4):
            cluster.append("t", 0, [b"%d" % (10 * number + n) for n in range(10)])
        async with trikafka.open_consumer(
            "t", **settings(cluster, plugin, max_poll_records=10)
        ) as consumer:
            write(await consumer.receive_batch(timeout=240))
            late = await consumer.receive_batch(timeout=240)  # received, and not written
            assert await consumer.committed([T0]) == {T0: OffsetAndMetadata(10)}
        async with trikafka.open_consumer(
            "t", **settings(cluster, plugin, max_poll_records=10)
        ) as consumer:
            for _ in range(2):
                await trio.to_thread.run_sync(write, await consumer.receive_batch(timeout=240))
        with pytest.raises(
            CommitFailedError, match="t-0 was processed beyond 10 by another member"
        ):
            write(late)
        assert results(path) == [(0, n) for n in range(30)]
        assert not cluster.requests("OffsetCommit")
        assert not cluster.requests("OffsetFetch")


async def test_plain_commit_writes_to_sqlite(modules: Any, tmp_path: Path) -> None:
    offsets, _ = modules
    plugin = offsets.SqliteOffsets(str(tmp_path / "o.db"))
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"x"] * 5)
        async with trikafka.open_consumer(
            "t", **settings(cluster, plugin, enable_auto_commit=True)
        ) as consumer:
            for _ in range(3):
                await consumer.receive()
        async with trikafka.open_consumer("t", **settings(cluster, plugin)) as consumer:
            assert (await consumer.receive()).offset == 3
            await consumer.commit({T0: OffsetAndMetadata(1, metadata="back")})
            assert await consumer.committed([T0]) == {T0: OffsetAndMetadata(1, metadata="back")}


async def test_locked_database_is_named(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets, _ = modules
    path, connect = tmp_path / "o.db", sqlite3.connect
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_consumer(
            **settings(cluster, offsets.SqliteOffsets(str(path)))
        ) as consumer:
            with closing(sqlite3.connect(path)) as database:
                database.execute("begin exclusive")
                # SQLite would wait as long as the call may take, and one of the two would be first.
                monkeypatch.setattr("sqlite3.connect", lambda path, timeout: connect(path, 0.01))
                with pytest.raises(
                    trikafka.PluginError,
                    match=r"^plugin 'SqliteOffsets': commit.commit failed: .* is locked",
                ):
                    await consumer.commit({T0: 1})


def said_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "trikafka_group_log"]


async def test_listener_and_observer_are_counted(
    modules: Any, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    _, group_log = modules
    caplog.set_level("INFO", "trikafka_group_log")
    plugin = group_log.GroupLog()
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        async with trikafka.open_consumer(
            "t", **settings(cluster, plugin, client_id="worker")
        ) as consumer:
            await consumer.receive_batch(timeout=5)
    events = {"coordinator_found": 1, "joined": 1, "left": 1}
    assert plugin.counts == {"opened": 1, "assigned": 2, "revoked": 2, "closed": 1} | events
    assert [line for line in said_of(caplog) if line.startswith("worker: left")] == [
        "worker: left the consumer is being closed"
    ]
    said = [line for line in said_of(caplog) if line.split()[1] not in events]
    assert said == [
        "worker: opened ",
        "worker: assigned t-0, t-1",
        "worker: revoked t-0, t-1",
        "worker: closed after 5.0 s",
    ]


def install(site: Path) -> None:
    """Install a package by hand: its module, and its entry points where Python looks for them.

    pip would need its build tools here, and a network for those.
    """
    for package in EXAMPLES.iterdir():
        project = tomllib.loads((package / "pyproject.toml").read_text())
        about = project["project"]
        info = site / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
        )
        points = [f"{name} = {value}" for name, value in about["entry-points"]["trikafka"].items()]
        (info / "entry_points.txt").write_text("\n".join(["[trikafka]", *points]))
        for module in project["tool"]["setuptools"]["py-modules"]:
            shutil.copy(package / f"{module}.py", site)


def test_installed_plugins_are_found(tmp_path: Path) -> None:
    """A client uses them without a setting."""
    site = tmp_path / "site"
    install(site)
    program = f"""if True:
        import sys; sys.path.insert(0, {str(site)!r})
        import trio, trikafka
        from trikafka.testing import ScriptedCluster

        async def main():
            async with ScriptedCluster(topics={{"t": 1}}) as cluster:
                cluster.append("t", 0, [b"x"] * 5)
                given = dict(bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial)
                given |= dict(group_id="g", auto_offset_reset="earliest")
                async with trikafka.open_consumer("t", **given) as consumer:
                    await consumer.receive()
                    await consumer.commit()
                assert not cluster.requests("OffsetCommit")
        trio.run(main)
        import trikafka_group_log
        print(dict(trikafka_group_log.plugin.counts))
        """
    environment = {
        "TRIKAFKA_OFFSETS_DB": str(tmp_path / "o.db"),
        "PYTHONPATH": str(EXAMPLES.parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    counts = (
        "{'opened': 1, 'coordinator_found': 1, 'joined': 1, 'assigned': 1, 'revoked': 1, 'left': "
        "1, 'closed': 1}"
    )
    assert done.stdout == f"{counts}\n", done.stderr
    with closing(sqlite3.connect(tmp_path / "o.db")) as database:
        assert database.execute("select * from kafka_offsets").fetchall() == [("g", "t", 0, 1, "")]


def test_prometheus_example_uses_nothing_private() -> None:
    text = (EXAMPLES / "prometheus_text" / "trikafka_prometheus_text.py").read_text()
    taken = {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and not _own(node)
    }
    assert not {name for name in taken if name.startswith("_") and name != "__name__"}


def _own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


async def test_prometheus_text_needs_only_public_parts(
    modules: Any, autojump_clock: MockClock
) -> None:
    """The text is made from observers and statistics alone."""
    import trikafka_prometheus_text

    metrics = trikafka_prometheus_text.PrometheusText()
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "plugins": [metrics],
        }
        async with trikafka.open_producer(client_id="p", retry_backoff_ms=50, **given) as producer:
            cluster.fail("Produce", trikafka.ErrorCode.NOT_ENOUGH_REPLICAS)
            cluster.delay("Produce", 0.2)
            for _ in range(5):
                await producer.send("t", b"v")
            async with trikafka.open_consumer(**given) as consumer:
                text = metrics.text({"writer": producer, "reader": consumer})
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert lines['trikafka_records_delivered_total{client="p",topic="t"}'] == "5"
    assert lines['trikafka_batches_sent_total{client="p",topic="t"}'] == "6"
    assert (
        sum(
            int(number)
            for name, number in lines.items()
            if name.startswith("trikafka_batches_retried_total")
        )
        == 1
    )
    assert lines['trikafka_batch_delivery_seconds_bucket{client="p",topic="t",le="0.25"}'] == "4"
    assert lines['trikafka_batch_delivery_seconds_count{client="p",topic="t"}'] == "5"
    assert lines['trikafka_producer_records_delivered{client="writer"}'] == "5"
    assert lines['trikafka_producer_batches_by_state{client="writer",of="in flight"}'] == "0"
    assert float(lines['trikafka_producer_latency_longest{client="writer",of="0"}']) == 0.2
    assert "trikafka_consumer_buffered_bytes" in text
    assert 'trikafka_clients_closed_total{client="p"} 1' in metrics.text()
