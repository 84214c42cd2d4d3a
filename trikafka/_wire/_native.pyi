from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from trikafka._wire._columns import Columns
from trikafka._wire._format import Buffer, Fields, Section
from trikafka._wire.compression import Codec
from trikafka.types import AnyRecord

def walk(
    data: Buffer,
    start: int,
    position: int,
    *,
    check_crcs: bool,
    most: int,
    committed: bool,
    first_abort: int | None,
    aborting: Collection[int],
) -> tuple[int, int, int, int, Any]: ...
def checksums(data: Buffer) -> tuple[int, int]: ...
def fill(sections: Sequence[Section]) -> tuple[Fields, int, int]: ...
def end_of_batches(records: Buffer, start: int) -> int | None: ...
def make_records(
    columns: Columns, topic: str, partition: int, start: int, stop: int
) -> list[AnyRecord]: ...
def iterate(columns: Columns, topic: str, partition: int) -> Iterator[AnyRecord]: ...
def writable_memory(size: int) -> memoryview: ...
def free_memory() -> int: ...
def trim_memory(at_once: bool = False) -> None: ...
def murmur2(data: Buffer) -> int: ...
def hash_key(kind: int, data: Buffer) -> int: ...
def partition_columns(
    key_offsets: Buffer,
    key_data: Buffer,
    key_validity: Buffer | None,
    n_partitions: int,
    explicit: Buffer | None = None,
    keyless: int = -1,
    kind: int = 0,
    shortest: int = 0,
) -> memoryview: ...
def find_unfit(columns: Columns, largest: int) -> tuple[int, int] | None: ...
def render_rows(
    columns: Columns,
    start: int,
    stop: int,
    parts: Sequence[tuple[int, bytes]],
    null: bytes,
    into: bytearray,
    most: int,
) -> tuple[int, memoryview]: ...
def split_lines(
    data: Buffer, delimiter: bytes | None, empty_is_null: bool
) -> tuple[int, tuple[memoryview, bytes, bytes] | None, tuple[memoryview, bytes, bytes] | None]: ...
def split_json_lines(
    data: Buffer, one_topic: bool
) -> (
    tuple[
        int,
        str | None,
        tuple[memoryview, bytes, bytes] | None,
        tuple[memoryview, bytes, bytes] | None,
        memoryview | None,
        memoryview | None,
        tuple[memoryview, tuple[memoryview, bytes, bytes], tuple[memoryview, bytes, bytes]] | None,
    ]
    | None
): ...
def group_rows(partitions: Buffer, n_partitions: int) -> tuple[memoryview, memoryview]: ...

class Cursor:
    def __init__(self, batch: Any, position: int, processed: int | None) -> None: ...
    @property
    def live(self) -> bool: ...
    @property
    def position(self) -> int: ...
    @property
    def processed(self) -> int | None: ...
    @property
    def rest(self) -> Any: ...
    def take(self) -> AnyRecord: ...
    def end(self) -> None: ...
    def processed_upto(self, offset: int) -> None: ...

class RecordIterator:
    def __init__(
        self,
        wait: Callable[[], Coroutine[Any, Any, AnyRecord]],
        turn: float,
        current_task: Callable[[], object] | None,
        now: Callable[[], float] | None,
    ) -> None: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[AnyRecord]: ...
    def follow(self, cursor: Cursor | None) -> None: ...
    def turn_begun(self) -> None: ...

class HoldingCounts:
    buffered: int
    held: int
    enough: int
    made_room: Callable[[], object] | None
    def __init__(self) -> None: ...

class OpenEntry:
    stop: int
    def upto(self, stop: int) -> None: ...

class AcquiredStates:
    _chunk: list[AnyRecord]
    _chunk_start: int
    _decided: Callable[[], object]
    _holdings: HoldingCounts
    _queue: Callable[[Any, int, int], object]
    _types: bytearray
    held: int
    keep_until: float
    queued: Any
    states: bytearray
    def take(self, index: int) -> AnyRecord | None: ...
    def decide_one(self, index: int, kind: int) -> None: ...

class BufferFront:
    _index: int
    _waiting: deque[Any]
    def pop_front(self) -> tuple[Any, int, AnyRecord] | None: ...

class HeldRecords:
    _cancel_elsewhere: Any
    _parts: Any
    _scope: Any
    _start: int
    _stop: int
    _verdict: bytes | None
    acquired: Any
    def _acknowledge(self, verdict: bytes) -> None: ...
    def __aenter__(self) -> Awaitable[Self]: ...
    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Awaitable[bool]: ...

class DeliveryIterator:
    def __init__(
        self,
        wait: Callable[[], Coroutine[Any, Any, Any]],
        turn: float,
        current_task: Callable[[], object] | None,
        now: Callable[[], float] | None,
        buffer: BufferFront,
        parts: object,
        kind: type[HeldRecords],
        deliver: Callable[[Any, int, AnyRecord], Any] | None,
    ) -> None: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Awaitable[Any]: ...
    def at_hand(self) -> Any: ...
    def turn_begun(self, keep_until: float = ...) -> None: ...

class DeliveryHandle:
    @property
    def _batch(self) -> Any: ...
    @property
    def _index(self) -> int: ...
    @property
    def _timestamp(self) -> int: ...

class BufferMemory:
    @property
    def capacity(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def waiters(self) -> list[Any]: ...
    def __init__(self, capacity: int) -> None: ...
    def take(self, size: int) -> None: ...
    def give(self, size: int) -> None: ...

class OpenBatches:
    @property
    def encoders(self) -> list[BatchEncoder | None]: ...
    @property
    def sticky(self) -> int: ...
    def resize(self, count: int) -> None: ...
    def open(self, partition: int, encoder: BatchEncoder) -> None: ...
    def close(self, partition: int) -> None: ...
    def stick(self, partition: int) -> None: ...

class Appender:
    @property
    def topics(self) -> dict[str, OpenBatches]: ...
    def __init__(
        self,
        handle: type[DeliveryHandle],
        carefully: Callable[..., Any],
        memory: BufferMemory,
        batch_size: int,
        largest: int,
        *,
        careful: bool = False,
        key_hash: int = 0,
        shortest_key: int = 0,
    ) -> None: ...
    def make(self, batch: object, index: int, timestamp: int) -> Any: ...
    def append(
        self,
        topic: object,
        value: object,
        key: object,
        headers: object,
        timestamp: object,
        partition: object,
    ) -> Any: ...

class BatchEncoder:
    @property
    def owner(self) -> Any: ...
    def belong_to(self, owner: object) -> None: ...
    def __init__(self, compression: str | Codec = "none", level: int | None = None) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def size(self) -> int: ...
    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
    ) -> int: ...
    def extend_columns(
        self,
        columns: Columns,
        *,
        rows: Buffer | None = None,
        start: int = 0,
        stop: int | None = None,
        max_size: int = ...,
    ) -> int: ...
    def close(self) -> Buffer: ...
    def head(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        transactional: bool = False,
    ) -> bytes: ...
    def build(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        transactional: bool = False,
    ) -> bytes: ...
