"""``trikafka consume``: which records, and how they are printed, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import pytest
import trio
from click import ClickException
from piping import consumed, plan_of, settings
from trio.testing import MockClock as Clock

from trikafka import KafkaTimeoutError, Record, TimestampType
from trikafka.cli import consuming
from trikafka.cli.consuming import Consuming
from trikafka.cli.partly import noted_errors
from trikafka.cli.record_lines import matching, output_format
from trikafka.cli.running import Stop
from trikafka.cli.start import At, Start, past_time
from trikafka.testing import ScriptedCluster, control_batch, encode_batch

Out = Callable[[], list[bytes]]
LOST = "t-1: no leader at the moment; see: trikafka cluster health"


@pytest.fixture
def out(capfdbinary: pytest.CaptureFixture[bytes]) -> Out:
    """Return a function that returns the lines printed since the last call."""
    return lambda: capfdbinary.readouterr().out.splitlines()


def record(value: bytes | None, key: bytes | None = None, **more: Any) -> Record:
    fields = {"partition": 0, "offset": 5, "timestamp": 7, "headers": (), **more}
    return Record("t", timestamp_type=TimestampType.CREATE_TIME, key=key, value=value, **fields)


async def test_grep_prints_what_matches(autojump_clock: Clock, out: Out) -> None:
    """Records that do not match do not count, and the next look begins behind them."""
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"%d" % number for number in range(5_000)])
        raw = output_format("raw", None)
        await consumed(cluster, form=raw, keep=matching("^4.*2$"))
        assert out() == [b"%d" % n for n in range(5_000) if str(n)[0] == "4" and str(n)[-1] == "2"]
        await consumed(cluster, form=raw, keep=matching("9"), count=3)
        assert out() == [b"9", b"19", b"29"]


def test_grep_looks_at_keys_and_headers() -> None:
    keep = matching("needle")
    assert keep(record(b"a needle"))
    assert keep(record(None, b"needle"))
    assert keep(record(b"x", headers=(("h", None), ("g", b"needle"))))
    assert not keep(record(None))
    assert not keep(record(b"hay", b"needl", headers=(("needle", b""),)))


async def test_until_ends_before_a_time(autojump_clock: Clock, out: Out) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        for partition in range(2):
            for number in range(10):
                cluster.append("t", partition, [(None, b"%d" % number, 1_000 + number)])
        raw = output_format("raw", None)
        await consumed(cluster, form=raw, until_end=False, until_time=1_003)
        assert sorted(out()) == [b"0", b"0", b"1", b"1", b"2", b"2"]
        await consumed(cluster, form=raw, until_end=False, until_time=9_999)
        assert len(out()) == 20


async def test_bounded_reading_awaits_no_leader(autojump_clock: Clock, out: Out) -> None:
    """Its broker may be down for hours; the other partitions are printed, and it is named."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.append("t", 0, [b"v"])
        cluster.move_leader("t", 1, None)
        raw = output_format("raw", None)
        for ends in ({}, {"until_end": False, "until_time": 10**13}):
            began = trio.current_time()
            with click.Context(click.Command("consume")):
                await consumed(cluster, form=raw, **ends)
                assert [str(each) for each in noted_errors()] == [LOST]
            assert out() == [b"v"]
            assert 5 <= trio.current_time() - began < 6
        with click.Context(click.Command("consume")), pytest.raises(ClickException, match=LOST):
            await consumed(cluster, form=raw, partitions=frozenset({1}))
        began = trio.current_time()
        await consumed(cluster, form=raw, partitions=frozenset({0}))
        assert out() == [b"v"]
        assert trio.current_time() - began < 1


@pytest.mark.parametrize("group", [None, "g"])
async def test_bounded_reading_survives_an_election(
    autojump_clock: Clock, out: Out, group: str | None
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        for partition in range(2):
            cluster.append("t", partition, [b"%d" % partition])
        cluster.move_leader("t", 1, None)
        given = settings(cluster, auto_offset_reset="earliest", group_id=group)
        plan = plan_of(group=group, form=output_format("raw", None))
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def elect() -> None:
                await trio.sleep(4)
                cluster.move_leader("t", 1, 0)

            await Consuming(given, plan).main(Stop())
        assert sorted(out()) == [b"0", b"1"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_bounded_member_awaits_no_leader(
    autojump_clock: Clock, out: Out, protocol: str
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.append("t", 0, [b"v"])
        cluster.move_leader("t", 1, None)
        given = settings(cluster, auto_offset_reset="earliest", group_protocol=protocol)
        plan = plan_of(group="g", form=output_format("raw", None))
        began = trio.current_time()
        with click.Context(click.Command("consume")):
            await Consuming({**given, "group_id": "g"}, plan).main(Stop())
            assert [str(each) for each in noted_errors()] == [LOST]
        assert out() == [b"v"]
        assert trio.current_time() - began < 10


@pytest.mark.parametrize(("start", "printed"), [(None, b"old"), (Start(At.END), b"new")])
async def test_partition_is_read_once_it_has_a_leader(
    autojump_clock: Clock,
    capfdbinary: pytest.CaptureFixture[bytes],
    start: Start | None,
    printed: bytes,
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.append("t", 1, [b"old"])
        cluster.move_leader("t", 1, None)
        raw = output_format("raw", None)

        async def elect() -> None:
            await trio.sleep(200)
            cluster.move_leader("t", 1, 0)
            await trio.sleep(10)
            cluster.append("t", 1, [b"new"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(elect)
            await consumed(cluster, form=raw, until_end=False, count=1, start=start)
        seen = capfdbinary.readouterr()
        assert seen.out == printed + b"\n"
        said = b"Warning: t-1 has no leader at the moment: the others are read first"
        assert seen.err.startswith(said)


@pytest.mark.parametrize("alone", [False, True])
async def test_wait_for_a_leader_is_warned_of(
    autojump_clock: Clock, capfdbinary: pytest.CaptureFixture[bytes], alone: bool
) -> None:
    """The last records are counted back from the end, or no other partition is wanted."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        cluster.move_leader("t", 1, None)
        if alone:
            with trio.move_on_after(10):
                await consumed(cluster, until_end=False, partitions=frozenset({1}))
        else:
            with pytest.raises(KafkaTimeoutError, match="no leader"):
                await consumed(cluster, until_end=False, start=Start(At.LAST, 2))
        said = b"Warning: t-1 has no leader at the moment: the command waits"
        assert capfdbinary.readouterr().err.startswith(said)


async def test_time_to_come_has_no_place(autojump_clock: Clock) -> None:
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [(None, b"0", 1_000)])
        start = Start(At.TIME, 4_000_000_000_000)
        with pytest.raises(click.ClickException, match="has not come yet"):
            await consumed(cluster, start=start, until_end=False)
        cluster.append("t", 0, [(None, b"1", start.value)])
        await consumed(cluster, start=start)


@pytest.mark.parametrize(
    ("count", "found"),
    [(1, ["9"]), (2, ["8", "9"]), (9, [str(n) for n in range(1, 10)]), (99, None), (20_000, None)],
)
async def test_last_records_are_counted(
    autojump_clock: Clock, out: Out, count: int, found: list[str] | None
) -> None:
    """Markers of transactions have offsets, too, and the log may end with them."""
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        for number in range(10):
            batch = encode_batch(
                [b"%d" % number], timestamp=1, producer=(5, 0, number), transactional=True
            )
            cluster.append_batch("t", 0, batch)
            cluster.append_batch("t", 0, control_batch(5, 0, commit=True, timestamp=1))
        raw = output_format("raw", None)
        await consumed(cluster, form=raw, start=Start(At.LAST, count))
        assert [line.decode() for line in out()] == (found or [str(n) for n in range(10)])


async def test_last_records_have_no_limit(autojump_clock: Clock, out: Out) -> None:
    values = [b"%d" % number for number in range(10_500)]
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append_batch(
            "t", 0, encode_batch(values, timestamp=1, producer=(5, 0, 0), transactional=True)
        )
        for _ in range(10):
            cluster.append_batch("t", 0, control_batch(5, 0, commit=True, timestamp=1))
        for count in (10_000, 10_001, 10_499):
            await consumed(cluster, form=output_format("raw", None), start=Start(At.LAST, count))
            assert out() == values[-count:]


@pytest.mark.parametrize("between", [1, 3, 1_000])
async def test_last_records_in_many_ranges(
    autojump_clock: Clock, out: Out, monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    """The first record is in the middle of a range, and each partition has another one."""
    monkeypatch.setattr(consuming, "_BETWEEN_MARKS", between)
    async with ScriptedCluster(topics={"t": 3}) as cluster:
        for partition, size in enumerate((1, 2, 7)):
            for first in range(0, 42, size):
                values = [b"%d.%d" % (partition, first + n) for n in range(size)]
                batch = encode_batch(
                    values, timestamp=1, producer=(5, 0, first), transactional=True
                )
                cluster.append_batch("t", partition, batch)
                for _ in range(first % 5):
                    marker = control_batch(5, 0, commit=True, timestamp=1)
                    cluster.append_batch("t", partition, marker)
            cluster.append_batch("t", partition, control_batch(5, 0, commit=True, timestamp=1))
        for count in (*range(1, 15), 41, 42, 43):
            await consumed(cluster, form=output_format("raw", None), start=Start(At.LAST, count))
            printed = out()
            for partition in range(3):
                expected = [b"%d.%d" % (partition, n) for n in range(42)][-count:]
                prefix = b"%d." % partition
                assert [line for line in printed if line.startswith(prefix)] == expected


async def test_last_records_of_each_partition(autojump_clock: Clock, out: Out) -> None:
    async with ScriptedCluster(topics={"t": 3}) as cluster:
        cluster.append("t", 0, [b"%d" % number for number in range(100)])
        cluster.append("t", 1, [b"a"])
        await consumed(cluster, form=output_format("raw", None), start=Start(At.LAST, 2))
        assert sorted(out()) == [b"98", b"99", b"a"]


def test_time_of_until_may_have_an_at() -> None:
    ms = round(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
    for text in ("2026-01-31T12:00", "@2026-01-31T12:00", f"@{ms}", str(ms)):
        assert past_time(text) == ms


@pytest.mark.parametrize(
    ("form", "value", "printed"),
    [
        ("text", b"a", "a"),
        ("hex", b"a\xff", "61ff"),
        ("base64", b"a\xff", "Yf8="),
        ("json", b'{"b": [1.50,\n 1e400]}', {"b": [1.50, float("inf")]}),
        ("json", b"5", 5),
        ("json", b"no", "no"),
        ("json", b"NaN", "NaN"),
        ("json", b"\xff", {"base64": "/w=="}),
        *((form, None, None) for form in ("text", "hex", "base64", "json")),
    ],
)
def test_format_of_a_value_in_json(form: str, value: bytes | None, printed: object) -> None:
    line = output_format("json", None, value=form)(record(value, b"k"))
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert (found["value"], found["key"]) == (printed, "k")
    found = json.loads(output_format("json", None, key=form)(record(b"v", value)))
    assert (found["key"], found["value"]) == (printed, "v")


@pytest.mark.parametrize(
    ("form", "printed"),
    [("text", b'{"a":\n1}'), ("json", b'{"a": 1}'), ("hex", b"7b2261223a0a317d")],
)
def test_format_of_a_value_in_raw_lines(form: str, printed: bytes) -> None:
    value = b'{"a":\n1}'
    assert output_format("raw", None, value=form)(record(value)) == printed + b"\n"
    assert output_format("%s;", None, b"NULL", value=form)(record(None)) == b"NULL;"
    assert output_format("json", "=", key="hex")(record(value, b"\x00")) == b"00=" + value + b"\n"


def test_headers_stand_before_raw_lines() -> None:
    given = record(b"v", b"k", headers=(("a", b"1"), ("b", None)))
    assert output_format("raw", None, headers=True)(given) == b"a=1,b=NULL\tv\n"
    assert output_format("json", ":", headers=True)(given) == b"a=1,b=NULL\tk:v\n"
    assert b'"headers":[["a","1"],["b",null]]' in output_format("json", None, headers=True)(given)


@pytest.mark.parametrize("text", ["json", "raw", "%t[%p]@%o %T %k=%s %h %K %S%%", "%R%s%s"])
async def test_lines_of_columns_are_those_of_records(
    autojump_clock: Clock, capfdbinary: pytest.CaptureFixture[bytes], text: str
) -> None:
    """A batch is printed from its columns; what is printed is the line of each record."""
    values = [b"x" * (n % 700) for n in range(3_000)] + [b"y" * 3_000_000]
    form = output_format(text, None, b"NULL")
    async with ScriptedCluster(topics={"t": 1}) as cluster:
        for start in range(0, len(values), 500):
            cluster.append("t", 0, values[start : start + 500])
        await consumed(cluster, form=form)
        assert capfdbinary.readouterr().out == b"".join(map(form, cluster.records("t", 0)))
        await consumed(cluster, form=form, count=7)
        assert capfdbinary.readouterr().out == b"".join(map(form, cluster.records("t", 0)[:7]))
