"""A test of a consumer without a broker: nothing is lost while the broker is away.

Run it by pytest with pytest-trio, whose fixture ``autojump_clock`` makes waiting take no time, or
as a program.
"""

import trio
from trio.testing import MockClock

import trikafka
from trikafka.testing import ScriptedCluster


async def count(consumer: trikafka.Consumer, totals: dict[int, int]) -> None:  # under test
    async with trio.open_nursery() as nursery:
        async for stream in consumer.partitions():
            nursery.start_soon(count_one, stream, totals)


async def count_one(stream: trikafka.PartitionStream, totals: dict[int, int]) -> None:
    async for record in stream:
        totals[record.partition] = totals.get(record.partition, 0) + int(record.value or 0)


async def test_nothing_is_lost_while_broker_is_away(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"numbers": 2}) as cluster:
        cluster.append("numbers", 0, [b"1", b"2", b"3"])
        totals: dict[int, int] = {}
        settings: trikafka.ConsumerSettings = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "auto_offset_reset": "earliest",
        }
        settings["group_id"] = "g"
        async with (
            trikafka.open_consumer("numbers", **settings) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(count, consumer, totals)
            await trio.sleep(10)
            cluster.stop(0)
            await trio.sleep(20)  # less than session_timeout_ms, so the member stays
            cluster.start(0)
            cluster.append("numbers", 1, [b"4"])
            await trio.sleep(10)
            assert totals == {0: 6, 1: 4}
            nursery.cancel_scope.cancel()
    print("tested,", trio.current_time(), "seconds later")


if __name__ == "__main__":
    clock = MockClock(autojump_threshold=0)
    trio.run(test_nothing_is_lost_while_broker_is_away, clock, clock=clock)
