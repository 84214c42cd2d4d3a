"""Streams that are closed by a task other than their handler's."""

from __future__ import annotations

import trio
import trio.lowlevel
from consuming import T0, cluster_of, consumer_of

from trikafka import PartitionStream


async def test_closed_stream_drops_its_decoding() -> None:
    """A record that a thread decodes during the close is delivered by the next stream, once."""
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        # These are more bytes than are decoded within one step.
        cluster.append("t", 0, [bytes(2**20)] * 64, compression="zstd")
        consumer.assign([T0])
        assigned, late = consumer._assignment.get(T0), list[int]()

        async def handle(stream: PartitionStream) -> None:
            async for record in stream:
                late.append(record.offset)

        with trio.fail_after(240):
            async with trio.open_nursery() as nursery:
                async for stream in consumer.partitions():
                    nursery.start_soon(handle, stream)
                    break
                while assigned.fetch_offset != 64 or consumer.statistics().buffered_bytes:
                    await trio.lowlevel.checkpoint()
                cluster.append("t", 0, [b"after"])
                while not consumer.statistics().buffered_bytes and not late:
                    await trio.lowlevel.checkpoint()
                before, expected = len(late), assigned.processed
                await stream.aclose()
                async for further in consumer.partitions():
                    assert (await further.receive()).offset == expected
                    break
        assert len(late) == before


async def test_closed_stream_drops_its_table() -> None:
    """The records gathered for a table are delivered by the next stream only."""
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        cluster.append("t", 0, [b"first"])
        # These are more bytes than are decoded within one step.
        cluster.append("t", 0, [bytes(2**20)] * 64, compression="zstd")
        consumer.assign([T0])
        assigned, late = consumer._assignment.get(T0), list[int]()

        async def handle(stream: PartitionStream) -> None:
            async for table in stream.arrow_batches(max_rows=10**6, max_bytes=2**30):
                late.extend(table["offset"].to_pylist())

        with trio.fail_after(240):
            async with trio.open_nursery() as nursery:
                async for stream in consumer.partitions():
                    while assigned.fetch_offset < 65:
                        await trio.lowlevel.checkpoint()
                    nursery.start_soon(handle, stream)
                    break
                # Once there is a position, the first batch is gathered and the second is being
                # decoded.
                while not assigned.position:
                    await trio.lowlevel.checkpoint()
                await stream.aclose()
                async for further in consumer.partitions():
                    assert [(await further.receive()).offset for _ in range(65)] == list(range(65))
                    break
        assert not late
