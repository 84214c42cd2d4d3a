"""Topics with known records, and the files of an export as a reader with a glob finds them."""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow.dataset as ds
import trio

import trikafka
from benchmarks.librdkafka import read_topic
from trikafka import NewTopic

TIME = 1_700_000_000_000


def value_of(number: int) -> bytes | None:
    """Return the value of a topic's record ``number``; one in fifty is a tombstone."""
    return None if number % 50 == 3 else b'{"n": %d, "pad": "%s"}' % (number, b"x" * 80)


async def make_topic(bootstrap_servers: str, name: str, records: int, partitions: int) -> str:
    """Create a topic that keeps old records, and fill it."""
    async with trikafka.open_admin(bootstrap_servers=bootstrap_servers) as admin:
        await create_known(admin, name, partitions)
    await add_records(bootstrap_servers, name, 0, records, partitions)
    return name


async def create_known(
    admin: trikafka.Admin, name: str, partitions: int = 1, **config: str
) -> None:
    """Create a topic that keeps old records, and wait until the brokers know it.

    The controller responds first: a look-up at that moment finds no topic, or its predecessor. A
    producer looks for a topic for three seconds only.
    """
    topic = NewTopic(partitions, 1, {"retention.ms": "-1", **config})
    created = (await admin.create_topics({name: topic}))[name]
    await known_with(admin, name, partitions, created.topic_id)


async def known_with(
    admin: trikafka.Admin, name: str, partitions: int, topic_id: uuid.UUID | None = None
) -> None:
    """Wait until the brokers know the topic with its number of partitions, and all leaders."""
    with trio.fail_after(240):
        while True:
            with suppress(trikafka.UnknownTopicOrPartitionError):
                found = (await admin.describe_topics([name]))[name]
                leaders = [each for each in found.partitions if each.leader is not None]
                if len(leaders) == partitions and topic_id in (None, found.topic_id):
                    return
            await trio.sleep(0.02)


async def add_records(
    bootstrap_servers: str, name: str, first: int, count: int, partitions: int
) -> None:
    """Add records with the numbers from ``first`` on, in turn to each partition."""
    if not count:
        return
    async with trikafka.open_producer(
        bootstrap_servers=bootstrap_servers, linger_ms=20
    ) as producer:
        for number in range(first, first + count):
            headers = (("h", b"x"), ("none", None)) if number % 10 == 0 else ()
            await producer.enqueue(
                name,
                value_of(number),
                key=b"k%d" % (number % 7),
                headers=headers,
                timestamp=TIME + number,
                partition=number % partitions,
            )
        await producer.flush()


async def settled(bootstrap_servers: str) -> None:
    """Wait until each transaction that is just ending has ended.

    A commit is answered before its markers are in the logs.
    """
    async with trikafka.open_admin(bootstrap_servers=bootstrap_servers) as admin:
        with trio.fail_after(240):
            # A coordinator that is just being elected lists nothing yet, without an error. Other
            # processes have transactions at this broker, too: the later ones do not matter here.
            looks, ending = 0, set[str]()
            while looks < 5 or ending:
                found = await admin.list_transactions(states=["PrepareCommit", "PrepareAbort"])
                now = {each.transactional_id for each in found}
                ending = ending | now if looks < 5 else ending & now
                looks += 1
                await trio.sleep(0.02)


async def committed(bootstrap_servers: str, topic: str) -> Counter[bytes]:
    """Return the values that librdkafka finds, with their counts.

    Transactions that are just ending end first. Open ones stay open: librdkafka reads up to them.
    """
    await settled(bootstrap_servers)
    messages = await trio.to_thread.run_sync(read_topic, bootstrap_servers, topic, "read_committed")
    return Counter(message.value() for message in messages)


async def make_anew(bootstrap_servers: str, topic: str, records: int) -> None:
    """Delete a topic and create it again, with other records."""
    async with trikafka.open_admin(bootstrap_servers=bootstrap_servers) as admin:
        await admin.delete_topics([topic])
        with trio.fail_after(240):
            while True:
                try:
                    await create_known(admin, topic)
                    break
                except trikafka.TopicAlreadyExistsError:
                    await trio.sleep(0.05)
    await add_records(bootstrap_servers, topic, 0, records, 1)


def data_files(root: Path) -> list[Path]:
    """Return the files that a reader with a glob finds."""
    return sorted(root.glob("*.parquet"))


def times_of_files(root: Path) -> dict[Path, int]:
    """Return the time of each file's last change, except for the lock."""
    return {
        path: path.stat().st_mtime_ns
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def check_whole(root: Path, records: int, partitions: int) -> None:
    """Check that a glob finds every record exactly once, unchanged.

    No other files may be left.
    """
    table = ds.dataset([str(path) for path in data_files(root)]).to_table()
    found = Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    expected = {(number % partitions, number // partitions) for number in range(records)}
    assert set(found) == expected
    assert max(found.values(), default=1) == 1, "no row twice"
    numbers = [
        offset * partitions + partition
        for partition, offset in zip(
            table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True
        )
    ]
    assert table["value"].to_pylist() == [value_of(number) for number in numbers]
    assert table["key"].to_pylist() == [b"k%d" % (number % 7) for number in numbers]
    assert table["timestamp"].cast("int64").to_pylist() == [
        (TIME + number) * 1000 for number in numbers
    ]
    others = {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".parquet"
    }
    plans = {name for name in others if name.startswith("_trikafka/plan-")}
    assert others == {
        "_trikafka/lock",
        *plans,
        *(name.replace("/plan-", "/manifest-") for name in plans),
    }
