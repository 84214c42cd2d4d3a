"""The room of a share consumer's fetches: whose turn it is, how many records, and for how long."""

from __future__ import annotations

import math
from typing import Literal
from uuid import UUID

import pytest

from trikafka._state.share.acquired import Holdings
from trikafka._state.share.buffer import ShareBuffer
from trikafka._state.share.room import FetchRoom
from trikafka.errors import CorruptRecordError, TrikafkaError

KEY, OTHER = (UUID(int=1), 0), (UUID(int=1), 1)


class Room:
    """A room for 100 records, with the state that it looks at."""

    def __init__(self, acquire: Literal["batches", "records"] = "batches", most: int = 100) -> None:
        self.buffer = ShareBuffer()
        self.holdings = Holdings()
        self.room = FetchRoom(
            self.buffer,
            self.holdings,
            most=most,
            most_bytes=64_000,
            fetch_bytes=10_000,
            acquire=acquire,
            max_wait_ms=500,
            linger_ms=5,
        )

    def hold(self, held: int, buffered: int) -> None:
        self.holdings.held = held
        self.holdings.buffered = buffered

    def bounds(self, node: int, active: int, *brought: int, now: float = 0.0) -> tuple[int, int]:
        records, _, wait = self.room.bounds(node, active, brought, now)
        return records, wait

    def size(self, active: int = 1) -> int:
        return self.room.bounds(1, active, (), 0.0).size


def error() -> TrikafkaError:
    return CorruptRecordError("damaged", "t", 0, 0)


def test_brokers_fetch_in_the_order_of_the_line() -> None:
    room = Room().room
    assert room.may_fetch(1)
    assert not room.may_fetch(2)
    room.fetch_begun(1, 60, 10.0)
    assert room.may_fetch(2)
    assert not room.may_fetch(1)
    assert room.leave_line(2)
    assert not room.leave_line(2)
    assert room.may_fetch(1)


@pytest.mark.parametrize(
    ("held", "buffered", "free"),
    [(0, 0, 100), (40, 40, 60), (60, 1, 0), (60, 0, 40), (100, 0, 0), (130, 0, 0)],
)
def test_few_records_are_fetched_when_none_wait(held: int, buffered: int, free: int) -> None:
    room = Room()
    room.hold(held, buffered)
    assert room.room.now_free() == free
    assert room.room.is_full() is (free == 0)


def test_an_error_in_the_buffer_stops_fetches() -> None:
    room = Room()
    room.buffer.put_error(error())
    assert room.room.now_free() == 0
    assert room.room.is_full()


def test_a_late_fetch_keeps_no_room() -> None:
    room = Room().room
    room.fetch_begun(1, 100, 10.0)
    assert room.now_free() == 0
    assert room.pass_over_late(10.9) == 11.0
    assert room.now_free() == 0
    assert room.pass_over_late(11.0) == math.inf
    assert room.now_free() == 100
    room.fetch_ended(1)  # its response comes after all
    assert room.now_free() == 100


def test_records_come_from_one_broker_at_a_time() -> None:
    room = Room("records").room
    room.fetch_begun(1, 10, 10.0)
    assert room.now_free() == 0
    assert not room.is_full()
    room.fetch_ended(1)
    assert room.now_free() == 100


def test_fetches_of_batches_divide_the_window() -> None:
    assert Room().bounds(1, 3) == (34, 500)


@pytest.mark.parametrize(("brought", "wait"), [((), 250), ((1,), 250), ((2,), 1)])
def test_a_broker_with_records_is_not_kept_waiting(brought: tuple[int, ...], wait: int) -> None:
    room = Room("records")
    room.room.may_fetch(1)
    room.room.may_fetch(2)
    assert room.bounds(1, 2, *brought) == (100, wait)


@pytest.mark.parametrize(("now", "wait"), [(0.0, 5), (0.02, 20), (9.0, 60)])
def test_a_fetch_waits_as_long_as_the_program_works(now: float, wait: int) -> None:
    room = Room()
    room.hold(1, 0)
    room.holdings.receives(0.0)
    assert room.bounds(1, 1, now=now) == (99, wait)


def test_a_quick_program_gets_a_larger_window() -> None:
    room = Room(most=4_000).room
    assert (room.now_free(), room.enough) == (500, 250)
    room.decided(0.1)
    room.fetch_begun(1, 300, 10.0)
    assert (room.now_free(), room.enough) == (700, 200)


def test_a_fetch_brings_half_of_the_free_bytes() -> None:
    room = Room()
    assert room.size() == 2_000  # as if each byte became 16
    room.room.decoded(KEY, 100, 100)
    assert room.size() == 10_000  # as fetch_max_bytes
    assert room.size(active=4) == 8_000
    room.buffer.expect(56_000)
    assert room.size() == 4_000
    room.buffer.expect(56_000)
    assert room.size() == 1


def test_a_compressed_response_shrinks_the_next() -> None:
    room = Room()
    room.room.decoded(KEY, 10, 400)
    room.room.decoded(OTHER, 10, 10)
    assert room.size() == 800
    room.room.decoded(KEY, 10, 80)
    assert room.size() == 842
    room.room.keep_only({OTHER})
    assert room.size() == 10_000


@pytest.mark.parametrize(
    ("size", "buffered", "free"), [(32_000, 1, 99), (32_001, 1, 0), (99_000, 0, 100)]
)
def test_many_bytes_that_wait_stop_fetches(size: int, buffered: int, free: int) -> None:
    room = Room()
    room.hold(buffered, buffered)
    room.buffer.expect(size)
    assert room.room.now_free() == free
