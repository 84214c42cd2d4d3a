"""Decoding of a Fetch response's records in both implementations.

Values, nulls, headers, gaps and transactions.
"""

import contextlib
import gc
import operator
import random
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords
from wirebatches import (
    FRAMINGS,
    LOG_APPEND,
    NOW,
    TRANSACTIONAL,
    Rec,
    batch_v2,
    contents,
    control,
    decode,
    decode_in_steps,
    framings,
    message_set,
    plain,
    records,
    wrapped,
)

from trikafka._wire import _implementation
from trikafka._wire.columns import RecordBatch
from trikafka._wire.records import decode_some, first_batch
from trikafka.errors import CorruptRecordError
from trikafka.types import Record, TimestampType

pytestmark = pytest.mark.usefixtures("implementation")
each_example = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)

MIXED = [
    Rec(b"k", b"v"),
    Rec(None, b"v" * 300, (("a", b"1"), ("a", b"2"), ("ü", None), ("", b""))),
    Rec(b"", None, timestamp=-1),
    Rec(None, None, (("z", b"\x00\xff"),), timestamp=NOW - 5),
]


def offsets(batch: RecordBatch) -> list[int]:
    return list(batch.offsets)


@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_framing_keeps_all_fields(framing: str) -> None:
    batch = decode(batch_v2(MIXED, base=7, framing=framing, leader_epoch=4))
    assert plain(batch) == [record._replace(offset=7 + index) for index, record in enumerate(MIXED)]
    assert batch[2] == Record("t", 3, 9, None, TimestampType.CREATE_TIME, b"", None, ())
    assert (batch.topic, batch.partition, batch.next_offset, batch.leader_epoch) == ("t", 3, 11, 4)


def test_record_is_an_ordinary_record() -> None:
    record = decode(batch_v2([Rec(b"k", b"v", (("h", b"x"),))]))[0]
    twin = Record("t", 3, 0, NOW, TimestampType.CREATE_TIME, b"k", b"v", (("h", b"x"),))
    assert record == twin
    assert hash(record) == hash(twin)
    assert type(record) is Record
    assert record._replace(offset=5).offset == 5


def test_records_are_made_lazily_and_untracked(implementation: ModuleType) -> None:
    """Iteration makes one record at a time, and the garbage collector does not track them."""
    batch = decode(
        batch_v2(
            [
                Rec(b"k", b"v", (("h", b"x"),)),
                *[Rec(timestamp=stamp) for stamp in (-1, NOW, NOW, 0, -1)],
            ]
        )
    )
    rows = iter(batch)
    first = next(rows)
    assert (first, iter(rows) is rows) == (batch[0], True)
    if implementation.__name__.endswith("_native"):
        assert not gc.is_tracked(first)
        assert operator.length_hint(rows) == 5
    assert [record.timestamp for record in rows] == [None, NOW, NOW, 0, None]
    assert (next(rows, None), next(rows, None)) == (None, None)
    del batch, rows
    assert first == Record("t", 3, 0, NOW, TimestampType.CREATE_TIME, b"k", b"v", (("h", b"x"),))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_like_objects_are_decoded(kind: type) -> None:
    assert len(decode(kind(batch_v2(MIXED)))) == 4


def test_columns_do_not_refer_to_the_input() -> None:
    data = bytearray(batch_v2([Rec(b"k", b"value")]))
    batch = decode(data)
    data[:] = bytes(len(data))
    data.clear()
    assert batch[0].value == b"value"


def test_no_bytes_give_an_empty_batch() -> None:
    batch = decode(b"", fetch_offset=12)
    assert (len(batch), bool(batch), batch.next_offset, list(batch)) == (0, False, 12, [])


def test_records_below_fetch_offset_are_left_out() -> None:
    data = batch_v2(MIXED) + batch_v2(MIXED, base=4)
    assert offsets(decode(data, fetch_offset=2)) == [2, 3, 4, 5, 6, 7]
    assert offsets(decode(data, fetch_offset=5)) == [5, 6, 7]
    batch = decode(data, fetch_offset=9)
    assert (offsets(batch), batch.next_offset) == ([], 9)


def test_a_repeated_batch_is_not_delivered_twice() -> None:
    assert offsets(decode(batch_v2(MIXED) * 2)) == [0, 1, 2, 3]


def test_gaps_of_compaction_move_the_next_offset() -> None:
    holes = [Rec(value=b"a", offset=2), Rec(value=b"b", offset=5)]
    batch = decode(batch_v2(holes, base=10, last_delta=9) + batch_v2([], base=20, last_delta=4))
    assert (offsets(batch), batch.next_offset) == ([12, 15], 25)
    empty = decode(batch_v2([], base=0, last_delta=7))
    assert (len(empty), empty.next_offset) == (0, 8)


def test_log_append_time_of_the_batch_counts() -> None:
    batch = decode(batch_v2(MIXED, attributes=LOG_APPEND, max_timestamp=NOW + 77))
    assert {(record.timestamp, record.timestamp_type) for record in batch} == {
        (NOW + 77, TimestampType.LOG_APPEND_TIME)
    }


def test_header_name_that_is_not_utf8_is_repaired() -> None:
    data = bytearray(batch_v2([Rec(headers=(("ab", b"1"), ("é", b"2")))]))
    data[data.index(b"ab") : data.index(b"ab") + 2] = b"a\xc3"
    batch = decode(data, check_crcs=False)
    assert batch[0].headers == (("a�", b"1"), ("é", b"2"))
    batch.to_arrow().validate(full=True)


class TestTransactions:
    """Two interleaved producers.

    Producer 1 aborts its records at 0 and 3 and commits 6. Producer 2 commits 1.
    """

    DATA = b"".join(
        [
            batch_v2([Rec(value=b"1 aborted")], base=0, attributes=TRANSACTIONAL, producer_id=1),
            batch_v2([Rec(value=b"2")], base=1, attributes=TRANSACTIONAL, producer_id=2),
            batch_v2([Rec(value=b"plain")], base=2, framing="gzip"),
            batch_v2(
                [Rec(value=b"1 aborted")],
                base=3,
                attributes=TRANSACTIONAL,
                producer_id=1,
                framing="zstd",
            ),
            control(4, 1, abort=True),
            control(5, 2, abort=False),
            batch_v2([Rec(value=b"1 committed")], base=6, attributes=TRANSACTIONAL, producer_id=1),
            control(7, 1, abort=False),
        ]
    )

    def test_uncommitted_read_has_all_but_markers(self) -> None:
        batch = decode(self.DATA)
        assert (offsets(batch), batch.next_offset) == ([0, 1, 2, 3, 6], 8)

    def test_committed_read_leaves_out_the_aborted(self) -> None:
        batch = decode(self.DATA, aborted=[(1, 0)])
        assert (offsets(batch), batch.next_offset) == ([1, 2, 6], 8)

    def test_fetch_may_begin_inside_a_transaction(self) -> None:
        assert offsets(decode(self.DATA, aborted=[(1, 0)], fetch_offset=2)) == [2, 6]
        assert offsets(decode(self.DATA, aborted=[(1, 0)], fetch_offset=5)) == [6]

    def test_no_transactions_are_aborted(self) -> None:
        assert offsets(decode(self.DATA, aborted=[])) == [0, 1, 2, 3, 6]

    def test_producer_may_abort_twice(self) -> None:
        data = b"".join(
            part
            for base in (0, 2, 4)
            for part in (
                batch_v2([Rec(value=b"x")], base=base, attributes=TRANSACTIONAL, producer_id=1),
                control(base + 1, 1, abort=base != 2),
            )
        )
        assert offsets(decode(data, aborted=[(1, 4), (1, 0)])) == [2]

    def test_aborted_are_left_out_across_steps(self) -> None:
        """The third step begins inside a transaction that began in the first step.

        The last step begins inside one whose beginning no step has read.
        """
        data = self.DATA + batch_v2(
            [Rec(value=b"1 again")], base=8, attributes=TRANSACTIONAL, producer_id=1, framing="zstd"
        )
        data += batch_v2(
            [Rec(value=b"1 again")], base=9, attributes=TRANSACTIONAL, producer_id=1
        ) + control(10, 1, abort=True)
        steps = list(decode_in_steps(data, 1, aborted=[(1, 0), (1, 8)]))
        assert [(offsets(step), step.next_offset) for step in steps] == [
            ([1], 2),
            ([2], 3),
            ([6], 8),
            ([], 11),
        ]

    def test_only_transactional_batches_are_left_out(self) -> None:
        data = batch_v2([Rec(value=b"x")], producer_id=1) + control(1, 1, abort=True)
        assert offsets(decode(data, aborted=[(1, 0)])) == [0]


@each_example
@given(records, framings, st.integers(0, 2**40), st.integers(0, 25))
def test_any_records_are_decoded(written: list[Rec], framing: str, base: int, skip: int) -> None:
    batch = decode(batch_v2(written, base=base, framing=framing), fetch_offset=base + skip)
    expected = [record._replace(offset=base + index) for index, record in enumerate(written)]
    assert plain(batch) == expected[skip:]
    assert batch.next_offset == base + max(len(written), skip)


@each_example
@given(st.lists(records, min_size=1, max_size=4))
def test_several_batches_are_decoded_in_order(groups: list[list[Rec]]) -> None:
    data, base, expected = b"", 0, []
    for group in groups:
        data += batch_v2(group, base=base)
        expected += [record._replace(offset=base + index) for index, record in enumerate(group)]
        base += len(group)
    assert plain(decode(data)) == expected


@pytest.mark.parametrize("written", [MIXED, MIXED * 30])
def test_both_implementations_give_the_same_bytes(
    implementation: ModuleType, written: list[Rec]
) -> None:
    data = batch_v2(written, framing="lz4-linked") + batch_v2([Rec()], base=len(written))
    batch = decode(data, fetch_offset=1)
    for other in _implementation.available():
        before = _implementation.use(other)
        try:
            twin = decode(data, fetch_offset=1)
            assert contents(twin.columns) == contents(batch.columns)
            assert list(twin) == list(batch)
        finally:
            _implementation.use(before)


def test_kafka_python_agrees() -> None:
    data = batch_v2(MIXED)
    theirs = [record for batch in iter(MemoryRecords(data).next_batch, None) for record in batch]
    ours = list(decode(data))
    assert [(r.offset, r.key, r.value, list(r.headers)) for r in ours] == [
        (r.offset, r.key, r.value, list(r.headers)) for r in theirs
    ]


@each_example
@given(
    st.lists(st.tuples(records, framings), min_size=1, max_size=6),
    st.integers(1, 2000),
    st.integers(0, 200),
)
def test_steps_have_the_same_records(
    groups: list[tuple[list[Rec], str]], enough: int, tail: int
) -> None:
    data, base = b"", 0
    for group, framing in groups:
        data += batch_v2(group, base=base, framing=framing)
        base += len(group)
    data += batch_v2([Rec(value=bytes(150))], base=base)[:tail]
    steps = list(decode_in_steps(data, enough))
    assert [record for step in steps for record in plain(step)] == plain(decode(data))
    assert steps[-1].next_offset == base
    assert len(steps) == 1 or any(framing != "none" for _, framing in groups)


def test_step_decompresses_only_enough() -> None:
    data = b"".join(
        batch_v2([Rec(value=bytes(1000))], base=number, framing="zstd") for number in range(10)
    )
    steps = list(decode_in_steps(data, 2500, max_bytes=4000))
    assert [offsets(step) for step in steps] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_large_compressed_batch_is_its_own_step() -> None:
    noise = random.Random(1).randbytes(2500)
    small, large = [Rec(value=b"x")], [Rec(value=noise)]
    data = b"".join(
        batch_v2(recs, base=base, framing=framing)
        for base, (recs, framing) in enumerate(
            [(small, "lz4-linked"), (large, "none"), (large, "zstd"), (small, "gzip")]
        )
    )
    assert [offsets(step) for step in decode_in_steps(data, 2000)] == [[0, 1], [2], [3]]


def test_large_batches_share_a_step_if_they_fit() -> None:
    """A step for each batch of 130 KB would cost more than the rest, so several go together."""
    noise = random.Random(1).randbytes(500)
    data = b"".join(
        batch_v2([Rec(value=noise)], base=base, framing="lz4-linked") for base in range(5)
    )
    assert [offsets(step) for step in decode_in_steps(data, 2000)] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (batch_v2(MIXED), (len(batch_v2(MIXED)), 2, False)),
        (
            batch_v2(MIXED, framing="zstd") + b"more",
            (len(batch_v2(MIXED, framing="zstd")), 2, True),
        ),
        (batch_v2(MIXED, framing="zstd")[:70], (70, 2, True)),
        (message_set(1, [Rec(value=bytes(50))]) * 2, (84, 1, False)),
        (
            wrapped(1, [Rec(value=bytes(50))] * 3, "gzip"),
            (len(wrapped(1, [Rec(value=bytes(50))] * 3, "gzip")), 1, True),
        ),
        (b"short", (5, 2, False)),
    ],
    # gzip's output has the time in it, so the ids are given here.
    ids=[
        "v2",
        "compressed, and more",
        "compressed, cut",
        "v1",
        "v1 compressed",
        "short",
    ],
)
def test_header_of_the_first_batch_is_read(data: bytes, expected: tuple[int, int, bool]) -> None:
    assert first_batch(memoryview(data)) == expected


def test_corrupt_batch_is_raised_when_it_is_first() -> None:
    good = [batch_v2([Rec(value=bytes(1000))], base=number, framing="zstd") for number in range(3)]
    bad = bytearray(good[1])
    bad[-1] ^= 1
    data = good[0] + bytes(bad) + good[2]
    with pytest.raises(CorruptRecordError, match="offset 1: checksum mismatch"):
        list(decode_in_steps(data, 5000))
    batch = decode(data)
    assert (offsets(batch), batch.next_offset) == ([0], 1)


def test_batch_over_the_limit_is_left_for_later() -> None:
    """A later batch over ``max_bytes`` is left for a step with another limit."""
    small, bomb = (
        batch_v2([Rec(value=bytes(size))], base=base, framing="zstd")
        for base, size in enumerate([10, 100_000])
    )
    given = {"topic": "t", "partition": 0, "aborted": None, "check_crcs": True, "enough": 50_000}
    first = decode_some(small + bomb, fetch_offset=0, max_bytes=50_000, **given)
    assert (offsets(first.batch), first.rest) == ([0], bomb)
    second = decode_some(first.rest, fetch_offset=1, max_bytes=1 << 20, **given)
    assert (offsets(second.batch), len(second.rest)) == ([1], 0)
    assert second.expansion > 100


def test_step_walks_over_limited_batches(implementation: ModuleType) -> None:
    """A step stops after a fixed number of batches, so that other tasks have their turns."""

    def series(count: int, framing: str, size: int = 1) -> bytes:
        parts, one = [], batch_v2([Rec(value=bytes(size))], framing=framing)
        for number in range(count):
            parts.append(number.to_bytes(8, "big") + one[8:])
        return b"".join(parts)

    slow = series(1200, "lz4-linked" if implementation.__name__.endswith("_native") else "none")
    assert [len(step) for step in decode_in_steps(slow, 1 << 20)] == [500, 500, 200]
    assert len(decode(slow)) == 1200
    if implementation.__name__.endswith("_native"):
        plain = series(45_000, "none")
        assert [len(step) for step in decode_in_steps(plain, 1 << 20)] == [20_000, 20_000, 5_000]
        assert len(decode(plain)) == 45_000
        large = series(500, "none", 100_000)
        steps = [len(step) for step in decode_in_steps(large, 1 << 20)]  # 8 MB each
        assert steps == [80, 80, 80, 80, 80, 80, 20]


@pytest.mark.parametrize("size", [10, 16_384, 70_000, 2_000_000])
def test_plain_batch_is_read_without_python(
    implementation: ModuleType, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The implementation in Python leaves each batch to ``_Scan``."""
    is_native = implementation.__name__.endswith("_native")
    data = batch_v2([Rec(value=bytes(size))])
    monkeypatch.delattr("trikafka._wire.records._Scan._batch")
    with contextlib.nullcontext() if is_native else pytest.raises(AttributeError):
        assert [each.value for each in decode(data)] == [bytes(size)]


def log(source: random.Random, count: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return batches of every kind, and the aborted transactions among them."""
    parts: list[bytes] = []
    open_since: dict[int, int] = {}
    aborted, base = [], source.randrange(5)
    for _ in range(count):
        kind, producer = source.randrange(8), source.randrange(3)
        size = source.choice((0, 3, 90, 17_000 if source.random() < 0.1 else 20))
        written = [Rec(None, source.randbytes(size))] * source.choice((1, 1, 1, 4))
        if kind < 3:
            part = batch_v2(
                written,
                base=base,
                leader_epoch=source.randrange(3),
                attributes=source.choice((0, LOG_APPEND)),
            )
            length = len(written)
        elif kind == 3:
            part, length = batch_v2(written, base=base, framing="lz4-linked"), len(written)
        elif kind < 6:
            open_since.setdefault(producer, base)
            part = batch_v2(written, base=base, attributes=TRANSACTIONAL, producer_id=producer)
            length = len(written)
        elif kind == 6:
            abort, first = source.random() < 0.6, open_since.pop(producer, None)
            if abort and first is not None:
                aborted.append((producer, first))
            part, length = control(base, producer, abort=abort), 1
        else:
            part, length = batch_v2([], base=base, last_delta=2), 3
        parts.append(part)
        base += length + source.choice((0, 0, 0, 2))
    return b"".join(parts), aborted


@settings(each_example, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 40), st.booleans(), st.booleans())
def test_every_kind_of_batch_is_decoded_alike(
    implementation: ModuleType,
    seed: int,
    count: int,
    fetch_offset: int,
    check_crcs: bool,
    committed: bool,
) -> None:
    """The compiled walk and its fallback give the result of the Python implementation."""
    source = random.Random(seed)
    data, aborted = log(source, count)
    if source.random() < 0.3:
        changed = bytearray(data)
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
        data = bytes(changed)
    elif source.random() < 0.3:
        data = data[: source.randrange(len(data))]

    def outcome() -> object:
        given = {
            "fetch_offset": fetch_offset,
            "check_crcs": check_crcs,
            "aborted": aborted if committed else None,
        }
        try:
            batch = decode(data, **given)
        except CorruptRecordError as error:
            return error.reason, error.offset
        steps: list[Record] = []
        with contextlib.suppress(CorruptRecordError):
            for step in decode_in_steps(data, 1, **given):
                steps += step
        assert steps == list(batch)
        return contents(batch.columns), batch.next_offset, batch.leader_epoch

    found = outcome()
    before = _implementation.use("pure")
    try:
        assert found == outcome()
    finally:
        _implementation.use(before)


@pytest.mark.parametrize("names", [("é", "a", "日本", ""), ("a\u0301",), ("", "", "ß")])
def test_valid_names_need_no_repair(names: tuple[str, ...]) -> None:
    headers = tuple((name, b"v") for name in names)
    batch = decode(batch_v2([Rec(headers=headers), Rec(headers=headers[::-1])]))
    assert [record.headers for record in batch] == [headers, headers[::-1]]


def test_split_character_in_a_name_is_repaired() -> None:
    """Two names that are only together valid UTF-8 are each repaired."""
    data = bytearray(batch_v2([Rec(headers=(("ab", b""), ("cd", b"")))]))
    data[data.index(b"ab") : data.index(b"ab") + 2] = b"a\xc3"
    data[data.index(b"cd") : data.index(b"cd") + 2] = b"\xa9d"
    assert decode(data, check_crcs=False)[0].headers == (("a\ufffd", b""), ("\ufffdd", b""))


@pytest.mark.parametrize("framing", ["gzip", "snappy-raw", "snappy-xerial", "lz4-linked", "zstd"])
def test_reused_memory_keeps_decoded_records(framing: str) -> None:
    """The buffer of a step is used again without changing what was decoded from it."""
    batches = [
        batch_v2([Rec(b"k", bytes([number]) * 50_000)], base=number, framing=framing)
        for number in range(5)
    ]
    found = [step for data in batches for step in decode_in_steps(data, 1)]
    assert [next(iter(step)).value for step in found] == [
        bytes([number]) * 50_000 for number in range(5)
    ]


@pytest.mark.parametrize("framing", ["gzip", "lz4-linked", "zstd"])
def test_records_beyond_the_buffer_are_decoded(framing: str) -> None:
    sizes = [1_500_000, 900_000, 3_000_000]
    data = b"".join(
        batch_v2([Rec(None, random.Random(n).randbytes(n))], base=i, framing=framing)
        for i, n in enumerate(sizes)
    )
    found = [record for step in decode_in_steps(data, 2**40, max_bytes=2**24) for record in step]
    assert [record.value for record in found] == [random.Random(n).randbytes(n) for n in sizes]
