"""A partition that never arrives whole, slow decoding, and a plugin that hangs, while the rest
continues.
"""

from __future__ import annotations

import logging
import threading
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from consuming import T0, T1, cluster_of, consumer_of, until
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from trio.testing import MockClock as Clock

import trikafka
from trikafka.errors import CorruptRecordError
from trikafka.testing import ScriptedCluster, assert_all_awaits_cancellable, encode_batch
from trikafka.testing._leftovers import assert_nothing_left


async def test_endlessly_cut_partition_is_an_error(
    autojump_clock: Clock,
) -> None:
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:

        async def cut_the_second(request: Any, default: Any) -> Any:
            response = await default()
            for topic in response.responses:
                for part in topic.partitions:
                    if part.partition_index == 1 and part.records:
                        part.records = part.records[:40]
            return response

        cluster.on("Fetch", cut_the_second)
        consumer.assign([T0, T1])
        with (  # noqa: PT012
            trio.fail_after(60),
            pytest.raises(CorruptRecordError, match="no complete record batch") as raised,
        ):
            while True:
                batch = await consumer.receive_batch()
                assert batch.partition == 0
                cluster.append("t", 0, [b"more"])
        assert (raised.value.partition, raised.value.offset) == (1, 0)


async def test_partition_that_is_whole_late_is_no_error(autojump_clock: Clock) -> None:
    """Responses are full with the first partition some times; then the second one is whole."""
    async with cluster_of(2, records=3) as cluster, consumer_of(cluster) as consumer:
        cut = 0

        async def cut_the_second(request: Any, default: Any) -> Any:
            nonlocal cut
            response = await default()
            for topic in response.responses:
                for part in topic.partitions:
                    if part.partition_index == 1 and part.records and (cut := cut + 1) % 16:
                        part.records = part.records[:40]
            return response

        cluster.on("Fetch", cut_the_second)
        consumer.assign([T0, T1])
        seen = 0
        with trio.fail_after(600):
            while seen < 5:
                batch = await consumer.receive_batch()
                seen += batch.partition == 1
                cluster.append("t", 0, [b"more"])
                if batch.partition == 1:
                    cluster.append("t", 1, [b"more"])
        assert cut > 60


def _append(cluster: ScriptedCluster, messages: int) -> None:
    """Append one compressed message of format v1 with many records.

    Python decodes it in some tenths of a second.
    """
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=1, batch_size=2**30)
    for number in range(messages):
        builder.append(number, timestamp=1, key=None, value=b"%d" % number)
    cluster.append_batch("t", 0, encode_batch([b"a place"], timestamp=1), count=messages)
    # The cluster would encode the message in format v2, so its bytes are put in as they are.
    object.__setattr__(cluster.partition("t", 0).batches[-1], "data", bytes(builder.build()))


async def test_cancelled_receive_keeps_the_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 20_000
    go_on = threading.Event()
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        _append(cluster, count)
        consumer.assign([T0])
        decoder = consumer._parts.readers._decoder
        decode = decoder.decode_now

        def decode_late(fetch: Any, most: int | None = None) -> Any:
            go_on.wait(240)  # on a busy machine it may be done before this test looks
            return decode(fetch, most)

        monkeypatch.setattr(decoder, "decode_now", decode_late)
        with trio.fail_after(240):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(consumer.receive)
                    await until(lambda: decoder._limiter.borrowed_tokens > 0)
                    scope.cancel()
            assert scope.cancelled_caught
            assert decoder._limiter.borrowed_tokens == 1  # the thread goes on
            assert consumer.statistics().buffered_bytes > 0  # what it decodes is not lost
            for _ in range(3):  # early receives wait for the same thread and may be cancelled
                with trio.move_on_after(0):
                    await consumer.receive()
            go_on.set()
            got: list[int] = []
            while len(got) < count:
                got += (await consumer.receive_batch()).offsets
            assert got == list(range(count))
            await until(lambda: decoder._limiter.borrowed_tokens == 0)
        await assert_nothing_left(cluster, consumer)


async def test_seek_wins_over_a_decoding_thread() -> None:
    count = 20_000
    async with cluster_of() as cluster, consumer_of(cluster) as consumer:
        _append(cluster, count)
        consumer.assign([T0])
        decoder = consumer._parts.readers._decoder
        with trio.fail_after(240):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.receive)
                await until(lambda: decoder._limiter.borrowed_tokens > 0)
                consumer.seek(T0, count - 2)
                nursery.cancel_scope.cancel()
            assert [(await consumer.receive()).offset for _ in range(2)] == [count - 2, count - 1]


async def test_cancelled_thread_decoding_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def setup() -> Any:
        async with cluster_of() as cluster, consumer_of(cluster) as consumer:
            _append(cluster, 100)
            monkeypatch.setattr(
                consumer._parts.readers._decoder, "_is_quick", lambda records: False
            )
            consumer.assign([T0])
            yield consumer, []

    async def scenario(given: Any) -> None:
        consumer, got = given
        while len(got) < 100:
            got += (await consumer.receive_batch()).offsets

    async def check(given: Any) -> None:
        with trio.fail_after(240):
            await scenario(given)
        assert given[1] == list(range(100))

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 2


class Hangs:
    async def run(self) -> None:
        await trio.sleep_forever()


class Plugin:
    __name__ = "Stuck"

    @trikafka.hookimpl
    def trikafka_request_manager(self, kind: str, context: Any) -> object | None:
        return Hangs() if kind == "fetch" else None


async def test_watchdog_names_a_hanging_plugin(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trikafka")
    async with (
        cluster_of(records=3) as cluster,
        consumer_of(cluster, plugins=[Plugin()]) as consumer,
    ):
        consumer.assign([T0])
        with trio.move_on_after(30):
            await consumer.receive()
        why = "plugin 'Stuck': fetch.run has fetched nothing of it, though there may be records"
        assert [record.getMessage().partition("): ")[2] for record in caplog.records] == [why]
        assert consumer.health().stalled == {T0: why}
