"""The programs of the pages "Coming from ...", run as written, except for the address and a limit.

They run on a real broker, with the client that a reader comes from and with trikafka.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_waits import topic_reported, topics_deleted

import trikafka

ROOT = Path(__file__).parents[2]
CLIENTS = ["aiokafka", "confluent-kafka", "kafka-python"]
#: A program that reads for 10 s, however many records there are, may read longer: a busy machine may
#: take that time to join a group.
CHANGES = {
    "consumer_timeout_ms=10_000": "consumer_timeout_ms=60_000",
    "move_on_after(10)": "move_on_after(60)",
}
PAGES = [*(f"from-{client}.md" for client in (*CLIENTS, "spark-connector")), "java.md"]


def programs(page: str) -> dict[str, str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- run: (\w+) -->\n```python\n(.*?)```", text, re.DOTALL))


@pytest.fixture
async def servers(kafka_broker: Any) -> AsyncIterator[str]:
    """Create the empty topic that the programs use; return the broker's address."""
    async with trikafka.open_admin(bootstrap_servers=kafka_broker.bootstrap_servers) as admin:
        await admin.create_topics({"greetings": trikafka.NewTopic(3, 1)})
        await topic_reported(admin, "greetings", 3)
        yield kafka_broker.bootstrap_servers
        await topics_deleted(admin, ["greetings"])


@pytest.mark.parametrize("client", CLIENTS)
async def test_programs_before_and_after_run(client: str, servers: str, tmp_path: Path) -> None:
    """Both print the same, and put the same keys into the same partitions."""
    found = programs(f"from-{client}.md")
    assert set(found) == {"before", "after"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for name, text in found.items():
        file = tmp_path / f"{name}.py"
        for old, new in CHANGES.items():
            text = text.replace(old, new)
        file.write_text(text.replace("localhost:9092", servers), encoding="utf-8")
        with trio.fail_after(400):
            done = await trio.run_process(
                [sys.executable, str(file)],
                capture_stdout=True,
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": path},
            )
        assert done.stdout.decode().splitlines() == ["10"]
    keys: list[dict[bytes | None, int]] = [{}, {}]
    async with trikafka.open_consumer(
        bootstrap_servers=servers, auto_offset_reset="earliest"
    ) as consumer:
        places = [trikafka.TopicPartition("greetings", number) for number in range(3)]
        consumer.assign(places)
        async for batch in consumer.batches(until=await consumer.end_offsets(places)):
            for record in batch:
                keys[record.key in keys[0]][record.key] = record.partition
    assert keys[0] == keys[1]
    assert len(keys[0]) == 10


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_short(page: str) -> None:
    assert len((ROOT / "docs" / page).read_text(encoding="utf-8").split()) < 1_200
