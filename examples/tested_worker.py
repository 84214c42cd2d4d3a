"""A test of a worker without a broker.

A record that the worker cannot read becomes a dead letter, and the others are processed.

Run it by pytest with pytest-trio, whose fixture ``autojump_clock`` makes waiting take no time, or
as a program.
"""

import json

import trio
from trio.testing import MockClock

import trikafka
from trikafka.testing import ScriptedCluster


async def handle(record: trikafka.Record) -> None:  # under test
    order = json.loads(record.value or b"null")
    print(order["customer"], order["item"])


async def test_nonsense_is_a_dead_letter(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"orders": 1, "orders.dead": 1}) as cluster:
        cluster.append("orders", 0, [b"nonsense", b'{"customer": "ann", "item": "tea"}'])
        settings: trikafka.ConsumerSettings = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "group_id": "worker",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with (
            trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
            ) as producer,
            trikafka.open_consumer("orders", **settings) as consumer,
        ):
            with trio.move_on_after(30):  # run_tasks() runs until it is cancelled
                await trikafka.run_tasks(
                    consumer, handle, producer=producer, dead_letter="orders.dead"
                )
        (dead,) = cluster.records("orders.dead", 0)
        assert dead.value == b"nonsense"
        assert dict(dead.headers)["trikafka.error"] == b"json.decoder.JSONDecodeError"
        committed = cluster.committed("worker", ("orders", 0))
        assert committed is not None
        assert committed.offset == 2
    print("tested,", trio.current_time(), "seconds later")


if __name__ == "__main__":
    clock = MockClock(autojump_threshold=0)
    trio.run(test_nonsense_is_a_dead_letter, clock, clock=clock)
