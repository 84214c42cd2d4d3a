"""The raw limits: the least work that a reader and a writer on this machine must do.

The reader is a plain socket that fetches the same bytes, checks their CRCs, and decodes nothing.
The writer is a Trio program that sends a request per record and waits for the response.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import trio
from kafka.protocol.consumer.fetch import FetchRequest

from trikafka._checksum import crc32c
from trikafka._wire import messages
from trikafka._wire.fetch import end_of_batches, read_fetch_response
from trikafka._wire.produce import ProduceMessage, ProduceResponse
from trikafka._wire.records import BatchEncoder

from .. import tuning
from ..jobs import Job, Outcome, Window
from ..pace import Pace

# What the raw limit is for: no client can be much faster on the same machine, so the distance to it
# is what a client can still gain. It uses trikafka's code for the frames of Fetch and Produce
# (trikafka._wire), but none of its connections, tasks or buffers. The reader sends the next fetch
# before it computes the checksums of the last, as any fast client would. So the network and the
# processor work at the same time, and the limit is not set by their sum.

_VERSION = 12
_PATIENCE = 240.0
_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">qiibIhi")
_CRC_START = 21
_COUNT = 57
_HEADER = 61


def _connected(job: Job) -> socket.socket:
    host, _, port = job.bootstrap.split(",")[0].rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=240)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class _Fetcher:
    """A connection with a buffer for each of the two responses in use at a time."""

    def __init__(self, job: Job) -> None:
        self._socket = _connected(job)
        self._buffers = [bytearray(2**20), bytearray(2**20)]
        self._topic = job.topic
        self._places = job.partitions
        self._number = 0
        self._asked: Any = None

    def ask(self, offsets: dict[int, int]) -> None:
        self._number += 1
        self._asked = messages.encode_request(self._request(offsets), _VERSION, self._number, "raw")
        self._socket.sendall(self._asked.frame)

    def take(self) -> memoryview:
        """Return the body of the response.

        The view is valid until the response after the next is taken.
        """
        head = bytearray(4)
        self._fill(memoryview(head))
        (size,) = _INT32.unpack(head)
        self._buffers.reverse()
        if len(self._buffers[0]) < size:
            self._buffers[0] = bytearray(size + 2**20)
        frame = memoryview(self._buffers[0])[:size]
        self._fill(frame)
        return frame[5:]  # after the correlation id and no tagged fields

    def close(self) -> None:
        self._socket.close()

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionError("the broker closed the connection")
            view = view[count:]

    def _request(self, offsets: dict[int, int]) -> FetchRequest:
        turn = self._number % self._places
        order = [*range(turn, self._places), *range(turn)]
        make = FetchRequest.FetchTopic.FetchPartition
        parts = [
            make(
                partition=number,
                current_leader_epoch=-1,
                fetch_offset=offsets[number],
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=tuning.RAW["max_partition_fetch_bytes"],
            )
            for number in order
        ]
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=tuning.RAW["fetch_max_bytes"],
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=self._topic, partitions=parts)],
            forgotten_topics_data=[],
            rack_id="",
        )


def _checked_batches(records: memoryview) -> Iterator[int]:
    """Yield the number of records of each complete batch after its checksum has been verified."""
    position = 0
    while position + _HEADER <= len(records):
        _, size, _, _, crc, _, _ = _HEAD.unpack_from(records, position)
        end = position + 12 + size
        if end > len(records):
            return
        if crc32c(records[position + _CRC_START : end]) != crc:
            raise ValueError("checksum mismatch")
        yield _INT32.unpack_from(records, position + _COUNT)[0]
        position = end


def consume_raw(job: Job) -> Outcome:
    fetcher = _Fetcher(job)
    offsets = dict.fromkeys(range(job.partitions), 0)
    count = fetched = 0
    with Window() as window:
        fetcher.ask(offsets)
        while count < job.records:
            parts = read_fetch_response(fetcher.take(), _VERSION).partitions
            for part in parts:
                if part.error_code:
                    raise RuntimeError(f"partition {part.partition}: error code {part.error_code}")
                end = end_of_batches(part.records, offsets[part.partition])
                assert end is not None
                offsets[part.partition] = end
            fetcher.ask(offsets)
            for part in parts:
                fetched += len(part.records)
                count += sum(_checked_batches(part.records))
    fetcher.close()
    return Outcome(
        count,
        count * job.size,
        window,
        "fetch and CRC",
        dict(tuning.RAW),
        extra={"fetched_bytes": fetched},
    )


class _Writer:
    """A writer that sends the same request again and again.

    The responses are counted. Only the first is decoded, since all others are to the same request.
    """

    def __init__(self, job: Job) -> None:
        encoder = BatchEncoder("none", None)
        encoder.append(time.time_ns() // 1_000_000, None, bytes(job.size), ())
        encoder.close()
        batch = encoder.head(-1, -1, -1, transactional=False), encoder.close()
        message = ProduceMessage({job.topic: [(0, batch)]}, records=1, acks=-1, timeout_ms=30_000)
        self._frame = messages.encode_request(message, _VERSION, 1, "raw").frame
        self._socket = _connected(job)
        self._socket.setblocking(False)
        self._waiting: deque[trio.lowlevel.Task] = deque()

    async def send(self) -> None:
        if self._socket.send(self._frame) < len(self._frame):
            raise RuntimeError("the socket takes no more")
        task = trio.lowlevel.current_task()
        self._waiting.append(task)

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def read(self) -> None:
        data = bytearray()
        known = False
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            received = self._socket.recv(65_536)
            if not received:
                raise ConnectionError("the broker closed the connection")
            data += received
            while len(data) >= 4 and len(data) >= 4 + (size := _INT32.unpack_from(data)[0]):
                known = known or self._is_delivered(data[4 : 4 + size])
                del data[: 4 + size]
                trio.lowlevel.reschedule(self._waiting.popleft())

    def _is_delivered(self, frame: bytearray) -> bool:
        """Check the first response for an error. The following ones are to the same request."""
        (part,) = ProduceResponse.decode(frame[5:], version=_VERSION).partitions
        if part.error_code:
            raise RuntimeError(f"error code {part.error_code}")
        return True

    def close(self) -> None:
        self._socket.close()


async def _acks(job: Job) -> Outcome:
    ages: list[float] = []
    writer = _Writer(job)

    async def send() -> None:
        began = time.perf_counter()
        await writer.send()
        ages.append(time.perf_counter() - began)

    try:
        with trio.fail_after(_PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.read)
                await writer.send()
                with Window() as window, Pace(job.rate) as pace:
                    async with trio.open_nursery() as senders:
                        for _ in range(job.records):
                            await pace.tick(trio.lowlevel.wait_readable)
                            senders.start_soon(send)
                nursery.cancel_scope.cancel()
    finally:
        writer.close()
    return Outcome(
        len(ages),
        len(ages) * job.size,
        window,
        "socket.send(), a task each",
        dict(tuning.RAW_WRITER),
        ages,
    )


def acks(job: Job) -> Outcome:
    """Measure the time from the write of a prepared request to the end of the waiting task.

    Another task reads the response.
    """
    return trio.run(_acks, job)


WAYS = {("consume", "raw"): consume_raw, ("latency", "acks"): acks}
