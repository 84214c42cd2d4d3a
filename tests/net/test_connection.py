"""One connection, with its peer played by hand: what is in flight, what waits, and when it ends.

All times are exact.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
import trio
import trio.testing
from kafka.protocol.admin import DescribeAclsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest
from netting import Asked, Line, Peer, connected, metadata_request
from trio.testing import MockClock as Clock
from trio.testing import wait_all_tasks_blocked

from trikafka.errors import (
    DamagedResponseError,
    KafkaConnectionError,
    ProtocolError,
    TrikafkaError,
    UnsupportedVersionError,
)
from trikafka.testing import assert_all_awaits_cancellable


def free_slots(line: Line) -> int:
    return int(line.connection._room.available_tokens)


def produce(acks: int = 0) -> ProduceRequest:
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[])


async def test_responses_go_to_their_callers(autojump_clock: Clock) -> None:
    async with connected() as line:
        asked = [line.ask() for _ in range(5)]
        await wait_all_tasks_blocked()
        requests = [await line.peer.request() for _ in asked]
        assert line.connection.in_flight == 5
        by_id = {request.header.correlation_id: number for number, request in enumerate(requests)}
        assert len(by_id) == 5
        for number, request in enumerate(requests):
            await line.peer.answer(request, controller_id=number)
        assert sorted([(await each.outcome()).controller_id for each in asked]) == list(range(5))
        assert (line.connection.in_flight, free_slots(line)) == (0, 100)


async def test_requests_are_written_in_order(autojump_clock: Clock) -> None:
    async with connected() as line:
        order: list[int] = []

        async def ask(number: int) -> None:
            order.append(number)
            await line.connection.request(
                MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=str(number))])
            )

        for number in range(50):
            line.nursery.start_soon(ask, number)
        await wait_all_tasks_blocked()
        seen = []
        for _ in range(50):
            request = await line.peer.request()
            seen.append(int(request.topics[0].name))
            await line.peer.answer(request)
        assert seen == order


async def test_overtaking_response_ends_the_connection(autojump_clock: Clock) -> None:
    async with connected() as line:
        first, second = line.ask(), line.ask()
        await line.peer.request()
        await line.peer.answer(await line.peer.request(), controller_id=2)
        for each in (first, second):
            with pytest.raises(DamagedResponseError, match="does not belong to the oldest request"):
                await each.outcome()
        assert line.connection.broken


async def test_cap_of_requests_lets_the_next_in(autojump_clock: Clock) -> None:
    async with connected() as line:
        asked = [line.ask() for _ in range(130)]
        await wait_all_tasks_blocked()
        assert (line.connection.in_flight, free_slots(line)) == (100, 0)
        for _ in asked:
            await line.peer.answer(await line.peer.request())
        for each in asked:
            await each.outcome()
        assert (line.connection.in_flight, free_slots(line)) == (0, 100)


async def test_cancelled_wait_for_room_leaves_no_trace(autojump_clock: Clock) -> None:
    async with connected() as line:
        asked = [line.ask() for _ in range(100)]
        await wait_all_tasks_blocked()
        late = line.ask()
        await wait_all_tasks_blocked()
        late.scope.cancel()
        await late.done.wait()
        assert late.cancelled
        for _ in asked:
            await line.peer.answer(await line.peer.request())
        await wait_all_tasks_blocked()
        assert (line.connection.in_flight, free_slots(line)) == (0, 100)


async def test_unwritten_cancelled_request_is_not_sent(autojump_clock: Clock) -> None:
    async with connected(unbuffered=True) as line:
        first = line.ask()  # the writer is stuck in the middle of this one
        await wait_all_tasks_blocked()
        second, third = line.ask(), line.ask()
        await wait_all_tasks_blocked()
        second.scope.cancel()
        await second.done.wait()
        assert second.cancelled
        assert line.connection.in_flight == 1
        for number, each in ((1, first), (2, third)):
            await line.peer.answer(await line.peer.request(), controller_id=number)
            assert (await each.outcome()).controller_id == number
        with trio.move_on_after(5) as scope:
            await line.peer.request()
        assert scope.cancelled_caught
        assert (line.connection.in_flight, free_slots(line)) == (0, 100)


async def test_unwritten_request_keeps_the_idle_time(autojump_clock: Clock) -> None:
    """A request that was cancelled before it was written does not shorten the idle time."""
    async with connected(unbuffered=True, connections_max_idle_ms=60_000) as line:
        first = line.ask()
        await wait_all_tasks_blocked()
        second = line.ask(response_timeout=1)
        await wait_all_tasks_blocked()
        second.scope.cancel()
        await second.done.wait()
        await line.peer.answer(await line.peer.request())
        await first.outcome()
        await trio.sleep(50)
        assert not line.connection.broken


async def test_late_response_to_a_cancelled_is_dropped(autojump_clock: Clock) -> None:
    async with connected() as line:
        gone = line.ask()
        request = await line.peer.request()
        gone.scope.cancel()
        await gone.done.wait()
        assert gone.cancelled
        assert line.connection.in_flight == 1
        await trio.sleep(20)
        kept = line.ask()
        other = await line.peer.request()
        await line.peer.answer(request, controller_id=1)
        await line.peer.answer(other, controller_id=2)
        assert (await kept.outcome()).controller_id == 2
        assert (line.connection.in_flight, free_slots(line), line.connection.broken) == (
            0,
            100,
            False,
        )


@pytest.mark.parametrize(("response_timeout", "seconds"), [(None, 30), (5, 5), (300, 300)])
async def test_oldest_unanswered_request_ends_it(
    autojump_clock: Clock, response_timeout: float | None, seconds: float
) -> None:
    """The connection ends at exactly the request's time."""
    async with connected() as line:
        await trio.sleep(1)
        asked = line.ask(response_timeout=response_timeout)
        await trio.sleep(2)
        second = line.ask(response_timeout=1000)
        with pytest.raises(
            KafkaConnectionError, match="the broker did not respond to MetadataRequest in time"
        ):
            await asked.outcome()
        assert asked.ended == 1 + seconds
        with pytest.raises(KafkaConnectionError):
            await second.outcome()
        assert second.ended == 1 + seconds
        await line.peer.request()
        await line.peer.request()
        assert await line.peer.closed()
        assert line.connection.broken


async def test_cancelled_request_counts_as_unanswered(autojump_clock: Clock) -> None:
    async with connected() as line:
        gone = line.ask()
        await line.peer.request()
        gone.scope.cancel()
        await trio.sleep(29.9)
        assert not line.connection.broken
        assert await line.peer.closed()
        assert trio.current_time() == 30


async def test_response_restarts_the_next_requests_time(autojump_clock: Clock) -> None:
    async with connected() as line:
        for _ in range(3):
            asked = line.ask()
            request = await line.peer.request()
            await trio.sleep(29)
            await line.peer.answer(request)
            await asked.outcome()
        assert trio.current_time() == 87


@pytest.mark.parametrize("acks", [0, -1])
async def test_peer_that_reads_nothing_loses_connection(autojump_clock: Clock, acks: int) -> None:
    async with connected(unbuffered=True) as line:
        asked = line.ask(produce(acks))
        with pytest.raises(
            KafkaConnectionError, match="the broker did not respond to ProduceRequest"
        ):
            await asked.outcome()
        assert asked.ended == 30


async def test_idle_connection_closes_at_its_time(autojump_clock: Clock) -> None:
    async with connected(connections_max_idle_ms=540_000) as line:
        await trio.sleep(7)
        asked = line.ask()
        request = await line.peer.request()
        await trio.sleep(3)
        await line.peer.answer(request)
        await asked.outcome()
        assert await line.peer.closed()
        assert trio.current_time() == 550
        assert line.connection.broken


async def test_request_near_the_idle_time_is_answered(autojump_clock: Clock) -> None:
    async with connected(connections_max_idle_ms=1000, request_timeout_ms=30_000) as line:
        await trio.sleep(0.999)
        asked = line.ask()
        request = await line.peer.request()
        await trio.sleep(10)
        await line.peer.answer(request)
        await asked.outcome()
        assert not line.connection.broken


async def test_request_without_response_returns_written(autojump_clock: Clock) -> None:
    async with connected(unbuffered=True) as line:
        asked = line.ask(produce(0))
        await wait_all_tasks_blocked()
        assert not asked.done.is_set()
        assert (await line.peer.request()).acks == 0
        assert await asked.outcome() is None
        assert (line.connection.in_flight, free_slots(line)) == (0, 100)


async def test_unacknowledged_request_fails_when_lost(autojump_clock: Clock) -> None:
    """A request without a response fails with its connection."""
    async with connected(unbuffered=True) as line:
        asked = line.ask(produce(0))
        await wait_all_tasks_blocked()
        await trio.aclose_forcefully(line.peer.stream)
        with pytest.raises(KafkaConnectionError):
            await asked.outcome()


async def test_cancelled_unacknowledged_leaves_no_slot(autojump_clock: Clock) -> None:
    """A cancelled request without a response leaves no slot."""
    async with connected(unbuffered=True) as line:
        asked = line.ask(produce(0))
        await wait_all_tasks_blocked()
        asked.scope.cancel()
        await asked.done.wait()
        assert (await line.peer.request()).acks == 0
        await wait_all_tasks_blocked()
        assert free_slots(line) == 100


async def fails_with(line: Line, asked: list[Asked], kind: type[TrikafkaError], says: str) -> None:
    for each in asked:
        with pytest.raises(kind, match=says) as caught:
            await each.outcome()
        assert caught.value is each.error
    assert len({id(each.error) for each in asked}) == len(asked)
    assert line.connection.broken
    assert free_slots(line) == 100
    with pytest.raises(kind, match=says):
        await line.connection.request(metadata_request())


async def test_lost_connection_fails_all_callers(autojump_clock: Clock) -> None:
    """Each caller has its own error."""
    async with connected() as line:
        asked = [line.ask() for _ in range(120)]
        await wait_all_tasks_blocked()
        await line.peer.stream.aclose()
        await fails_with(
            line, asked, KafkaConnectionError, "lost the connection to broker-0:9092: "
        )


@pytest.mark.parametrize("cut", [1, 3, 4, 6, 10])
async def test_peer_may_close_inside_a_frame(autojump_clock: Clock, cut: int) -> None:
    async with connected() as line:
        asked = line.ask()
        frame = Peer.frame(await line.peer.request())
        await line.peer.stream.send_all(frame[:cut])
        await line.peer.stream.aclose()
        await fails_with(line, [asked], KafkaConnectionError, "the broker closed it")


async def test_response_may_come_byte_by_byte(autojump_clock: Clock) -> None:
    async with connected() as line:
        asked = line.ask()
        frame = Peer.frame(await line.peer.request(), controller_id=9)
        for at in range(len(frame)):
            await line.peer.stream.send_all(frame[at : at + 1])
            await trio.sleep(0.1)
        assert (await asked.outcome()).controller_id == 9


async def test_unrequested_response_ends_the_connection(autojump_clock: Clock) -> None:
    async with connected() as line:
        asked = line.ask()
        request = await line.peer.request()
        request.header.correlation_id += 1000
        await line.peer.answer(request)
        await fails_with(line, [asked], ProtocolError, "sent a response that does not belong to")


async def test_repeated_response_ends_the_connection(autojump_clock: Clock) -> None:
    async with connected() as line:
        asked = line.ask()
        request = await line.peer.request()
        await line.peer.answer(request)
        await asked.outcome()
        await line.peer.answer(request)
        await wait_all_tasks_blocked()
        await fails_with(line, [], ProtocolError, "sent a response that does not belong to")


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x03abc", b"\xff" * 20]
)
async def test_garbage_ends_the_connection(autojump_clock: Clock, data: bytes) -> None:
    async with connected() as line:
        asked = [line.ask(), line.ask()]
        await line.peer.request()
        await line.peer.stream.send_all(data)
        await fails_with(line, asked, DamagedResponseError, r"sent a response of [-\d,]+ bytes")


async def test_unreadable_response_is_one_callers_error(autojump_clock: Clock) -> None:
    async with connected() as line:
        bad, good = line.ask(), line.ask()
        one, two = await line.peer.request(), await line.peer.request()
        await line.peer.stream.send_all(
            struct.pack(">ii", 8, one.header.correlation_id) + b"\x00\xff\xff\xff"
        )
        await line.peer.answer(two, controller_id=2)
        errors = []
        for each in (bad, good):
            try:
                assert (await each.outcome()).controller_id == 2
            except ProtocolError as error:
                errors.append(str(error))
        assert len(errors) == 1
        assert "the response to MetadataRequest v9 (8 bytes) cannot be read" in errors[0]


async def test_closing_fails_present_and_later_requests(autojump_clock: Clock) -> None:
    async with connected() as line:
        asked = [line.ask() for _ in range(120)]
        await wait_all_tasks_blocked()
        line.connection.close()
        assert line.connection.broken
        await fails_with(line, asked, KafkaConnectionError, "lost the connection to broker-0:9092")
        for _ in range(100):
            await line.peer.request()
        assert await line.peer.closed()


async def test_closing_before_running_closes_the_stream(autojump_clock: Clock) -> None:
    async with connected(greet=False) as line:
        line.connection.close()
        await wait_all_tasks_blocked()
        assert await line.peer.closed()


async def test_streams_own_errors_are_lost_connections(autojump_clock: Clock) -> None:
    async with connected() as line:
        await wait_all_tasks_blocked()
        stream: Any = line.connection._transport._stream
        stream.send_stream.send_all_hook = _raise(OSError(110, "timed out"))
        stream.close_hook = _raise(OSError("no"))
        await fails_with(line, [line.ask()], KafkaConnectionError, "timed out")


def _raise(error: Exception) -> Any:
    async def hook() -> None:
        raise error

    return hook


# -- versions
# -------------------------------------------------------------------------------------------------------------


async def test_missing_api_is_named(autojump_clock: Clock) -> None:
    async with connected() as line:
        with pytest.raises(
            UnsupportedVersionError, match="broker-0:9092 does not offer DescribeAclsRequest"
        ):
            await line.connection.request(DescribeAclsRequest())
        assert free_slots(line) == 100
        assert not line.connection.broken


async def negotiated(line: Line) -> Asked:
    return Asked(line.nursery, lambda: line.connection.negotiate("1"))


@pytest.mark.parametrize(
    ("offered", "asks"),
    [
        ([], 0),
        ([{"api_key": 18, "min_version": 0, "max_version": 2}], 2),
        ([{"api_key": 3, "min_version": 0, "max_version": 9}], 0),
    ],
)
async def test_old_broker_is_asked_in_its_version(
    autojump_clock: Clock, offered: Any, asks: int
) -> None:
    async with connected(greet=False) as line:
        asked = await negotiated(line)
        request = await line.peer.request()
        assert request.API_VERSION == 4
        assert (request.client_software_name, request.client_software_version) == ("trikafka", "1")
        items = b"".join(
            struct.pack(">hhh", each["api_key"], each["min_version"], each["max_version"])
            for each in offered
        )
        body = struct.pack(">ihi", request.header.correlation_id, 35, len(offered)) + items
        await line.peer.stream.send_all(struct.pack(">i", len(body)) + body)
        again = await line.peer.request()
        assert asks == again.API_VERSION
        await line.peer.answer(
            again, error_code=0, api_keys=[{"api_key": 3, "min_version": 0, "max_version": 1}]
        )
        await asked.outcome()
        assert line.connection.versions == {3: (0, 1)}


@pytest.mark.parametrize(("code", "keys"), [(0, []), (42, []), (35, [])])
async def test_broker_without_versions_is_an_error(
    autojump_clock: Clock, code: int, keys: Any
) -> None:
    async with connected(greet=False) as line:
        asked = await negotiated(line)
        for _ in range(2 if code == 35 else 1):
            request = await line.peer.request()
            body = struct.pack(">ih", request.header.correlation_id, code)
            body += struct.pack(">i", 0) if code else b"\x01\x00\x00\x00\x00\x00"
            await line.peer.stream.send_all(struct.pack(">i", len(body)) + body)
        with pytest.raises(
            ProtocolError, match=f"did not say which versions it speaks \\(error code {code}\\)"
        ):
            await asked.outcome()


# -- cancellation at every await
# ------------------------------------------------------------------------------------------


async def test_requests_may_be_cancelled_anywhere(autojump_clock: Clock) -> None:
    async def scenario(line: Line) -> None:
        await line.connection.request(metadata_request())

    async def check(line: Line) -> None:
        async def serve() -> None:
            with trio.move_on_after(1):
                while True:
                    await line.peer.answer(await line.peer.request(), controller_id=1)

        line.nursery.start_soon(serve)
        assert (await line.connection.request(metadata_request())).controller_id == 1
        await wait_all_tasks_blocked()
        assert (line.connection.in_flight, free_slots(line), line.connection.broken) == (
            0,
            100,
            False,
        )

    def setup() -> Any:
        return answering()

    assert await assert_all_awaits_cancellable(scenario, check, setup=setup) >= 1


def answering() -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def manager() -> Any:
        async with connected() as line:

            async def serve() -> None:
                await trio.sleep(0.5)
                await line.peer.answer(await line.peer.request(), controller_id=1)

            line.nursery.start_soon(serve)
            yield line
            line.nursery.cancel_scope.cancel()

    return manager()
