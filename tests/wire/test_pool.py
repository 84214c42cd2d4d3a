"""The pool of memory for columns and frames.

Memory is used again only when nothing refers to it, and the pool keeps a bounded amount.
"""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from wirebatches import Rec, batch_v2, decode

from trikafka._wire import _implementation
from trikafka._wire.columns import RecordBatch

pytestmark = pytest.mark.usefixtures("implementation")

#: Of the tests that look into the pool. The path in Python leaves its memory to Python's allocator.
native = pytest.mark.parametrize("implementation", ["native"], indirect=True)
#: More than the largest block that is left to the allocator.
LARGE = 100_000


@pytest.fixture(autouse=True)
def empty_pool(implementation: ModuleType) -> Iterator[None]:
    """Empty the pool. The garbage of other tests stays what it is, and gives nothing back."""
    gc.disable()
    try:
        implementation.trim_memory(at_once=True)
        implementation.trim_memory(at_once=True)
        assert implementation.free_memory() == 0
        yield
    finally:
        gc.enable()


@pytest.fixture
def pooled(implementation: ModuleType) -> ModuleType:
    probe = implementation.writable_memory(LARGE)
    del probe
    if not implementation.free_memory():
        pytest.skip("built for the sanitizers, which want every block freed at once")
    implementation.trim_memory(at_once=True)
    implementation.trim_memory(at_once=True)
    return implementation


def large(letter: bytes) -> RecordBatch:
    return decode(batch_v2([Rec(letter * LARGE, letter * LARGE, (("h", letter * LARGE),))] * 3))


def address(data: Any) -> int:
    return int(pa.py_buffer(data).address)


@native
def test_dropped_memory_is_used_again(pooled: ModuleType) -> None:
    def homes(batch: RecordBatch) -> set[int]:
        return {address(batch.columns.key_data), address(batch.columns.value_data)}

    first = homes(large(b"a"))  # not within an assert, which would keep a reference to the batch
    second = homes(large(b"b"))
    assert first & second
    free = pooled.free_memory()
    assert free >= 9 * LARGE
    batch = large(b"b")
    assert pooled.free_memory() <= free - 9 * LARGE
    assert batch[2].value == b"b" * LARGE


def test_referenced_memory_is_not_used_again(implementation: ModuleType) -> None:
    lookers: list[tuple[Any, bytes]] = []
    for number, look in enumerate(
        [
            lambda batch: batch,
            lambda batch: batch[1:2],
            lambda batch: batch.columns.value_data,
            lambda batch: memoryview(batch.columns.value_data)[LARGE : LARGE + 5],
            lambda batch: batch.to_arrow(),
            lambda batch: batch.to_arrow().column("value")[1:2],
            lambda batch: pa.Table.from_batches([batch.to_arrow()]).slice(1, 1),
            lambda batch: batch.head(2),
        ]
    ):
        letter = bytes([65 + number])
        lookers.append((look(large(letter)), letter))
        large(b"z")
    for looker, letter in lookers:
        if isinstance(looker, RecordBatch):
            assert {record.value for record in looker} == {letter * LARGE}
        elif isinstance(looker, memoryview | bytes):
            assert bytes(looker) == letter * len(looker)
        else:
            column = looker if isinstance(looker, pa.Array) else looker.column("value")
            assert set(column.to_pylist()) == {letter * LARGE}


@native
def test_pool_keeps_no_more_than_its_limit(pooled: ModuleType) -> None:
    blocks = [pooled.writable_memory(3 << 20) for _ in range(40)]
    assert pooled.free_memory() == 0
    blocks.clear()
    assert 60 << 20 <= pooled.free_memory() <= 64 << 20
    huge = pooled.writable_memory(65 << 20)
    before = pooled.free_memory()
    del huge
    assert pooled.free_memory() <= before


@native
def test_unused_memory_is_released(pooled: ModuleType) -> None:
    wanted, unwanted = pooled.writable_memory(1 << 20), pooled.writable_memory(4 << 20)
    del wanted, unwanted
    pooled.trim_memory(at_once=True)  # from here on the pool counts what is used
    wanted = pooled.writable_memory(1 << 20)
    del wanted
    pooled.trim_memory(at_once=True)
    assert pooled.free_memory() == 1 << 20
    pooled.trim_memory(at_once=True)
    assert pooled.free_memory() == 0


@native
def test_block_is_not_much_larger_than_needed(pooled: ModuleType) -> None:
    block = pooled.writable_memory(8 << 20)
    del block
    before = pooled.free_memory()
    small = pooled.writable_memory(1 << 20)
    assert (len(small), pooled.free_memory()) == (1 << 20, before)
    fitting = pooled.writable_memory(7 << 20)
    assert (len(fitting), pooled.free_memory()) == (7 << 20, 0)


def test_memory_is_writable_and_columns_are_not(implementation: ModuleType) -> None:
    for size in (0, 1, 1000, LARGE):
        memory = implementation.writable_memory(size)
        memory[:] = b"x" * size
        assert (bytes(memory), memory.readonly) == (b"x" * size, False)
    with pytest.raises((ValueError, MemoryError)):
        implementation.writable_memory(-1)
    columns = large(b"a").columns
    for view in (columns.offsets, columns.value_offsets, memoryview(columns.value_data)):
        assert (view.readonly, view.c_contiguous, view.ndim) == (True, True, 1)
        with pytest.raises((TypeError, BufferError)):
            pa.py_buffer(view) and view.__setitem__(0, 1)
    assert (columns.offsets.format, columns.offsets.itemsize, len(columns.offsets)) == ("q", 8, 3)


def test_threads_decode_at_the_same_time(implementation: ModuleType) -> None:
    count = 3 if implementation.__name__.endswith("_fallback") else 200

    def check(number: int) -> bool:
        letter = bytes([number])
        batch = large(letter)
        return [(r.key, r.value, r.headers) for r in batch] == [
            (letter * LARGE, letter * LARGE, (("h", letter * LARGE),))
        ] * 3

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(check, range(count)))
    assert _implementation.current.free_memory() <= 64 << 20


@native
def test_memory_of_encoded_batches_is_used_again(pooled: ModuleType) -> None:
    def home(letter: bytes) -> int:
        encoder = pooled.BatchEncoder()
        for _ in range(3):
            encoder.append(1, None, letter * LARGE)
        assert records_of(encoder) == [letter * LARGE] * 3
        return address(encoder.close())

    assert home(b"a") == home(b"b")
    assert pooled.free_memory() >= 3 * LARGE


def test_batch_in_a_request_is_not_used_again(implementation: ModuleType) -> None:
    """The pieces of a request are all that is left of a batch that failed while it was written."""
    encoder = implementation.BatchEncoder()
    encoder.append(1, None, b"a" * LARGE)
    payload = encoder.close()
    del encoder
    others = [implementation.BatchEncoder() for _ in range(3)]
    for other in others:
        other.append(1, None, b"b" * LARGE)
    assert bytes(payload).count(b"a") == LARGE


def records_of(encoder: Any) -> list[bytes | None]:
    return [record.value for record in decode(encoder.build(-1, -1, -1))]
