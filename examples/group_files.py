"""Parquet files of a group's records: each record is in one file, whatever is killed.

Workers of one group may share the folder, on a file system with hard links and locks (flock).
See docs/export.md.
"""

import fcntl
import os
import signal
import sys
import uuid
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import trio

import trikafka

SETTINGS: trikafka.ConsumerSettings = {
    "bootstrap_servers": os.environ.get("KAFKA", "localhost:9092"),
    "group_id": "group-files",
    "enable_auto_commit": False,  # run_tasks commits
    "auto_offset_reset": "earliest",
    "fetch_min_bytes": 1 << 20,  # a batch is a file: larger batches make fewer files
    "fetch_max_wait_ms": 5_000,
    "max_poll_records": 1_000_000,
}


def write(folder: Path, topic_id: uuid.UUID, batch: trikafka.RecordBatch) -> None:
    """Write the rows of the batch that are in no file yet. They are durable on return."""
    prefix = f"{batch.topic}-{topic_id}-{batch.partition:05}-"
    rows = pa.Table.from_batches([batch.to_arrow()])
    # Members may begin at different offsets, where the topic's beginning has moved. Two that looked
    # at the same time could then write files that overlap, so one member at a time looks and writes.
    with locked(folder / f".{prefix}lock"):
        while rows.num_rows:
            # A file is named by its first offset, and no file replaces another one. So a member
            # that is late, or reads again after a kill, finds the rows that are written, however
            # they were cut.
            first = rows["offset"][0].as_py()
            path = folder / f"{prefix}{first:020}.parquet"
            files = sorted(folder.glob(f"{prefix}*.parquet"))
            before = bisect_right(files, path)
            last = last_offset(files[before - 1]) if before else -1
            if last >= first:
                rows = rows.filter(pc.field("offset") > last)
                continue
            end = int(files[before].stem[-20:]) if before < len(files) else sys.maxsize
            publish(rows.filter(pc.field("offset") < end), path)  # the next round skips them


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which the kernel releases if this process is killed."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def last_offset(path: Path) -> int:
    """Return the offset of a file's last row."""
    offset: int = pq.read_table(path, columns=["offset"])["offset"][-1].as_py()
    return offset


def publish(rows: pa.Table, path: Path) -> None:
    """Make the file whole and visible in one step, unless another member was faster."""
    aside = path.with_name(f".{uuid.uuid4()}")  # readers skip this name
    try:
        pq.write_table(rows, aside)
        sync(aside)
        os.link(aside, path)
    except FileExistsError:
        pass
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def make(folder: Path) -> None:
    """Make a folder and its missing parents; their names are durable on return."""
    if not folder.exists():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Make a file's content, or a folder's names, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def copy(consumer: trikafka.Consumer, topic: str, folder: Path) -> None:
    """Write all records of the topic, until a signal comes."""
    await trio.to_thread.run_sync(make, folder)
    # A topic that is deleted and created again has other records at the same offsets, and another
    # id. The id is looked up before the first fetch and after each one: what is fetched in between
    # is of that topic.
    topic_id = (await consumer.topic_ids([topic])).get(topic)
    if topic_id is None:
        raise RuntimeError(f"topic {topic} does not exist, or has no id (before Kafka 2.8)")
    consumer.subscribe([topic])

    async def handle(batch: trikafka.RecordBatch) -> None:
        if (await consumer.topic_ids([topic])).get(topic) != topic_id:
            raise RuntimeError(
                f"topic {topic} was deleted: start again for a new topic of that name"
            )
        await trio.to_thread.run_sync(write, folder, topic_id, batch)

    stop = [signal.SIGTERM, signal.SIGINT]
    await trikafka.run_tasks(consumer, handle, batches=True, stop_on=stop)


async def main() -> None:
    async with trikafka.open_consumer(**SETTINGS) as consumer:
        await copy(consumer, sys.argv[1], Path(sys.argv[2]))


if __name__ == "__main__":
    trio.run(main)
