"""The views of a batch: records, slices, heads, and Arrow over the same memory."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wirebatches import NOW, Rec, batch_v2, contents, decode, plain, records

from trikafka._wire.arrow import SCHEMA, ArrowRows
from trikafka._wire.columns import Columns, RecordBatch
from trikafka._wire.records import BatchEncoder
from trikafka.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("implementation")
each_example = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)

MIXED = [
    Rec(b"key", b"value", (("h", b"1"), ("h", None))),
    Rec(None, b"", timestamp=-1),
    Rec(b"", None),
] * 9


@pytest.fixture
def batch() -> RecordBatch:
    return decode(batch_v2(MIXED, base=100, last_delta=40))


def address(data: Any) -> int:
    return int(pa.py_buffer(data).address)


def test_batch_is_a_sequence(batch: RecordBatch) -> None:
    everything = list(batch)
    assert len(batch) == len(everything) == 27
    assert [batch[index] for index in range(-27, 27)] == everything * 2
    assert everything[3] in batch
    assert list(reversed(batch)) == everything[::-1]
    for index in (27, -28):
        with pytest.raises(IndexError):
            batch[index]
    with pytest.raises(ValueError, match="step"):
        batch[::2]


def test_repr_shows_no_contents(batch: RecordBatch) -> None:
    assert repr(batch) == "<RecordBatch t-3: 27 records, next offset 141>"


def test_slice_knows_its_next_offset(batch: RecordBatch) -> None:
    assert batch[:] is batch
    assert (batch[3:8].next_offset, batch[5:].next_offset, batch[8:3].next_offset) == (
        108,
        141,
        108,
    )
    assert len(batch[8:3]) == 0


def test_head_ends_before_an_offset(batch: RecordBatch) -> None:
    assert batch.head(141) is batch
    assert batch.head(500) is batch
    head = batch.head(104)
    assert (list(head.offsets), head.next_offset) == ([100, 101, 102, 103], 104)
    assert (len(batch.head(130)), batch.head(130).next_offset) == (27, 130)
    assert (len(batch.head(3)), batch.head(3).next_offset) == (0, 3)


@each_example
@given(records, st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_slices_of_slices(written: list[Rec], start: int, stop: int, inner: int) -> None:
    batch = decode(batch_v2(written))
    part = batch[start:stop][inner:]
    assert list(part) == list(batch)[start:stop][inner:]
    part.to_arrow().validate(full=True)
    assert part.to_arrow().column("value").to_pylist() == [record.value for record in part]
    assert part.to_arrow().column("headers").to_pylist() == [
        [{"key": name, "value": value} for name, value in record.headers] for record in part
    ]
    assert batch.nbytes == batch[:start].nbytes + batch[start:].nbytes


def test_empty_batch() -> None:
    batch = RecordBatch.empty()
    assert (batch.topic, batch.partition, len(batch), list(batch), batch.nbytes) == (
        "",
        -1,
        0,
        [],
        0,
    )
    assert batch.to_arrow().num_rows == 0
    assert batch.to_arrow().schema == decode(batch_v2(MIXED)).to_arrow().schema


def test_arrow_shares_the_memory(batch: RecordBatch) -> None:
    columns, table = batch.columns, batch.to_arrow()
    table.validate(full=True)
    for name in ("key", "value"):
        validity, offsets, data = table.column(name).buffers()
        assert data.address == address(getattr(columns, f"{name}_data"))
        assert offsets.address == address(getattr(columns, f"{name}_offsets"))
        assert validity.address == address(getattr(columns, f"{name}_validity"))
    assert table.column("offset").buffers()[1].address == address(columns.offsets)
    assert table.column("timestamp").buffers()[1].address == address(columns.timestamps)
    entries = table.column("headers").values
    assert entries.field("key").buffers()[2].address == address(columns.header_name_data)
    assert entries.field("value").buffers()[2].address == address(columns.header_value_data)
    assert table.nbytes < batch.nbytes * 2


def test_arrow_outlives_the_batch(batch: RecordBatch) -> None:
    table = batch.to_arrow()
    expected = [record.value for record in batch]
    del batch
    assert table.column("value").to_pylist() == expected


def test_arrow_values(batch: RecordBatch) -> None:
    table = batch[:3].to_arrow()
    assert str(table.schema.field("timestamp").type) == "timestamp[ms, tz=UTC]"
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [NOW, None, NOW]
    assert table.drop_columns(["timestamp"]).to_pylist()[0] == {
        "topic": "t",
        "partition": 3,
        "offset": 100,
        "timestamp_type": 0,
        "key": b"key",
        "value": b"value",
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert table.column("headers").to_pylist()[1] == []


def test_arrow_by_capsule(batch: RecordBatch) -> None:
    assert pa.record_batch(batch).equals(batch.to_arrow())


def test_missing_pyarrow_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from trikafka._wire.columns import RecordBatch\n"
        "try: RecordBatch.empty().to_arrow()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "trikafka[arrow]" in done.stdout


def from_arrow(data: Any, *, default_timestamp: int = NOW, **names: Any) -> list[Columns]:
    rows = ArrowRows(data, **names)
    return [rows.columns(piece, default_timestamp) for _, piece in rows.pieces(1000, 10**6)]


@each_example
@given(records)
def test_arrow_returns_to_the_same_bytes(written: list[Rec]) -> None:
    """Arrow data made from a batch encodes to the records of that batch."""
    written = [record._replace(timestamp=max(record.timestamp, 0)) for record in written]
    batch = decode(batch_v2(written))
    table = pa.Table.from_batches([batch.to_arrow()])
    for source in (table, table.to_batches()[0], batch):
        [columns] = from_arrow(source)
        encoder = BatchEncoder()
        encoder.extend_columns(columns)
        assert plain(decode(encoder.build(-1, -1, -1))) == plain(batch)


@each_example
@given(st.lists(records, max_size=3), st.integers(1, 40), st.integers(1, 2000))
def test_pieces_of_a_table_have_all_rows(
    written: list[list[Rec]], max_rows: int, max_bytes: int
) -> None:
    chunks = [decode(batch_v2(each)).to_arrow() for each in written]
    table = pa.Table.from_batches(chunks, SCHEMA)[1:]
    rows = ArrowRows(table)
    found = []
    for first, piece in rows.pieces(max_rows, max_bytes):
        assert first == len(found)
        assert piece.num_rows <= max(max_rows, 8)
        found += encoded(rows.columns(piece, -1))
    assert found == [record for each in written for record in each][1:]


def encoded(columns: Any) -> list[Rec]:
    encoder = BatchEncoder()
    encoder.extend_columns(columns)
    return [record._replace(offset=None) for record in plain(decode(encoder.build(-1, -1, -1)))]


TEXT = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.binary(2),
]


@pytest.mark.parametrize("kind", TEXT)
def test_arrow_types_of_values(kind: pa.DataType) -> None:
    table = pa.table(
        {"v": pa.array(["zz", "ab", None, "cd"], pa.string()).cast(pa.binary()).cast(kind)}
    )[1:]
    [columns] = from_arrow(table)
    assert encoded(columns) == [Rec(None, b"ab"), Rec(None, None), Rec(None, b"cd")]


@pytest.mark.parametrize("kind", TEXT[:-1])
def test_arrow_dictionaries(kind: pa.DataType) -> None:
    contents = pa.array(["x", "y", None, "x"], pa.string()).dictionary_encode()
    contents = pa.DictionaryArray.from_arrays(contents.indices, contents.dictionary.cast(kind))
    [columns] = from_arrow(pa.table({"key": contents, "value": contents}))
    assert encoded(columns) == [Rec(b"x", b"x"), Rec(b"y", b"y"), Rec(), Rec(b"x", b"x")]
    text = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([b"\xff"]))
    [columns] = from_arrow(pa.table({"v": text}))
    assert encoded(columns) == [Rec(None, b"\xff")]


def test_arrow_types_of_timestamps_and_headers() -> None:
    pair = pa.struct([("n", pa.large_string()), ("v", pa.large_binary())])
    table = pa.table(
        {
            "d": ["x", "y", "x"],
            "value": pa.nulls(3),
            "seconds": pa.array([1, None, 3], pa.timestamp("s")),
            "map": pa.array([[("a", "1")], None, []], pa.map_(pa.string(), pa.string())),
            "list": pa.array([[{"n": "a", "v": b"1"}, {"n": "b", "v": None}], None, []]),
            "large": pa.array(
                [[{"n": "c", "v": b"1"}], None, [{"n": "d", "v": b""}]], pa.large_list(pair)
            ),
        }
    )
    [columns] = from_arrow(table, key="d", timestamp="seconds", headers="map")
    assert encoded(columns) == [
        Rec(b"x", None, (("a", b"1"),), 1000),
        Rec(b"y"),
        Rec(b"x", timestamp=3000),
    ]
    [columns] = from_arrow(table[:1], headers="list")
    assert encoded(columns) == [Rec(None, None, (("a", b"1"), ("b", None)))]
    [columns] = from_arrow(table[2:], headers="list")
    assert encoded(columns) == [Rec()]
    [columns] = from_arrow(table[1:], headers="large")
    assert encoded(columns) == [Rec(), Rec(None, None, (("d", b""),))]


def test_hidden_headers_under_null_are_ignored() -> None:
    """A null list of headers is read as no headers, even if the child array has entries behind it."""
    lists = pa.array([[("a", "1")], [("b", "2")], [("c", "3")]], pa.map_(pa.string(), pa.string()))
    hidden = pa.MapArray.from_arrays(pa.array([0, None, 2, 3], pa.int32()), lists.keys, lists.items)
    [columns] = from_arrow(pa.table({"value": pa.nulls(3), "headers": hidden}))
    assert [record.headers for record in encoded(columns)] == [
        (("a", b"1"), ("b", b"2")),
        (),
        (("c", b"3"),),
    ]


def test_values_from_arrow_are_not_copied() -> None:
    for column in (pa.array([b"a" * 100] * 50), pa.array(["a" * 100] * 50)):
        table = pa.table({"v": column})
        [columns] = from_arrow(table)
        assert address(columns.value_data) == table.column("v").chunk(0).buffers()[2].address


def test_partitions_from_arrow() -> None:
    table = pa.table({"value": ["a", "b", "c"], "p": pa.array([2, None, 0], pa.uint8())})
    for data, partition in ((table, "p"), (table.rename_columns(["value", "partition"]), None)):
        rows = ArrowRows(data, partition=partition)
        [(_, piece)] = rows.pieces(10, 10)
        partitions = rows.partitions(piece)
        assert partitions is not None
        assert (list(partitions), rows.partition) == ([2, -1, 0], None)
    rows = ArrowRows(table.rename_columns(["value", "partition"]), partition=1)
    assert (rows.partitions(piece), rows.partition) == (None, 1)
    for number in (-1, 2**31):
        rows = ArrowRows(pa.table({"value": ["a"], "partition": pa.array([number], pa.int64())}))
        [(_, piece)] = rows.pieces(10, 10)
        with pytest.raises(ConfigurationError, match=f"partition numbers from {number}"):
            rows.partitions(piece)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {},
            r"which column has the values, with value=; the columns are: v \(string\), n "
            r"\(list<item: int64>\)",
        ),
        ({"value": "w"}, r"value: there is no column 'w'; the columns are: v \(string\), n"),
        ({"value": "n"}, "value: column 'n' is list<item: int64>, not binary or strings"),
        ({"value": "v", "key": "i"}, "key: column 'i' is int64, not binary or strings"),
        ({"value": "v", "timestamp": "n"}, "timestamp: column 'n' is list"),
        ({"value": "v", "headers": "v"}, "headers: column 'v' is string, not lists"),
        ({"value": "v", "partition": "v"}, "partition: column 'v' is string, not integers"),
    ],
)
def test_unfit_arrow_columns_are_refused(arguments: dict[str, str], words: str) -> None:
    table = pa.table({"v": ["a"], "n": [[1]], "i": [1]})
    with pytest.raises(ConfigurationError, match=words):
        ArrowRows(table, **arguments)  # type: ignore[arg-type]


def test_unfit_data_is_refused() -> None:
    with pytest.raises(
        ConfigurationError,
        match="list is neither an Arrow table nor has Arrow's PyCapsule interface",
    ):
        ArrowRows([1, 2])
    with pytest.raises(ConfigurationError, match="more than one column 'v'"):
        ArrowRows(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["v", "v"]), value="v")
    with pytest.raises(ConfigurationError, match="the columns are: none"):
        ArrowRows(pa.table({}))
    nameless = pa.array(
        [[{"n": None, "v": b"1"}]], pa.list_(pa.struct([("n", pa.string()), ("v", pa.binary())]))
    )
    with pytest.raises(ConfigurationError, match="a header has no name"):
        from_arrow(pa.table({"value": ["a"], "headers": nameless}))
    with pytest.raises(ConfigurationError, match="cannot be read as records"):
        from_arrow(pa.table({"value": ["a"], "timestamp": pa.array([2**64 - 1], pa.uint64())}))


def test_contents_of_a_slice_are_plain_columns(batch: RecordBatch) -> None:
    assert contents(batch[0:27].columns) == contents(batch.columns)
    assert batch[4:6].columns.count == 2


@pytest.mark.parametrize("count", [1, 16_384, 16_385, 40_000])
@pytest.mark.parametrize("stamp", [0, 7])
def test_every_row_has_a_time_and_no_offset(count: int, stamp: int) -> None:
    """The default timestamp and offset 0 are set for every row, in pieces of any length."""
    rows = ArrowRows(pa.table({"value": pa.nulls(count, pa.binary())}))
    [(_, piece)] = rows.pieces(10**6, 10**9)
    found = rows.columns(piece, stamp)
    assert list(found.offsets) == [0] * count
    assert list(found.timestamps) == [stamp] * count
    assert list(found.timestamp_types) == [0] * count


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize(("start", "stop"), [(0, 27), (0, 0), (3, 17), (26, 27), (8, 16)])
def test_batch_is_pickled(batch: RecordBatch, start: int, stop: int, protocol: int) -> None:
    """For worker processes."""
    part = batch[start:stop]
    found = pickle.loads(pickle.dumps(part, protocol))
    assert list(found) == list(part)
    assert found.next_offset == part.next_offset
    assert found.leader_epoch == part.leader_epoch
    assert found.nbytes == part.nbytes
    assert found.to_arrow().equals(part.to_arrow())
    assert list(found[1:5]) == list(part[1:5])


def test_pickled_slice_has_only_its_own_bytes() -> None:
    whole = decode(batch_v2([Rec(b"k" * 1000, b"v" * 1000)] * 100))
    assert len(pickle.dumps(whole[50:51])) < 5_000


def test_copies_are_the_batch_itself(batch: RecordBatch) -> None:
    assert copy.copy(batch) is batch
    assert copy.deepcopy({"batch": batch})["batch"] is batch


def test_index_of_another_type_is_explained(batch: RecordBatch) -> None:
    wrong: Any = "0"
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        batch[wrong]
