"""Type checkers find an unknown setting and a wrong type where a client is opened."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Lines that end in ``# wrong`` must be found, by the name that stands there, and no others.
PROGRAM = """
from array import array
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Unpack

import trikafka
from trikafka import ConsumerSettings, aio


def decode(raw: bytes) -> str:
    return raw.decode()


@dataclass
class Order:
    number: int


class Orders:
    def deserialize(self, topic: str, headers: trikafka.Headers, data: bytes) -> Order:
        return Order(int(data))


async def of_bytes(record: trikafka.Record) -> None:
    print((record.value or b"").decode())


async def of_orders(record: trikafka.Record[str, Order]) -> None:
    print(record.key.upper(), record.value.number)


async def of_batches(batch: trikafka.RecordBatch[bytes | None, Order], _: trikafka.Transaction) -> None:
    print([record.value.number for record in batch], batch[0].value.number, batch[1:][0].value.number)


async def generic(client: trikafka.ClientSettings, plain: trikafka.BytesConsumerSettings, producer: trikafka.Producer) -> None:
    async with trikafka.open_consumer("orders", isolation_level="read_committed", **client) as consumer:
        await trikafka.run_tasks(consumer, of_bytes)
        await trikafka.run_tasks(consumer, of_orders)  # wrong
        consumer.undefined()  # wrong
    async with trikafka.open_consumer(**plain, key_deserializer=decode, value_deserializer=Orders()) as orders:
        record = await orders.receive()
        await orders.commit(record)
        orders.mark_processed(record)
        print(record.key.upper(), record.value.number + (await orders.receive_batch())[0].value.number)
        record.value.decode()  # wrong
        async for each in orders:
            print(each.value.number)
        async for batch in orders.batches():
            print(batch[0].value.number)
        async for stream in orders.partitions():
            async for one in stream:
                print(one.value.number)
        await trikafka.run_tasks(orders, of_orders)
        await trikafka.run_tasks(orders, of_bytes)  # wrong
    async with trikafka.open_consumer(**plain, value_deserializer=Orders()) as values:
        await trikafka.process(values, producer, of_batches)
    async with trikafka.open_consumer(**trikafka.from_properties({}), isolation_level="read_committed") as unknown:
        print((await unknown.receive()).value.anything)
        unknown.undefined()  # wrong


async def look_up(raw: bytes) -> str:
    return raw.decode()


class Registry:
    async def deserialize(self, topic: str, headers: trikafka.Headers, data: bytes) -> Order:
        return Order(int(data))


async def asynchronous(plain: trikafka.BytesConsumerSettings, given: dict[str, Any]) -> None:
    async with trikafka.open_consumer(**plain, key_deserializer=look_up, value_deserializer=Registry()) as both:
        record = await both.receive()
        print(record.key.upper(), record.value.number)
        record.value.decode()  # wrong
        await trikafka.run_tasks(both, of_orders)
        await trikafka.run_tasks(both, of_bytes)  # wrong
    async with trikafka.open_consumer(**plain, value_deserializer=look_up) as text:
        print((await text.receive()).value.upper(), (await text.receive()).key or b"")
        (await text.receive()).key.upper()  # wrong
    async with trikafka.open_consumer(**plain, key_deserializer=look_up, value_deserializer=Orders()) as mixed:
        print((await mixed.receive()).key.upper(), (await mixed.receive()).value.number)
    async with trikafka.open_consumer(**plain, key_deserializer=decode, value_deserializer=look_up) as mixed_too:
        print((await mixed_too.receive()).key.upper(), (await mixed_too.receive()).value.upper())
    async with trikafka.open_consumer("orders", isolation_level="read_committed", **given) as unknown:
        print((await unknown.receive()).value)
        unknown.undefined()  # wrong


async def in_asyncio(plain: trikafka.BytesConsumerSettings, given: dict[str, Any], producer: aio.Producer) -> None:
    async def of_transaction(batch: trikafka.RecordBatch[str, Order], txn: aio.Transaction) -> None:
        await producer.send("out", batch[0].key.encode())
        await txn.send_offsets({})

    async with aio.open_consumer("orders", **plain, key_deserializer=look_up, value_deserializer=Registry()) as both:
        print((await both.receive()).key.upper(), (await both.receive_batch())[0].value.number)
        async for record in both:
            print(record.value.number)
        async for batch in both.batches():
            print(batch[0].value.number)
        async for stream in both.partitions():
            async for one in stream:
                print(one.value.number, (await stream.receive()).key.upper())
            async for part in stream.batches():
                print(part[0].value.number)
        await aio.run_tasks(both, of_orders)
        await aio.run_tasks(both, of_bytes)  # wrong
        await aio.process(both, producer, of_transaction)
        await trikafka.run_tasks(both, of_orders)  # wrong
    async with aio.open_consumer("orders", isolation_level="read_committed", **given) as unknown:
        print((await unknown.receive()).value)
        unknown.undefined()  # wrong
    async with aio.open_consumer(**plain, value_deserializer=decode) as text:
        print((await text.receive()).value.upper())
        (await text.receive()).value.decode()  # wrong
    aio.open_consumer(bootstrap_server="localhost:9092")  # wrong


async def right(**more: Unpack[ConsumerSettings]) -> None:
    async with trikafka.open_consumer(
        "topic",
        bootstrap_servers=["localhost:9092"],
        group_id="g",
        group_protocol="consumer",
        auto_offset_reset="by_duration:PT1H",
        isolation_level="read_committed",
        session_timeout_ms=10_000.5,
        max_poll_records=None,
        value_deserializer=decode,
    ) as consumer:
        async for record in consumer:
            print(record.offset)
    settings: ConsumerSettings = {"bootstrap_servers": "localhost:9092", "group_id": "g"}
    async with trikafka.open_consumer("orders", **(settings | {"isolation_level": "read_committed"})) as joined:
        print(joined.config)
    async with trikafka.aio.open_consumer("orders", **(more | {"client_id": "c"})) as joined_too:
        print(joined_too.assignment())
    async with trikafka.open_consumer(**more), trikafka.open_consumer(**trikafka.from_properties({"group.id": "g"})):
        pass
    async with trikafka.open_producer(bootstrap_servers="localhost:9092", acks=1, compression_type="of a plugin") as producer:
        print((await producer.send("topic", b"value")).offset)
        print((await producer.send("topic", bytearray(b"value"), key=memoryview(b"key"))).offset)
        await producer.enqueue("topic", array("B", b"value"))
        await producer.send("topic", "value")  # wrong
        producer.send_nowait("topic", b"", key=5)  # wrong
    async with trikafka.aio.open_producer(bootstrap_servers="localhost:9092") as second:
        print((await second.send("topic", bytearray(b"value"))).offset)
    async with trikafka.open_admin(bootstrap_servers="localhost:9092", client_id="c") as admin:
        print(await admin.list_topics())


async def sharing(delivery: trikafka.Delivery[str, Order], batch: trikafka.ShareBatch[str, Order]) -> None:
    async with AsyncExitStack() as stack:
        print((await stack.enter_async_context(delivery)).record.value.number)
        print((await stack.enter_async_context(batch)).topic.upper())
    async with delivery as same:
        print(same.record.key.upper())
        same.record.value.decode()  # wrong


async def wrong() -> None:
    trikafka.open_consumer(bootstrap_server="localhost:9092")  # wrong
    trikafka.open_consumer(group_protocol="streams")  # wrong
    trikafka.open_consumer(isolation_level="committed")  # wrong
    trikafka.open_consumer(max_poll_records="500")  # wrong
    trikafka.open_consumer(["topic"])  # wrong
    unnamed = {"bootstrap_servers": "localhost:9092", "group_id": "g"}
    trikafka.open_consumer("orders", **unnamed)  # wrong
    trikafka.open_consumer(acks="all")  # wrong
    trikafka.open_producer(bootstrap_server="localhost:9092")  # wrong
    trikafka.open_producer(acks=2)  # wrong
    trikafka.open_admin(bootstrap_server="localhost:9092")  # wrong
    trikafka.no_such_name  # wrong
"""
WRONG = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


def checked(tmp_path: Path, *command: str) -> tuple[set[int], str]:
    """Return the lines in which a type checker finds errors, and its output."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", *command, str(program)], capture_output=True, text=True, cwd=ROOT
    )
    said = done.stdout + done.stderr
    found = re.findall(r"program\.py:(\d+):(?:\d+ -)? error", said)
    return {int(number) for number in found}, said


def test_mypy_finds_exactly_the_wrong_settings(tmp_path: Path) -> None:
    """With mypy alone:

    Pyright (basedpyright 1.40.2) finds the same lines, but needs Node, 280 MB in each environment.
    """
    found, said = checked(tmp_path, "mypy", "--strict")
    assert found == WRONG, said
    assert 'Unexpected keyword argument "bootstrap_server" for overloaded function' in said
    assert 'did you mean "bootstrap_servers"' in said
