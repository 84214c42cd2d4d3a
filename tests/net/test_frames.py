"""Frames: whole, byte by byte, with others behind them, cut off, and bytes that are no frame."""

from __future__ import annotations

import ctypes
import struct

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from trikafka._net.transport import FrameReader, transport_of
from trikafka._wire import _implementation
from trikafka.errors import DamagedResponseError, ProtocolError

MAX = 1_000_000


class Pieces(trio.abc.Stream):
    """A stream that yields the given pieces, and then its end."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.asked: list[int | None] = []

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked.append(max_bytes)
        if not self.pieces:
            return b""
        piece = self.pieces.pop(0)
        if max_bytes is not None and len(piece) > max_bytes:
            self.pieces.insert(0, piece[max_bytes:])
            piece = piece[:max_bytes]
        return piece

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        raise AssertionError("a frame reader does not write")

    async def wait_send_all_might_not_block(self) -> None:
        raise AssertionError("a frame reader does not write")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def read_all(*pieces: bytes, most: int = MAX) -> list[bytes]:
    reader = FrameReader(transport_of(Pieces(*pieces)), most, "peer:1")
    frames: list[bytes] = []
    while (found := await reader.read()) is not None:
        frames.append(bytes(found))
    return frames


BODIES = [b"abcd", b"0123456789", bytes(70_000), bytes(range(256)) * 1000, b"last"]


async def test_whole_frames_are_read() -> None:
    assert await read_all(*map(frame, BODIES)) == BODIES


async def test_frames_may_come_all_at_once() -> None:
    assert await read_all(b"".join(map(frame, BODIES))) == BODIES


async def test_frames_may_come_byte_by_byte() -> None:
    small = [body[:300] for body in BODIES]
    data = b"".join(map(frame, small))
    assert await read_all(*(data[i : i + 1] for i in range(len(data)))) == small


@pytest.mark.parametrize("cut", range(1, 12))
async def test_peer_may_close_inside_a_frame(cut: int) -> None:
    assert await read_all(frame(b"whole"), frame(b"12345678")[:cut]) == [b"whole"]


async def test_rest_of_a_large_frame_is_read_exactly() -> None:
    stream = Pieces(frame(bytes(200_000)) + b"next")
    reader = FrameReader(transport_of(stream), MAX, "peer:1")
    assert len(await reader.read() or b"") == 200_000
    assert stream.asked == [65_536, 200_000 - (65_536 - 4)]
    assert stream.pieces == [b"next"]


TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x50"
NO_FRAMES = [
    struct.pack(">i", -1) + b"abc",
    struct.pack(">i", 0),
    struct.pack(">i", 3) + b"abc",
    struct.pack(">i", MAX + 1),
    struct.pack(">i", 2**31 - 1),
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    TLS_ALERT,
]


@pytest.mark.parametrize("data", NO_FRAMES)
async def test_impossible_lengths_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="peer:1 does not speak Kafka's protocol") as caught:
        await read_all(data)
    assert repr(data[:8]) in str(caught.value)
    assert caught.value.retriable is (data is not TLS_ALERT)


@pytest.mark.parametrize("data", NO_FRAMES)
async def test_bad_length_later_is_damage(data: bytes) -> None:
    """Behind a good frame the stream is as good as lost, also if the bytes look like an alert."""
    size = struct.unpack(">i", data[:4])[0]
    with pytest.raises(
        DamagedResponseError, match=f"peer:1 sent a response of {size:,} bytes"
    ) as caught:
        await read_all(frame(b"fine"), data)
    assert caught.value.retriable


async def test_largest_allowed_frame_is_read() -> None:
    assert [len(found) for found in await read_all(frame(bytes(MAX)))] == [MAX]


@given(
    st.lists(st.binary(min_size=4, max_size=300), max_size=8),
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
)
def test_any_cuts_give_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    data, pieces = b"".join(map(frame, bodies)), []
    for index in range(len(data) + 1):
        size = cuts[index % len(cuts)]
        if not data:
            break
        pieces.append(data[:size])
        data = data[size:]
    assert trio.run(read_all, *pieces) == bodies


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_protocol_error(data: bytes) -> None:
    try:
        frames = trio.run(read_all, data)
    except ProtocolError:
        return
    assert b"".join(map(frame, frames)) == data[: sum(len(found) + 4 for found in frames)]


async def test_frames_are_read_from_a_real_socket() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            for body in BODIES:
                await stream.send_all(frame(body))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            transport = transport_of(stream)
            reader = FrameReader(transport, MAX, "peer:1")
            assert [bytes(await reader.read() or b"") for _ in BODIES] == BODIES
            assert await reader.read() is None
            await transport.aclose()
        nursery.cancel_scope.cancel()


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


async def test_large_frames_reuse_unreferenced_memory() -> None:
    for _ in range(2):
        _implementation.current.trim_memory(at_once=True)
    sizes = [300_000, 310_000, 290_000, 280_000, 300_000, 900_000, 300_000]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    reader = FrameReader(transport_of(Pieces(*map(frame, bodies))), MAX, "peer:1")

    async def read() -> memoryview:
        found = await reader.read()
        assert found is not None
        return found

    first = await read()
    home = address(first)
    piece = first[100:200]
    del first
    second = await read()
    assert address(second) != home, "a view of a part keeps the whole"
    assert (bytes(piece), second) == (bodies[0][100:200], bodies[1])
    del piece
    third = await read()
    assert address(third) == home
    assert (second, third) == (bodies[1], bodies[2])
    fourth = await read()
    assert [bytes(each) for each in (second, third, fourth)] == bodies[1:4]
    del third
    fifth = await read()
    assert address(fifth) == home
    assert (second, fifth) == (bodies[1], bodies[4])
    assert [bytes(await read()) for _ in range(2)] == bodies[5:7]


async def test_small_frames_release_large_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        _implementation.current.trim_memory(at_once=True)
    looks = []
    monkeypatch.setattr(_implementation.current, "trim_memory", lambda: looks.append(1))
    reader = FrameReader(
        transport_of(Pieces(frame(bytes(300_000)), frame(b"small"))), MAX, "peer:1"
    )
    await reader.read()
    assert (looks, _implementation.current.free_memory() >= 300_000) == ([], True)
    await reader.read()
    assert looks == [1]


async def test_port_that_needs_tls_is_named() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    await theirs.send_all(b"\x15\x03\x03\x00\x02\x02P")
    with (
        trio.fail_after(240),
        pytest.raises(
            ProtocolError,
            match="without TLS: set security_protocol to 'SSL'",
        ),
    ):
        await FrameReader(transport_of(ours), 1_000_000, "broker-0").read()
