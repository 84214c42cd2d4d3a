"""Rows of tables in the accumulator: their partition, batch and room, beside single records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from accumulating import Bench, Waiting, records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trikafka._state.producer.queues import RowGroup
from trikafka._wire.arrow import ArrowRows
from trikafka._wire.columns import Columns
from trikafka._wire.partitioning import partition_for_key
from trikafka.errors import MessageTooLargeError, TrikafkaError, from_code

pytestmark = pytest.mark.usefixtures("record_path")
each_example = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
TOO_LARGE = from_code(10)
assert isinstance(TOO_LARGE, MessageTooLargeError)


def columns(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> Columns:
    table = {"value": pa.array(values, pa.binary())} | (
        {} if keys is None else {"key": pa.array(keys, pa.binary())}
    )
    rows = ArrowRows(pa.table(table))
    [(_, piece)] = rows.pieces(10**6, 10**9)
    return rows.columns(piece, 7)


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [b"%03d" % number + b"x" * (size - 3) for number in range(count)]


def put(bench: Bench, group: RowGroup, found: Columns, start: int | None = None) -> int:
    """Take rows until there is no room or no row left; return where that ended."""
    position = group.start if start is None else start
    while (
        position < group.stop
        and (taken := bench.accumulator.extend("t", found, group, position)) is not None
    ):
        assert taken.batch.encoder is not None
        assert taken.batch.encoder.count == taken.first + taken.next - position
        assert bench.accumulator.used == sum(batch.size for batch in bench.accumulator.unsettled())
        position = taken.next
    return position


def deliver(bench: Bench) -> dict[int, list[bytes | None]]:
    """Let the broker take everything; return the values of each partition."""
    found: dict[int, list[bytes | None]] = {}
    while bench.accumulator.unsettled():
        bench.accumulator.close_open()
        for batch in bench.drain():
            found.setdefault(batch.partition, []).extend(record.value for record in records(batch))
            bench.accumulator.completion.succeeded(batch, 0, None)
    assert bench.accumulator.used == 0
    return found


def test_rows_fill_batches_beyond_batch_size() -> None:
    bench = Bench(0, batch_size=400, max_request_size=2_000)
    found = columns(numbered(50))
    assert put(bench, RowGroup(0, None, 0, 50), found) == 50
    sizes = [batch.size for batch in bench.accumulator.unsettled()]
    assert all(1_850 < size <= 2_000 for size in sizes[:-1])
    assert deliver(bench) == {0: numbered(50)}


def test_large_row_has_its_own_batch() -> None:
    large = b"y" * 3_000_000
    bench = Bench(0, max_request_size=5_000_000, buffer_memory=10_000_000)
    values = [b"a", large, b"b", large, large]
    assert put(bench, RowGroup(0, None, 0, 5), columns(values)) == 5
    assert [
        [len(record.value or b"") for record in records(batch)]
        for batch in bench.accumulator.unsettled()
    ] == [
        [1],
        [3_000_000],
        [1],
        [3_000_000],
        [3_000_000],
    ]
    assert deliver(bench) == {0: values}


def test_rows_and_single_records_keep_order() -> None:
    bench = Bench(0)
    bench.put(b"one", partition=0)
    put(bench, RowGroup(0, None, 0, 3), columns([b"two", b"three", b"four"]))
    bench.put(b"five", partition=0)
    assert len(bench.accumulator.unsettled()) == 1, "a small table goes into the batch that is open"
    put(bench, RowGroup(0, None, 0, 9), columns(numbered(9)))
    bench.put(b"last", partition=0)
    assert deliver(bench) == {
        0: [b"one", b"two", b"three", b"four", b"five", *numbered(9), b"last"]
    }


def test_rows_without_room_follow_later() -> None:
    bench = Bench(0, buffer_memory=1_000)
    group, found = RowGroup(0, None, 0, 12), columns(numbered(12))
    position = put(bench, group, found)
    assert 5 <= position < 12
    assert 800 < bench.accumulator.used <= 1_000
    assert bench.accumulator.extend("t", found, group, position) is None
    assert len(bench.accumulator.unsettled()) == 1, "no batch without records, none closed in vain"
    first = deliver(bench)[0]
    position = put(bench, group, found, position)
    assert first + deliver(bench)[0] == numbered(12)[:position]


def test_new_rows_wait_behind_waiters() -> None:
    bench = Bench(0)
    bench.accumulator.add_waiter(Waiting())
    found = columns([b"a"])
    assert bench.accumulator.extend("t", found, RowGroup(0, None, 0, 1), 0) is None
    assert (
        bench.accumulator.extend("t", found, RowGroup(0, None, 0, 1), 0, admitted=True) is not None
    )


def test_missing_partition_takes_no_rows() -> None:
    bench = Bench(0)
    found = columns([b"a"])
    assert bench.accumulator.extend("t", found, RowGroup(1, None, 0, 1), 0) is None
    bench.accumulator.forget_topic("t")
    assert bench.accumulator.extend("t", found, RowGroup(0, None, 0, 1), 0) is None
    assert bench.accumulator.used == 0


@each_example
@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=5), st.none() | st.integers(0, 2)),
        min_size=1,
        max_size=60,
    ),
    st.booleans(),
)
def test_rows_go_where_single_records_go(
    rows: list[tuple[bytes | None, int | None]], explicit: bool
) -> None:
    bench = Bench(0, 0, 0)
    keys, numbers = [key for key, _ in rows], [number for _, number in rows]
    found = columns(numbered(len(rows)), keys)
    partitions = memoryview(
        b"".join((-1 if n is None else n).to_bytes(4, "little", signed=True) for n in numbers)
    ).cast("i")
    keyless = None
    seen = []
    for group in bench.accumulator.split_rows("t", found, partitions if explicit else None, True):
        assert group.rows is not None
        mine = list(group.rows[group.start : group.stop])
        assert mine == sorted(mine)
        seen += mine
        for row in mine:
            if explicit and numbers[row] is not None:
                assert group.partition == numbers[row]
            elif (key := keys[row]) is not None:
                assert group.partition == partition_for_key(key, 3)
            else:
                assert keyless in (None, group.partition)
                keyless = group.partition
    assert sorted(seen) == list(range(len(rows)))


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        (pa.binary(), True),
        (pa.string(), True),
        (pa.large_binary(), False),
        (pa.large_string(), False),
        (pa.binary(4), False),
        (pa.string_view(), False),
        (pa.dictionary(pa.int32(), pa.string()), False),
    ],
)
def test_plain_columns_are_read_in_place(kind: pa.DataType, shared: bool) -> None:
    others = {"partition": pa.nulls(3, pa.int32()), "timestamp": pa.nulls(3, pa.timestamp("ms"))}
    rows = ArrowRows(pa.table({"value": pa.nulls(3, kind), **others}))
    assert rows.shared is shared
    assert len(list(rows.pieces(8, 1))) == 1


def test_explicit_partitions_are_checked() -> None:
    bench = Bench(0, 0)
    found = columns(numbered(3))
    assert bench.accumulator.split_rows("t", found, 1, True) == [RowGroup(1, None, 0, 3)]
    with pytest.raises(ValueError, match="partition 2 of 2"):
        bench.accumulator.split_rows("t", found, memoryview(b"\2\0\0\0" * 3).cast("i"), False)


def test_keyless_rows_change_partition_by_batch() -> None:
    bench = Bench(0, 0, 0, buffer_memory=100_000)
    found = columns(numbered(100))
    groups = bench.accumulator.split_rows("t", found, None, False)
    assert groups == [RowGroup(None, None, 0, 100)]
    assert put(bench, groups[0], found) == 100
    sizes = [batch.size for batch in bench.accumulator.unsettled()]
    assert sum(size < 1_850 for size in sizes) <= 3, "batches are full, but for one a partition"
    taken = deliver(bench)
    assert len(taken) == 3
    assert all(values == sorted(values, key=str) for values in taken.values())
    assert sorted(value for values in taken.values() for value in values if value) == numbered(100)


def test_keyless_rows_stay_if_only_room_lacks() -> None:
    bench = Bench(0, 0, buffer_memory=1_000)
    found = columns(numbered(20))
    assert put(bench, RowGroup(None, None, 0, 20), found) < 20
    assert len(bench.accumulator.unsettled()) == 1


def test_custom_partitioner_is_called_for_each_row() -> None:
    asked: list[bytes | None] = []

    def choose(topic: str, key: bytes | None, numbers: Any) -> int:
        asked.append(key)
        return len(asked) % 2

    bench = Bench(0, 0, partitioner=choose)
    found = columns(numbered(5), [b"a", None, b"b", b"c", None])
    groups = bench.accumulator.split_rows("t", found, None, True)
    assert asked == [b"a", None, b"b", b"c", None]
    assert [
        (group.partition, list((group.rows or ())[group.start : group.stop])) for group in groups
    ] == [
        (0, [1, 3]),
        (1, [0, 2, 4]),
    ]
    asked.clear()
    given_numbers = memoryview(
        b"".join(n.to_bytes(4, "little", signed=True) for n in (-1, 0, 1, -1, 0))
    ).cast("i")
    bench.accumulator.split_rows("t", found, given_numbers, True)
    assert asked == [b"a", b"c"]


def test_flushed_batches_do_not_linger() -> None:
    """They continue to take records."""
    bench = Bench(0)
    found = columns([b"a"])
    taken = bench.accumulator.extend("t", found, RowGroup(0, None, 0, 1), 0)
    assert taken is not None
    assert bench.accumulator.due_at(0, bench.now) == 1.0
    woken = len(bench.woken)
    bench.accumulator.flush_batches([taken.batch])
    assert bench.woken[woken:] == [0]
    bench.put(b"b", partition=0)
    assert bench.accumulator.due_at(0, bench.now) <= bench.now
    assert deliver(bench) == {0: [b"a", b"b"]}


def test_refused_size_makes_batches_smaller() -> None:
    bench = Bench(0)
    bench.prove()
    found = columns(numbered(17))
    assert put(bench, RowGroup(0, None, 0, 17), found) == 17
    bench.accumulator.close_open()
    [batch] = bench.drain()
    bench.accumulator.completion.refused(batch, TOO_LARGE, bench.now)
    put(bench, RowGroup(0, None, 0, 17), found)
    assert bench.accumulator.unsettled()[-2].size <= 1_000
    assert deliver(bench)[0] == numbered(17) * 2


@each_example
@given(st.integers(0, 2**32), st.integers(300, 3_000))
def test_mixed_tables_and_records_keep_order(seed: int, memory: int) -> None:
    """Each record is written once and in order in its partition.

    The room is counted to the byte.
    """
    source = random.Random(seed)
    bench = Bench(
        0,
        0,
        0,
        buffer_memory=memory,
        batch_size=source.choice([100, 400]),
        max_request_size=source.choice([500, 2_000]),
    )
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    written: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

    def carry_out() -> None:
        bench.accumulator.close_open()
        for batch in bench.drain():
            written[batch.partition] += [record.value or b"" for record in records(batch)]
            bench.accumulator.completion.succeeded(batch, 0, None)

    for step in range(source.randrange(1, 12)):
        keys = [b"%d" % source.randrange(9) for _ in range(source.randrange(1, 12))]
        values = [b"%d-%d" % (step, row) + b"x" * source.randrange(150) for row in range(len(keys))]
        if source.random() < 0.3:
            made = bench.accumulator.appender.append("t", values[0], keys[0], (), None, None)
            if made is not None:
                expected[partition_for_key(keys[0], 3)].append(values[0])
            carry_out()
            continue
        found = columns(values, keys)
        for group in bench.accumulator.split_rows("t", found, None, True):
            position = group.start
            while (position := put(bench, group, found, position)) < group.stop:
                carry_out()
            assert group.rows is not None
            assert group.partition is not None
            expected[group.partition] += [
                values[row] for row in group.rows[group.start : group.stop]
            ]
    while bench.accumulator.unsettled():
        carry_out()
    assert written == expected
    assert bench.accumulator.used == 0


@pytest.mark.parametrize("code", [3, 6, 7, 20])
def test_replaced_leader_may_have_written(code: int) -> None:
    bench = Bench(0, 0, 0)
    bench.prove(0)
    (batch,) = bench.fill(1, 0)
    bench.drain()
    bench.accumulator.completion.refused(batch, from_code(code), bench.now)
    bench.now = 10_000
    bench.accumulator.completion.expire(bench.now)
    assert batch.maybe_written


def test_maybe_written_is_set_where_true() -> None:
    bench = Bench(0, 0, 0, max_request_size=300)
    bench.prove(0), bench.prove(1), bench.prove(2)
    batches = [bench.fill(1, partition)[0] for partition in range(3)]
    assert sorted(batch.partition for batch in bench.drain(limit=10_000)) == [0, 1, 2]
    bench.accumulator.completion.refused(batches[0], from_code(29), bench.now)
    bench.accumulator.completion.refused(batches[1], from_code(19), bench.now)
    bench.now = 100
    bench.accumulator.completion.expire(bench.now)
    assert [batch.error is not None for batch in batches] == [True] * 3
    assert [batch.maybe_written for batch in batches] == [False, False, True]
    later = bench.fill(1)[0]
    bench.accumulator.abort(TrikafkaError("over"))
    assert (later.maybe_written, later.error is not None) == (False, True)
