"""Read, process, write while workers and brokers are killed: exactly once, by librdkafka's count.

``make exactly-once`` is the long run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import trio
from trikafka_broker import Cluster

from benchmarks.exactly_once.run import PROPERTIES, Group, Options, run

if TYPE_CHECKING:
    from trikafka_broker.pytest_plugin import MakeKafkaCluster


def _logs(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text()[-2_000:] for path in directory.iterdir()}


async def test_each_record_is_written_once(
    make_kafka_cluster: MakeKafkaCluster, tmp_path: Path
) -> None:
    """With this seed a worker of each group is killed, two while they copy, and one leaves."""
    groups = (Group("classic", "process"), Group("consumer", "process"), Group("consumer", "tasks"))
    cluster = Cluster(
        await trio.to_thread.run_sync(lambda: make_kafka_cluster(brokers=3, properties=PROPERTIES))
    )
    with trio.fail_after(1_800):
        figures = await run(
            Options(seed=32, kills=4, broker_kills=1, groups=groups, rate=150, pause=2.0),
            cluster,
            tmp_path,
        )
    logs = _logs(tmp_path)
    assert figures.exact, (figures, logs)
    assert (figures.kills, figures.leaves, figures.broker_kills) == (4, 1, 1)
    assert figures.fed > 400
    assert not figures.ends, (figures, logs)
