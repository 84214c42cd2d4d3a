"""``trikafka produce`` from lines and tables, in virtual time."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
import trio.lowlevel
from piping import plan_to_produce, produced, settings
from trio.testing import MockClock as Clock

import trikafka
from trikafka import PartitionDelivery, TopicPartition
from trikafka._wire import _implementation
from trikafka.cli import parquet_in, source
from trikafka.cli.delivered import Delivered
from trikafka.cli.progress import meter
from trikafka.cli.running import ReaderGoneError, Stop
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster

Pair = tuple[bytes | None, bytes | None]


def pairs(cluster: ScriptedCluster, partition: int = 0) -> list[Pair]:
    return [(record.key, record.value) for record in cluster.records("t", partition)]


@pytest.fixture(params=["native", "pure"])
def either(request: pytest.FixtureRequest) -> Any:
    before = _implementation.use(request.param)
    yield
    _implementation.use(before)


@pytest.mark.usefixtures("either")
async def test_raw_lines_are_written_as_they_are(autojump_clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"one\n\ntwo\r\n\xff\nlast")
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        work = await produced(cluster, file)
        assert pairs(cluster) == [
            (None, value) for value in (b"one", b"", b"two\r", b"\xff", b"last")
        ]
    assert work.delivered.count == 5


async def test_keys_of_lines_choose_partitions(autojump_clock: Clock, tmp_path: Path) -> None:
    """Lines as columns go where lines one by one go, which a header makes them."""
    file = tmp_path / "in"
    file.write_bytes(b"".join(b"k%d::v%d\n" % (n, n) for n in range(40)) + b"y::\n")
    found = []
    for headers in ((), (("h", b"1"),)):
        async with ScriptedCluster(topics={"t": 3}) as cluster:
            await produced(cluster, file, key_delimiter=b"::", empty_is_null=True, headers=headers)
            found.append([pairs(cluster, number) for number in range(3)])
    assert found[0] == found[1]
    assert sum(map(len, found[0])) == 41
    assert (b"y", None) in found[0][0] + found[0][1] + found[0][2]


async def test_line_without_delimiter_is_named(autojump_clock: Clock, tmp_path: Path) -> None:
    """The lines before it are written, also those of its block."""
    file = tmp_path / "in"
    file.write_bytes(b"a:1\nb:2\nc\nd:4\n")
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(
            click.ClickException, match="line 3: the line has no key delimiter"
        ) as caught:
            await produced(cluster, file, key_delimiter=b":")
        assert pairs(cluster) == [(b"a", b"1"), (b"b", b"2")]
    assert caught.value.message.endswith("; 2 records were written")


async def test_too_large_line_is_named(autojump_clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"a\nb\n" + b"x" * 2_000_000 + b"\nd\n")
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(click.ClickException, match=r"in: line 3: .*; 2 records were written"):
            await produced(cluster, file)
        assert pairs(cluster) == [(None, b"a"), (None, b"b")]


async def test_refused_line_is_named(autojump_clock: Clock, tmp_path: Path) -> None:
    """Of what a broker refuses, the error names the first line of the batch."""
    file = tmp_path / "in"
    file.write_bytes(b"".join(b"%05d%s\n" % (n, b"x" * 995) for n in range(3_000)))
    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def refuse(request: Any, default: Any) -> Any:
            response = await default()
            if len(cluster.records("t", 0)) > 1_000:
                for topic in response.responses:
                    for part in topic.partition_responses:
                        part.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED.value
            return response

        cluster.on("Produce", refuse)
        with pytest.raises(click.ClickException) as caught:
            await produced(cluster, file, client={"max_in_flight_requests_per_connection": 1})
    line = int(caught.value.message.partition(": line ")[2].partition(":")[0])
    count = int(caught.value.message.rpartition("; ")[2].partition(" ")[0])
    assert line == count + 1
    assert 1 < line <= 3_000


@pytest.mark.parametrize(("partitions", "place"), [(1, "line 4: "), (3, "line 1 or later: ")])
async def test_refused_record_is_named(
    autojump_clock: Clock,
    tmp_path: Path,
    partitions: int,
    place: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The broker refuses one record of a batch; the report says where the others are."""
    file = tmp_path / "in"
    lines = [{"key": f"k{n}", "value": "v", "partition": n % partitions} for n in range(6)]
    lines[3] = {"value": "no key", "partition": 0}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with ScriptedCluster(topics={"t": partitions}) as cluster:
        async with trikafka.open_admin(**settings(cluster)) as admin:
            resource = trikafka.ConfigResource("topic", "t")
            await admin.alter_configs({resource: {"cleanup.policy": "compact"}})
        work = plan_to_produce(cluster, file, "json")
        with pytest.raises(click.ClickException, match=f"in: {place}.*5 records were written"):
            await work.main(Stop())
        work.delivered.report("json")
        said = {row["partition"]: row["records"] for row in json.loads(capsys.readouterr().out)}
        there = {number: len(pairs(cluster, number)) for number in range(partitions)}
        assert said == {number: count for number, count in there.items() if count}
        assert sum(said.values()) == 5


async def test_missing_partition_is_refused_before(autojump_clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"a\n")
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        with pytest.raises(click.ClickException, match="line 1: topic 't' has 2 partitions"):
            await produced(cluster, file, partition=2)
        await produced(cluster, file, partition=1)
        assert (pairs(cluster, 0), pairs(cluster, 1)) == ([], [(None, b"a")])


async def test_report_counts_by_partition(
    autojump_clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in"
    file.write_text('{"value": "a", "partition": 0}\n\n' + '{"value": "b", "partition": 1}\n' * 2)
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        work = await produced(cluster, file, "json")
    work.delivered.report("table")
    work.delivered.report("json")
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()[1:3]]
    assert rows == [["t", "0", "1", "0", "0"], ["t", "1", "2", "0", "1"]]
    assert json.loads(printed[printed.index("[") :])[1] == {
        "topic": "t",
        "partition": 1,
        "records": 2,
        "first_offset": 0,
        "last_offset": 1,
    }


def test_failure_outlives_a_gone_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed write of the report does not replace the reason for the failure."""
    reader, writer = os.pipe()
    os.close(reader)
    delivered = Delivered()
    delivered.add({TopicPartition("t", 0): PartitionDelivery(1, 0, 0)})
    with suppress(BrokenPipeError), open(writer, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        with pytest.raises(click.ClickException, match="refused"), delivered.reporting("table"):
            raise click.ClickException("refused")
        with pytest.raises(ReaderGoneError), delivered.reporting("table"):
            pass


def test_report_bears_outcomes_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The failure of a table is known before the outcomes of older ones that are under way."""
    delivered, place = Delivered(), TopicPartition("t", 0)
    for rows, first, last in ((2, 8, 9), (3, 5, 7), (1, None, None)):
        delivered.add({place: PartitionDelivery(rows, first, last)})
    delivered.report("json")
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["records"], row["first_offset"], row["last_offset"]) == (6, 5, 9)


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
async def test_seconds_have_one_warning(
    autojump_clock: Clock,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    form: str,
) -> None:
    """The producer logs it; without a handler Python prints that line."""
    file = tmp_path / "in"
    if form == "json":
        file.write_text('{"value": "x", "timestamp": 1769860800}\n' * 2)
    elif form == "csv":
        file.write_text("value,timestamp\n" + "x,1769860800\n" * 2)
    else:
        times = pa.array([1_769_860_800] * 2, pa.int64())
        pq.write_table(pa.table({"value": ["x"] * 2, "timestamp": times}), file)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        await produced(cluster, file, form)
        assert len(pairs(cluster)) == 2
    assert capsys.readouterr().err == ""
    (logged,) = caplog.messages
    assert logged.startswith("timestamps of records for topic t were probably given in seconds")


async def test_csv_rows_become_records(autojump_clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text('\ufeffid,name\n1,"a\nb"\n2,\n\n3,"ü,"\n')
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        await produced(cluster, file, "csv", key_column="id")
        found = [(key, json.loads(value or b"")) for key, value in pairs(cluster)]
    assert found == [
        (b"1", {"id": "1", "name": "a\nb"}),
        (b"2", {"id": "2", "name": ""}),
        (b"3", {"id": "3", "name": "ü,"}),
    ]


async def test_columns_of_csv_are_parts_of_records(autojump_clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("value,key,partition,timestamp\na,k,1,1000\nb,,,\n,x,0,\n")
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        await produced(cluster, file, "csv", empty_is_null=True)
        (first, *_), everything = cluster.records("t", 1), pairs(cluster, 0) + pairs(cluster, 1)
    assert (first.key, first.value, first.timestamp) == (b"k", b"a", 1000)
    assert set(everything) == {(b"k", b"a"), (None, b"b"), (b"x", None)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n3\n", "line 3: the row has 1 field, and the file has 2 columns"),
        ("value,partition\nx,one\n", "line 2: partition must be a whole number from 0, not 'one'"),
        ('a\n"x', "line 2: this is no CSV"),
        ("value,timestamp\nx," + "1" * 5000, "line 2: timestamp must be a whole number from 0"),
        ("a,a\n1,2\n", "line 1: two columns have the same name"),
        ("\na,b\n1,2\n", "line 1: this line is blank; the first line must name the columns"),
        ("a;b\n1;2\n", "line 1: the header names one column, 'a;b': columns are separated by"),
        ("a,b\n1,2\n", r"line 1: there is no column 'id' \(--key-column\); the columns are: a, b"),
    ],
)
async def test_wrong_csv_is_explained(
    autojump_clock: Clock, tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "in.csv"
    file.write_text(text)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(click.ClickException, match=says):
            await produced(cluster, file, "csv", key_column="id" if "no column" in says else None)


@pytest.mark.parametrize("option", ["key_column", "value_column"])
@pytest.mark.parametrize("name", ["a|b", "text;lang", "a\tb"])
async def test_chosen_column_may_have_any_name(
    autojump_clock: Clock, tmp_path: Path, option: str, name: str
) -> None:
    file = tmp_path / "in.csv"
    file.write_text(f'"{name}"\nx\n')
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        await produced(cluster, file, "csv", **{option: name})
        assert b"x" in pairs(cluster)[0]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"value\nx\ny\n\n\xff\nz\n", "line 5: this is not UTF-8"),
        (b'value\nx\ny\n"z', "line 4: this is no CSV"),
        (b"value\nx\ny\n" + b"z" * 2_000_000, "line 4: the line is longer than 1500000 bytes"),
    ],
    ids=["bytes", "quote", "long"],
)
async def test_rows_before_wrong_csv_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, says: str
) -> None:
    monkeypatch.setattr(source, "LONGEST", 1_500_000)
    file = tmp_path / "in.csv"
    file.write_bytes(data)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(click.ClickException) as caught:
            await produced(cluster, file, "csv")
        assert pairs(cluster) == [(None, b"x"), (None, b"y")]
    assert f"in.csv: {says}" in caught.value.message
    assert caught.value.message.endswith("; 2 records were written")


async def test_quoted_rows_span_blocks(
    autojump_clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that goes over several blocks stays whole, and the rows keep their lines."""
    monkeypatch.setattr(source, "_PIECE", 16)
    file = tmp_path / "in.csv"
    long = "\n".join(["line"] * 20)
    file.write_text(f'id,value\r\n1,"{long}"\r\n\r\n2,"x""y"\r\n3,5" wide\n4,"a\n\nb"\n5\n')
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(click.ClickException, match="line 28: the row has 1 field,"):
            await produced(cluster, file, "csv", key_column="id")
        assert pairs(cluster) == [
            (b"1", long.encode()),
            (b"2", b'x"y'),
            (b"3", b'5" wide'),
            (b"4", b"a\n\nb"),
        ]


async def test_csv_in_columns_is_as_singly(autojump_clock: Clock, tmp_path: Path) -> None:
    """Rows as columns become the records of rows one by one, which a header makes them."""
    file = tmp_path / "in.csv"
    names = 'a,"b%s"\n', "key,value,timestamp,partition\n"
    rows = 'x,"ü\n""%%"\n,\u2028\nz,\\\n', 'k,v,5,0\n,,,\nü,"a\nb",007,1\n'
    for head, body in zip(names, rows, strict=True):
        for null in (False, True):
            file.write_text(head + body)
            found = []
            for headers in ((), (("h", b"1"),)):
                async with ScriptedCluster(topics={"t": 2}) as cluster:
                    await produced(
                        cluster, file, "csv", empty_is_null=null, key_column=None, headers=headers
                    )
                    found.append(
                        [
                            sorted(
                                (r.key or b"", r.value or b"", r.timestamp % 2**40 < 10)
                                for r in cluster.records("t", number)
                            )
                            for number in range(2)
                        ]
                    )
            if "partition" in head:
                assert all(("ü".encode(), b"a\nb", True) in each[1] for each in found)
            assert sorted(chain(*found[0])) == sorted(chain(*found[1]))


async def test_large_field_of_csv_is_written(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes(b"value\n" + b"x" * 200_000 + b"\n")
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        await produced(cluster, file, "csv")
        assert pairs(cluster) == [(None, b"x" * 200_000)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on Windows")
async def test_csv_is_written_as_it_arrives(tmp_path: Path) -> None:
    """Cancelled while no input arrives, the command ends."""
    fifo = tmp_path / "in.csv"
    os.mkfifo(fifo)
    fd = os.open(fifo, os.O_RDWR)
    try:
        async with ScriptedCluster(topics={"t": 1}) as cluster, trio.open_nursery() as nursery:
            nursery.start_soon(produced, cluster, fifo, "csv")
            os.write(fd, b"value\na\n\nb\n\n")
            with trio.fail_after(240):
                while pairs(cluster) != [(None, b"a"), (None, b"b")]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    finally:
        os.close(fd)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on Windows")
async def test_pipe_without_a_writer_is_waited_for(tmp_path: Path) -> None:
    """A named pipe blocks its opening, and so would the signals, until a program writes to it."""
    file = tmp_path / "in"
    os.mkfifo(file)
    writer = threading.Timer(1.0, lambda: file.write_bytes(b"a\nb\n"))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await trio.sleep(0.05)
            ticks += not writer.finished.is_set()

    async with ScriptedCluster(topics={"t": 1}) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        writer.start()
        await produced(cluster, file)
        nursery.cancel_scope.cancel()
        assert pairs(cluster) == [(None, b"a"), (None, b"b")]
    assert ticks > 10


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on Windows")
@pytest.mark.parametrize(
    ("form", "head", "line", "half"),
    [
        ("raw", b"", b"v%d\n", b"half"),
        ("json", b"", b'{"value": "v%d"}\n', b'{"value"'),
        ("csv", b"value\n", b"v%d\n", b"half"),
        ("csv", b"value\n", b"v%d\n", b'"half\n'),
    ],
    ids=["raw", "json", "csv", "quoted"],
)
async def test_signal_leaves_no_line_unwritten(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    head: bytes,
    line: bytes,
    half: bytes,
) -> None:
    """What was read from a pipe is written; a half line is not, and a warning names it."""
    from pipe_levels import waiting_bytes

    fifo = tmp_path / "in"
    os.mkfifo(fifo)
    fd = os.open(fifo, os.O_RDWR)
    expected = [(None, b"v%d" % number) for number in range(2_000)]
    stop = Stop()
    try:
        async with ScriptedCluster(topics={"t": 1}) as cluster, trio.open_nursery() as nursery:
            work = plan_to_produce(cluster, fifo, form)
            nursery.start_soon(work.main, stop)
            os.write(fd, head + b"".join(line % number for number in range(2_000)) + half)
            with trio.fail_after(240):
                while waiting_bytes(fd):
                    await trio.lowlevel.checkpoint()
            stop.now(2)
        assert pairs(cluster) == expected
    finally:
        os.close(fd)
    assert work.delivered.count == 2_000
    number = 2_001 + head.count(b"\n")
    assert f"in: line {number} had not arrived as a whole" in capsys.readouterr().err


async def test_signal_cuts_no_rows_of_parquet(
    autojump_clock: Clock,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows that were read are written and counted, and a warning counts the others."""
    monkeypatch.setattr(parquet_in, "_ROWS", 100)
    file = tmp_path / "in.parquet"
    pq.write_table(pa.table({"value": [b"%d" % number * 1_000 for number in range(1_000)]}), file)
    stop = Stop()
    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def signal(request: Any, default: Any) -> Any:
            if stop.number is None:
                stop.now(2)
            return await default()

        cluster.on("Produce", signal)
        small = {"buffer_memory": 65_536, "batch_size": 16_384}
        work = plan_to_produce(cluster, file, "parquet", small)
        await work.main(stop)
        written = len(pairs(cluster))
    assert written == work.delivered.count
    assert 0 < written < 1_000
    assert written % 100 == 0
    assert f"the last {1_000 - written} of 1000 rows were not written" in capsys.readouterr().err


async def test_few_large_rows_of_parquet_are_read_at_once(tmp_path: Path) -> None:
    """With 5,000 rows of a megabyte at once, a file would need gigabytes of memory."""
    path = tmp_path / "in.parquet"
    values = [b"%d" % number + bytes(200_000) for number in range(200)]
    pq.write_table(pa.table({"value": values}), path, use_dictionary=False)
    sizes = []
    with parquet_in.ParquetFile(str(path), None, None, False) as file:
        assert await file.open() == 200
        while (rows := await file.read()) is not None:
            sizes.append((rows.num_rows, rows.nbytes))
    assert sum(count for count, _ in sizes) == 200
    assert max(size for _, size in sizes) <= 17 << 20


async def test_unknown_outcomes_are_named(
    autojump_clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker that does not answer for the time after a signal leaves a warning."""
    file = tmp_path / "in"
    file.write_bytes(b"a\nb\n")
    stop = Stop()
    async with ScriptedCluster(topics={"t": 1}) as cluster:

        async def silent(request: Any, default: Any) -> Any:
            stop.now(2)
            await trio.sleep_forever()

        cluster.on("Produce", silent)
        with stop.scope:
            await plan_to_produce(cluster, file).main(stop)
    assert stop.scope.cancelled_caught
    assert "no acknowledgement from" in (printed := capsys.readouterr().err)
    assert "in: line 1 on" in printed


async def test_lines_without_outcome_are_bounded(autojump_clock: Clock, tmp_path: Path) -> None:
    """Each has an ack and the text of its place, so buffer_memory alone is no bound for them."""
    file = tmp_path / "in"
    file.write_bytes(b"x\n" * 21_000)
    async with ScriptedCluster(topics={"t": 1}) as cluster, trio.open_nursery() as nursery:

        async def silent(request: Any, default: Any) -> None:
            await trio.sleep_forever()

        cluster.on("Produce", silent)
        work = plan_to_produce(cluster, file, headers=(("h", b"1"),))
        nursery.start_soon(work.main, Stop())
        while len(work._acks) < 20_000:  # noqa: ASYNC110
            await trio.sleep(0.1)
        await trio.sleep(1)
        assert len(work._acks) == 20_001
        nursery.cancel_scope.cancel()


async def test_cancelled_settling_counts_all(autojump_clock: Clock, tmp_path: Path) -> None:
    """An outcome whose wait was cancelled is counted by the next settling."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        work = plan_to_produce(cluster, tmp_path / "in")
        async with trikafka.open_producer(**settings(cluster)) as producer:
            with meter("", "") as work._meter:
                await work._count_partitions(producer, "t")
                await work._send_line(producer, partial(work._plan.read, b"x"), "line 1")
                await producer.flush()
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await work._settle()
                assert (scope.cancelled_caught, work.delivered.count) == (True, 0)
                await work._settle(most=0)
                assert work.delivered.count == 1


async def test_parquet_columns_are_parts_of_records(autojump_clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "in.parquet"
    table = pa.table(
        {
            "key": pa.array([b"k", None]),
            "text": ["a", "b"],
            "timestamp": pa.array([1000, 2000], pa.timestamp("ms")),
            "partition": [1, 0],
        }
    )
    pq.write_table(table, file)
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        work = await produced(cluster, file, "parquet", value_column="text")
        (first,) = cluster.records("t", 1)
        assert (first.key, first.value, first.timestamp) == (b"k", b"a", 1000)
        assert pairs(cluster, 0) == [(None, b"b")]
        assert work.delivered.count == 2
        await produced(cluster, file, "parquet", value_column="text", partition=0)
        assert len(pairs(cluster, 0)) == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on Windows")
async def test_parquet_is_read_from_a_pipe(tmp_path: Path) -> None:
    """As the shell's ``<(command)``; a Parquet file is read from its end."""
    file, table = tmp_path / "in", io.BytesIO()
    os.mkfifo(file)
    pq.write_table(pa.table({"value": ["a", "b"]}), table)
    threading.Timer(0.2, lambda: file.write_bytes(table.getvalue())).start()
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with trio.fail_after(240):
            await produced(cluster, file, "parquet")
        assert pairs(cluster) == [(None, b"a"), (None, b"b")]


async def test_parquet_rows_become_json(autojump_clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "in.parquet"
    table = pa.table({"id": [1, 2], "name": ["a", None], "raw": [b"\xff", b"x"], "tags": [[1], []]})
    pq.write_table(table, file)
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(click.ClickException, match=r"rows from 0: key: column 'key' is list"):
            await produced(cluster, file, "parquet", key_column="tags")
        await produced(cluster, file, "parquet", key_column="id")
        found = [(key, json.loads(value or b"")) for key, value in pairs(cluster)]
    assert found == [
        (b"1", {"id": 1, "name": "a", "raw": {"base64": "/w=="}, "tags": [1]}),
        (b"2", {"id": 2, "name": None, "raw": "x", "tags": []}),
    ]


async def test_wrong_parquet_is_explained(
    autojump_clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "in.parquet"
    file.write_bytes(b"no table")
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        with pytest.raises(click.ClickException, match=r"in\.parquet is no Parquet file"):
            await produced(cluster, file, "parquet")
        pq.write_table(pa.table({"x": [float("nan")]}), file)
        with pytest.raises(click.ClickException, match="NaN or an infinite number"):
            await produced(cluster, file, "parquet")
        # A year that Python's dates do not have, and two columns of which one would be lost.
        pq.write_table(pa.table({"x": pa.array([100_000_000], pa.date32())}), file)
        with pytest.raises(
            click.ClickException, match=r"column 'x' \(date32.*\) cannot become JSON"
        ):
            await produced(cluster, file, "parquet")
        pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), file)
        with pytest.raises(click.ClickException, match=r"in\.parquet has two columns named 'a'"):
            await produced(cluster, file, "parquet")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(click.ClickException, match=r"pip install 'trikafka\[arrow\]'"):
            await produced(cluster, file, "parquet")
        assert pairs(cluster) == []
