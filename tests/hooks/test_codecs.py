"""Codecs of plugins: used instead of the built-in ones, checked, and named in errors."""

from __future__ import annotations

import gzip
import types
import zlib
from typing import Any

import pytest
import trio
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from offered_plugins import settings
from trio.testing import MockClock

import trikafka
from trikafka import PluginError, TopicPartition, hookimpl
from trikafka._api.client.codecs import codecs_of
from trikafka._wire import _implementation, compression, records
from trikafka.hooks import load_plugins
from trikafka.interfaces import CompressionCodec
from trikafka.testing import ScriptedCluster, encode_batch

T0 = TopicPartition("t", 0)


class Zlib:
    """Gzip by Python's own library. ``faults`` of one method begin when it is armed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.broken: Any = None

    def compress(self, data: Any, level: int | None) -> bytes:
        self.calls.append(("compress", level))
        return self._result(gzip.compress(data, 6 if level is None else level))

    def decompress(self, data: Any, limit: int) -> bytes:
        self.calls.append(("decompress", limit))
        machine = zlib.decompressobj(31)
        try:
            found = machine.decompress(data, limit + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(found) > limit:
            raise ValueError(f"more than {limit} bytes")
        return self._result(found)

    def _result(self, found: bytes) -> Any:
        if isinstance(self.broken, Exception):
            # a new one: the traceback of a kept error would keep the client of a test for ever
            raise type(self.broken)(*self.broken.args)
        return found if self.broken is None else self.broken


class Offers:
    """A plugin with codecs by their names."""

    def __init__(self, **codecs: object) -> None:
        self._codecs = codecs
        self.asked: list[str] = []

    @hookimpl
    def trikafka_compression(self, name: str) -> object | None:
        self.asked.append(name)
        return self._codecs.get(name)


async def read(cluster: ScriptedCluster, count: int, *plugins: object) -> list[bytes | None]:
    async with trikafka.open_consumer(
        **settings(cluster, *plugins, auto_offset_reset="earliest")
    ) as consumer:
        consumer.assign([T0])
        with trio.fail_after(30):
            return [(await consumer.receive()).value for _ in range(count)]


async def test_plugin_compresses_and_decompresses(autojump_clock: MockClock) -> None:
    codec = Zlib()
    assert isinstance(codec, CompressionCodec)
    offers = Offers(gzip=codec)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, offers, compression_type="gzip", compression_gzip_level=9)
        async with trikafka.open_producer(**given) as producer:
            assert offers.asked == ["gzip"]
            codec.calls.clear()
            await producer.send("t", b"x" * 1_000)
            assert codec.calls == [("compress", 9)]
        assert [record.value for record in cluster.records("t", 0)] == [b"x" * 1_000]
        offers.asked.clear()
        codec.calls.clear()
        assert await read(cluster, 1, offers) == [b"x" * 1_000]
        assert offers.asked == ["gzip", "snappy", "lz4", "zstd"]
        # Two samples at opening, and the batch.
        assert [call for call, _ in codec.calls] == ["compress", "decompress"] * 2 + ["decompress"]


async def test_split_batch_stays_whole(autojump_clock: MockClock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.fail("Produce", 10, times=1)  # the batch is too large
        given = settings(cluster, Offers(gzip=Zlib()), compression_type="gzip", linger_ms=10)
        async with trikafka.open_producer(**given) as producer:
            acks = [await producer.enqueue("t", b"%d" % number * 100) for number in range(20)]
            for ack in acks:
                await ack.wait()
            assert producer.statistics().batches_split == 1
        assert await read(cluster, 20) == [b"%d" % number * 100 for number in range(20)]


def test_missing_codec_plugin_changes_nothing() -> None:
    assert codecs_of(load_plugins([Offers()])) is compression.BY_ID


@pytest.mark.parametrize("name", _implementation.available())
def test_both_record_paths_use_the_plugin(name: str) -> None:
    codec = Zlib()
    before = _implementation.use(name)
    try:
        encoder = _implementation.current.BatchEncoder(compression.replaced("gzip", codec), 7)
        encoder.append(1, b"k", b"v" * 500)
        decoded = records.decode_some(
            bytes(encoder.build(-1, -1, -1)),
            topic="t",
            partition=0,
            fetch_offset=0,
            aborted=None,
            check_crcs=True,
            max_bytes=10_000,
            enough=10_000,
            codecs=codecs_of(load_plugins([Offers(gzip=codec)])),
        )
        assert [(record.key, record.value) for record in decoded.batch] == [(b"k", b"v" * 500)]
    finally:
        _implementation.use(before)
    assert codec.calls[0] == ("compress", 7)
    assert codec.calls[-1] == ("decompress", 10_000)


def test_old_message_formats_use_the_plugin() -> None:
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=1, batch_size=1 << 20)
    for offset in range(3):
        builder.append(offset, timestamp=1, key=None, value=b"v%d" % offset)
    codec = Zlib()
    table = codecs_of(load_plugins([Offers(gzip=codec)]))
    codec.calls.clear()
    decoded = records.decode_some(
        bytes(builder.build()),
        topic="t",
        partition=0,
        fetch_offset=0,
        aborted=None,
        check_crcs=True,
        max_bytes=10_000,
        enough=10_000,
        codecs=table,
    )
    assert [record.value for record in decoded.batch] == [b"v0", b"v1", b"v2"]
    assert [call for call, _ in codec.calls] == ["decompress"]


# Faults at opening.


class Renamed(Zlib):
    decompress = None  # type: ignore[assignment]


class Short(Zlib):
    def decompress(self, data: Any) -> bytes:  # type: ignore[override]
        return b""


class Waits(Zlib):
    async def compress(self, data: Any, level: int | None) -> bytes:  # type: ignore[override]
        return b""


class Identical(Zlib):
    def compress(self, data: Any, level: int | None) -> bytes:
        return bytes(data)


class Forgets(Zlib):
    def decompress(self, data: Any, limit: int) -> bytes:
        return b""


class Text(Zlib):
    def compress(self, data: Any, level: int | None) -> Any:
        return "text"


@pytest.mark.parametrize("client", [trikafka.open_producer, trikafka.open_consumer])
@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (
            Renamed(),
            "trikafka_compression returned Renamed, which is no CompressionCodec: it has no "
            "decompress",
        ),
        (
            Short(),
            r"trikafka_compression returned an object of Short, of which decompress\(data\) has to "
            r"be decompress\(data, limit\)",
        ),
        (
            Waits(),
            "trikafka_compression returned an object of Waits, of which compress must be plain",
        ),
        (Identical(), "codec 'gzip': what it compresses cannot be read as gzip"),
        (Forgets(), "codec 'gzip': what it decompresses is not what was compressed"),
        (Text(), "codec 'gzip': compress returned an object of type str, not bytes"),
    ],
)
async def test_wrong_codec_is_refused_at_opening(
    client: Any, codec: object, text: str, autojump_clock: MockClock
) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        more = {"compression_type": "gzip"} if client is trikafka.open_producer else {}
        with pytest.raises(PluginError, match=f"^plugin 'Offers': {text}"):
            async with client(**settings(cluster, Offers(gzip=codec), **more)):
                pass
        assert not cluster.log


# Faults at a later time.


async def test_failing_compress_ends_the_producer(autojump_clock: MockClock) -> None:
    codec = Zlib()
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        given = settings(cluster, Offers(gzip=codec), compression_type="gzip")
        acks: list[trikafka.Ack] = []

        async def write() -> None:
            async with trikafka.open_producer(**given) as producer:
                codec.broken = KeyError("oops")
                acks.append(await producer.enqueue("t", b"1"))
                await trio.sleep_forever()

        with pytest.raises(
            trikafka.ClientFailedError, match=r"plugin 'Offers': codec 'gzip' failed to compress"
        ) as caught:
            await write()
        assert isinstance(caught.value.__cause__, PluginError)
        assert repr(caught.value.__cause__.__cause__) == "KeyError('oops')"
        assert acks[0].done
        with pytest.raises(trikafka.ClientFailedError):
            await acks[0].wait()


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (
            ValueError("bad block"),
            trikafka.CorruptRecordError,
            "plugin 'Offers': codec 'gzip': bad block",
        ),
        (KeyError("oops"), PluginError, "plugin 'Offers': codec 'gzip' failed to decompress"),
        (None, None, ""),
        (
            7,
            PluginError,
            "plugin 'Offers': codec 'gzip': decompress returned an object of type int",
        ),
        (b"x" * 5_000_000, PluginError, "over the limit"),
    ],
    ids=["corrupt", "raises", "fine", "lies", "too much"],
)
async def test_wrong_decompress_is_raised(
    fault: Any, error: type[Exception] | None, text: str, autojump_clock: MockClock
) -> None:
    """The records before it are delivered, and none is lost when it works again."""
    codec = Zlib()
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append_batch("t", 0, encode_batch([b"1"], timestamp=1))
        cluster.append_batch("t", 0, encode_batch([b"2"], timestamp=1, compression="gzip"))
        given = settings(cluster, Offers(gzip=codec), auto_offset_reset="earliest")
        async with trikafka.open_consumer(**given) as consumer:
            codec.broken = fault
            consumer.assign([T0])
            with trio.fail_after(60):
                assert (await consumer.receive()).value == b"1"
                if error is not None:
                    for _ in range(2):
                        with pytest.raises(error, match=text):
                            await consumer.receive()
                codec.broken = None
                assert (await consumer.receive()).value == b"2"


@pytest.mark.parametrize("made", [bytes, bytearray, memoryview])
async def test_bytes_like_results_are_accepted(made: Any, autojump_clock: MockClock) -> None:
    codec = Zlib()
    same = types.SimpleNamespace(
        compress=lambda data, level: made(codec.compress(data, level)),
        decompress=lambda data, limit: made(codec.decompress(data, limit)),
    )
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        async with trikafka.open_producer(
            **settings(cluster, Offers(gzip=same), compression_type="gzip")
        ) as producer:
            await producer.send("t", b"1")
        assert await read(cluster, 1, Offers(gzip=same)) == [b"1"]


async def _receive_nowait(consumer: trikafka.Consumer[Any, Any]) -> list[Any]:
    return [consumer.receive_nowait().value]


async def _receive_batch_nowait(consumer: trikafka.Consumer[Any, Any]) -> list[Any]:
    return [record.value for record in consumer.receive_batch_nowait()]


async def _gather_nowait(consumer: trikafka.Consumer[Any, Any]) -> list[Any]:
    batches = consumer.batches().gather_nowait(100, 1_000_000)
    return [record.value for batch in batches for record in batch]


async def _gather(consumer: trikafka.Consumer[Any, Any]) -> list[Any]:
    batches = await consumer.batches().gather(100, 1_000_000)
    return [record.value for batch in batches for record in batch]


async def _gather_in_a_stream(consumer: trikafka.Consumer[Any, Any]) -> list[Any]:
    async with await anext(consumer.partitions()) as stream:
        batches = await stream.batches().gather(100, 1_000_000)
        return [record.value for batch in batches for record in batch]


WAYS = [_receive_nowait, _receive_batch_nowait, _gather_nowait, _gather, _gather_in_a_stream]


@pytest.mark.parametrize("way", WAYS)
async def test_failing_decompress_loses_no_record(way: Any, autojump_clock: MockClock) -> None:
    """What the codec failed for stays in the buffer, before all that was fetched after it."""
    codec = Zlib()
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        for compression_type in ("none", "gzip", "none"):
            data = [b"1", b"2"]
            cluster.append_batch(
                "t", 0, encode_batch(data, timestamp=1, compression=compression_type)
            )
        given = settings(cluster, Offers(gzip=codec), auto_offset_reset="earliest")
        async with trikafka.open_consumer(**given) as consumer:
            codec.broken = KeyError("oops")
            consumer.assign([T0])
            await trio.sleep(5)
            found, failures = [], 0
            with trio.move_on_after(60):
                while len(found) < 6:
                    try:
                        found += await way(consumer)
                    except PluginError:
                        failures += 1
                        if failures == 3:
                            codec.broken = None
                    except trio.WouldBlock:
                        await trio.sleep(1)
            assert (found, failures) == ([b"1", b"2"] * 3, 3)
