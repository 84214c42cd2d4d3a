"""``trikafka copy`` and ``trikafka groups lag``, in virtual time."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from functools import partial
from typing import Any

import click
import pytest
import trio
from piping import copied, plan_of, settings
from trio.testing import MockClock as Clock

import trikafka
from trikafka import ConfigResource, Record, TopicPartition
from trikafka._checksum import crc32c
from trikafka.cli import copy, lag
from trikafka.cli.copying import Copying
from trikafka.cli.options import Common
from trikafka.cli.partly import noted_errors
from trikafka.cli.running import Stop
from trikafka.config import ProducerConfig
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster
from trikafka.testing.batches import encode_batch
from trikafka.testing.group import CommittedOffset


async def fill(cluster: ScriptedCluster, count: int, partitions: int = 2) -> None:
    async with trikafka.open_producer(**settings(cluster)) as producer:
        for number in range(count):
            await producer.send(
                "t",
                b"v%d" % number if number % 5 else None,
                key=b"k%d" % (number % 4),
                headers=(("h", b"%d" % number), ("n", None)) if number % 2 else (),
                timestamp=1_000 + number,
                partition=number % partitions,
            )


def plain(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(r.partition, r.timestamp, r.key, r.value, r.headers) for r in records]


async def test_copy_keeps_all_of_a_record(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as here,
        ScriptedCluster(topics={"u": 3, "t": 2}, cluster_id="other") as there,
    ):
        await fill(here, 40)
        work = await copied(here, there, to="u", keep_partitions=True)
        for partition in range(2):
            assert plain(there.records("u", partition)) == plain(here.records("t", partition))
        assert work.delivered.count == 40
        await copied(here, there, count=7)
        assert sum(len(there.records("t", number)) for number in range(2)) == 7


def batch_from(first: int) -> bytes:
    """Return a batch of three records, whose timestamps are ``first`` and two seconds after it."""
    records = [(None, b"v", 1), (None, b"w", 2_001), (None, b"x", 2_001)]
    data = bytearray(encode_batch(records, timestamp=0))
    struct.pack_into(">q", data, 27, first)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


async def test_copy_warns_of_times_before_1970(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker takes times before 1970, and a producer may write none."""
    async with (
        ScriptedCluster(topics={"t": 2}) as here,
        ScriptedCluster(topics={"t": 2}, cluster_id="other") as there,
    ):
        here.append_batch("t", 0, batch_from(0))
        for first in (5, -1_000, -5_000):
            here.append_batch("t", 1, batch_from(first))
        await copied(here, there, keep_partitions=True)
        assert [r.timestamp for r in there.records("t", 0)] == [0, 2_000, 2_000]
        assert [r.timestamp for r in there.records("t", 1)][:3] == [5, 2_005, 2_005]
        assert all(r.timestamp >= 5 for r in there.records("t", 1))
    assert capsys.readouterr().err.splitlines() == [
        "Warning: t-1 has timestamps before 1970, the first one at offset 3: no producer may write "
        "them, so these records get the time of the copy"
    ]


async def test_copy_leaves_aborted_records_out(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as here,
        ScriptedCluster(topics={"t": 1}, cluster_id="other") as there,
    ):
        transactional = {**settings(here), "transactional_id": "x"}
        async with trikafka.open_producer(**transactional) as producer:
            for value in (b"kept", b"aborted", b"last"):
                with suppress(LookupError):
                    async with producer.transaction():
                        await producer.send("t", value)
                        if value == b"aborted":
                            raise LookupError
        await copied(here, there)
        assert [record.value for record in there.records("t", 0)] == [b"kept", b"last"]
        await copied(here, there, reads={"isolation_level": "read_uncommitted"})
        values = [record.value for record in there.records("t", 0)]
        assert values[2:] == [b"kept", b"aborted", b"last"]


@pytest.mark.parametrize("more", [{}, {"group": "g"}, {"until_time": 10**12}])
async def test_copy_waits_for_open_transactions(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str], more: dict[str, Any]
) -> None:
    """A copy until the end has what stands behind a transaction that was open at its start."""
    async with (
        ScriptedCluster(topics={"t": 1}) as here,
        ScriptedCluster(topics={"t": 1}, cluster_id="other") as there,
        trikafka.open_producer(**settings(here), transactional_id="x") as producer,
        trikafka.open_producer(**settings(here)) as other,
        trio.open_nursery() as nursery,
    ):
        await other.send("t", b"before", timestamp=1)
        async with producer.transaction():
            await producer.send("t", b"open", timestamp=2)
            await other.send("t", b"behind", timestamp=3)
            await other.send("t", b"late", timestamp=10**12)
            nursery.start_soon(partial(copied, here, there, **more))
            await trio.sleep(30)
            assert [record.value for record in there.records("t", 0)] == [b"before"]
    late = [] if "until_time" in more else [b"late"]
    values = [record.value for record in there.records("t", 0)]
    assert values == [b"before", b"open", b"behind", *late]
    assert "has an open transaction, which began at offset 1" in capsys.readouterr().err


async def test_copy_without_a_leader_copies_nothing(autojump_clock: Clock) -> None:
    """Without a group a repeated command would copy the other partitions twice."""
    async with (
        ScriptedCluster(topics={"t": 2}) as here,
        ScriptedCluster(topics={"t": 2}, cluster_id="other") as there,
    ):
        await fill(here, 4)
        here.move_leader("t", 1, None)
        with click.Context(click.Command("copy")):
            with pytest.raises(click.ClickException, match=r"nothing was copied.*--group"):
                await copied(here, there)
        assert [*there.records("t", 0), *there.records("t", 1)] == []
        with click.Context(click.Command("copy")):
            await copied(here, there, group="g")
            assert [str(each).partition(":")[0] for each in noted_errors()] == ["t-1"]
        assert len([*there.records("t", 0), *there.records("t", 1)]) == 2


async def test_copy_needs_its_target(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 3}) as here,
        ScriptedCluster(topics={"orders": 1}, cluster_id="other") as there,
    ):
        for to, says in (
            ("order", "did you mean 'orders'"),
            ("orders", "'orders' only 1: without"),
        ):
            with pytest.raises(click.ClickException, match=says):
                await copied(here, there, to=to, keep_partitions=True, create=False)
        with pytest.raises(click.ClickException, match="topic 'nowhere' does not exist"):
            await copied(here, there, "nowhere", to="orders")


async def test_copy_makes_the_missing_topic(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        ScriptedCluster(topics={"t": 3}) as here,
        ScriptedCluster(topics={}, cluster_id="other") as there,
    ):
        await fill(here, 12, 3)
        async with trikafka.open_admin(**settings(here)) as admin:
            topic = ConfigResource("topic", "t")
            await admin.alter_configs({topic: {"cleanup.policy": "compact"}})
        with pytest.raises(click.ClickException, match="topic 't' does not exist"):
            await copied(here, there, create=False)
        await copied(here, there, keep_partitions=True)
        for partition in range(3):
            assert plain(there.records("t", partition)) == plain(here.records("t", partition))
        async with trikafka.open_admin(**settings(there)) as admin:
            assert (await admin.topic_configs(["t"]))["t"] == {"cleanup.policy": "compact"}
    printed = capsys.readouterr().err
    assert "made it with 3 partitions, as 't' has and its settings (cleanup.policy)" in printed


async def test_refused_copy_makes_no_topic(autojump_clock: Clock) -> None:
    """A misspelled name, or a topic with too few partitions, is found before one is made."""
    async with (
        ScriptedCluster(topics={"t": 2, "u": 3}) as here,
        ScriptedCluster(topics={"u": 1}, cluster_id="other") as there,
        trikafka.open_admin(**settings(there)) as admin,
    ):
        with pytest.raises(click.ClickException, match="topic 'nowhere' does not exist"):
            await copied(here, there, "t", "nowhere")
        with pytest.raises(click.ClickException, match="topic 'u' has 3 partitions, and 'u' only"):
            await copied(here, there, "t", "u", keep_partitions=True)
        assert list(await admin.list_topics()) == ["u"]
        # A topic for several has the partitions of the one with the most.
        await copied(here, there, "t", "u", to="both", keep_partitions=True)
        assert len((await admin.list_topics())["both"]) == 3


async def test_copy_warns_of_append_time(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1, "u": 1}) as here,
        ScriptedCluster(topics={"t": 1, "u": 1}, cluster_id="other") as there,
        trikafka.open_admin(**settings(there)) as admin,
    ):
        append = {"message.timestamp.type": "LogAppendTime"}
        await admin.alter_configs({ConfigResource("topic", "t"): append})
        await copied(here, there, "t", "u")
        said = capsys.readouterr().err
        assert said.count("Warning") == 1
        assert "topic 't' has message.timestamp.type=LogAppendTime: the copies" in said
        there.fail("DescribeConfigs", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        await copied(here, there, "t", "u")
        assert capsys.readouterr().err == ""


async def test_copy_into_itself_is_refused(autojump_clock: Clock) -> None:
    """Another address of the same cluster is the same cluster."""
    async with (
        ScriptedCluster(topics={"t": 1}) as here,
        ScriptedCluster(topics={"t": 1, "u": 1}) as there,
    ):
        await fill(here, 1, 1)
        with pytest.raises(
            click.ClickException, match=r"one cluster \(scripted-cluster\), and 't'"
        ):
            await copied(here, there)
        assert there.records("t", 0) == []
        await copied(here, there, to="u")
        assert len(there.records("u", 0)) == 1


async def test_copy_waits_not_for_each_batch(autojump_clock: Clock) -> None:
    """Batches are under way together: eight of a second each take less than eight seconds."""
    async with (
        ScriptedCluster(topics={"t": 8}) as here,
        ScriptedCluster(topics={"t": 8}, cluster_id="other") as there,
    ):
        await fill(here, 80, 8)

        async def slow(request: Any, default: Any) -> Any:
            await trio.sleep(1)
            return await default()

        there.on("Produce", slow)
        begin = trio.current_time()
        await copied(here, there, keep_partitions=True)
        assert trio.current_time() - begin < 6
        for partition in range(8):
            assert plain(there.records("t", partition)) == plain(here.records("t", partition))


async def test_failed_partition_doubles_no_other(autojump_clock: Clock) -> None:
    """What was copied of the other partitions is committed, and not copied again."""
    async with (
        ScriptedCluster(topics={"t": 3}) as here,
        ScriptedCluster(topics={"t": 3}, cluster_id="other") as there,
    ):
        await fill(here, 30, 3)

        async def refuse(request: Any, default: Any) -> Any:
            response = await default()
            for topic in response.responses:
                for part in topic.partition_responses:
                    if part.index == 1:
                        part.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED.value
            return response

        rule = there.on("Produce", refuse)
        with pytest.raises(click.ClickException, match=r"^t-1 offset 0: "):
            await copied(here, there, group="g", keep_partitions=True)
        rule.remove()
        await copied(here, there, group="g", keep_partitions=True)
        for partition in range(3):  # the refused records were written all the same
            found = plain(there.records("t", partition))[10 if partition == 1 else 0 :]
            assert found == plain(here.records("t", partition))


async def test_new_member_doubles_no_record(autojump_clock: Clock) -> None:
    """A copy that gives partitions to another one first ends and commits what is under way."""
    async with (
        ScriptedCluster(topics={"t": 4}) as here,
        ScriptedCluster(topics={"t": 4}, cluster_id="other") as there,
    ):
        await fill(here, 40, 4)

        async def slow(request: Any, default: Any) -> Any:
            response = await default()
            await trio.sleep(15)
            return response

        there.on("Produce", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(copied, here, there, group="g", until_end=False))
            while not there.requests("Produce"):  # noqa: ASYNC110
                await trio.sleep(0.1)
            nursery.start_soon(partial(copied, here, there, group="g", until_end=False))
            await trio.sleep(90)
            await fill(here, 40, 4)
            await trio.sleep(90)
            nursery.cancel_scope.cancel()
        count = sum(len(there.records("t", number)) for number in range(4))
        assert count == 80


async def test_lost_partition_sets_no_group_back(autojump_clock: Clock) -> None:
    """Another member has committed more by the time this one has the partition again."""
    place = ("t", 0)
    async with (
        ScriptedCluster(topics={"t": 1}) as here,
        ScriptedCluster(topics={"t": 1}, cluster_id="other") as there,
        trio.open_nursery() as nursery,
    ):
        here.offer("ConsumerGroupHeartbeat", None)
        await fill(here, 10, 1)
        nursery.start_soon(partial(copied, here, there, group="g", until_end=False))
        while len(there.records(*place)) < 10:  # noqa: ASYNC110
            await trio.sleep(0.01)
        here.fail("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID)
        here.delay("JoinGroup", 1)
        joins = len(here.requests("JoinGroup"))
        while len(here.requests("JoinGroup")) == joins:  # noqa: ASYNC110
            await trio.sleep(0.01)
        group = here.group("g")
        assert group is not None
        assert here.committed("g", place) is None
        await fill(here, 10, 1)
        group.offsets[place] = CommittedOffset(20, -1, "")  # the other member has copied them
        looked_up = len(here.requests("OffsetFetch"))
        while len(here.requests("OffsetFetch")) == looked_up:  # noqa: ASYNC110
            await trio.sleep(0.1)
        await trio.sleep(10)  # two commits were due
        at = here.committed("g", place)
        assert at is not None
        assert at.offset == 20
        await fill(here, 5, 1)
        while len(there.records(*place)) < 15:  # noqa: ASYNC110
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


async def test_failed_reader_ends_what_is_under_way(autojump_clock: Clock) -> None:
    """Batches that were handed over are waited for and committed; the close waits for nothing."""
    async with (
        ScriptedCluster(topics={"t": 1}) as here,
        ScriptedCluster(topics={"t": 1}, cluster_id="other") as there,
    ):
        await fill(here, 10, 1)

        async def slow(request: Any, default: Any) -> Any:
            here.fail("Fetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
            response = await default()
            await trio.sleep(2)
            return response

        there.on("Produce", slow)
        with pytest.raises(trikafka.AuthorizationError), trio.fail_after(8):
            await copied(here, there, group="g", until_end=False)
        at = here.committed("g", ("t", 0))
        assert at is not None
        assert at.offset == 10


async def test_failed_reader_waits_for_no_silent_target(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reader's error ends the copy long before ``delivery_timeout_ms``.

    What the target acknowledged is reported and committed; a warning names what it left open.
    """
    async with (
        ScriptedCluster(topics={"t": 2}) as here,
        ScriptedCluster(nodes=2, topics={"t": 2}, cluster_id="other") as there,
    ):
        await fill(here, 40, 2)

        async def first_only(request: Any, default: Any) -> Any:
            here.fail("Fetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
            response = await default()
            if request.topic_data[0].partition_data[0].index == 1:
                await trio.sleep_forever()
            return response

        there.on("Produce", first_only)
        begin = trio.current_time()
        given = settings(here, auto_offset_reset="earliest", group_id="g")
        plan = plan_of(group="g", until_end=False)
        work = Copying(given, plan, settings(there), None, keep_partitions=True)
        with pytest.raises(trikafka.AuthorizationError):
            await work.main(Stop())
        assert trio.current_time() - begin < 20, "delivery_timeout_ms is 120 s"
        assert work.delivered.count == 20
        said = capsys.readouterr().err
        assert "no acknowledgement for t-1 from offset 0 on: records from there may be" in said
        assert "t-0" not in said
        at = [here.committed("g", ("t", number)) for number in range(2)]
        assert [None if each is None else each.offset for each in at] == [20, None]


def test_copy_stays_on_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an option that names other brokers leads to another cluster."""
    monkeypatch.setenv("TRIKAFKA_BOOTSTRAP_SERVERS", "default:1")
    common = Common("here:1", (("fetch.min.bytes", "9"), ("client.id", "x")))
    more = (("linger.ms", "5"),)
    assert copy.target_of(common, None, (), more) is None
    found = copy.here(common, (), more).settings(ProducerConfig)
    assert (found["bootstrap_servers"], found["linger_ms"], found["client_id"]) == (
        "here:1",
        5,
        "x",
    )
    assert "fetch_min_bytes" not in found
    for target in (
        copy.target_of(common, "there:1", (), more),
        copy.target_of(common, None, (("bootstrap.servers", "there:1"),), more),
        copy.target_of(common, None, (), (*more, ("bootstrap.servers", "there:1"))),
    ):
        assert target is not None
        found = target.settings(ProducerConfig)
        assert found["bootstrap_servers"] in ("there:1", ["there:1"])
        assert "client_id" not in found


async def test_copy_goes_on_with_its_group(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as here,
        ScriptedCluster(topics={"t": 2}, cluster_id="other") as there,
    ):
        await fill(here, 20)
        assert (await copied(here, there, group="g")).delivered.count == 20
        assert (await copied(here, there, group="g")).delivered.count == 0
        await fill(here, 6)
        assert (await copied(here, there, group="g")).delivered.count == 6


async def test_refused_copy_is_not_committed(autojump_clock: Clock) -> None:
    """The error names the record, and the next copy begins with it."""
    async with (
        ScriptedCluster(topics={"t": 1}) as here,
        ScriptedCluster(topics={"t": 1}, cluster_id="other") as there,
    ):
        await fill(here, 10, 1)
        rule = there.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        with pytest.raises(click.ClickException, match=r"^t-0 offset 0: "):
            await copied(here, there, group="g")
        rule.remove()
        assert (await copied(here, there, group="g")).delivered.count == 10
        assert plain(there.records("t", 0)) == plain(here.records("t", 0))


async def test_lag_is_end_less_offset(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ScriptedCluster(topics={"t": 2}) as cluster:
        await fill(cluster, 20)
        async with trikafka.open_admin(**settings(cluster)) as admin:
            await admin.alter_group_offsets("g", {TopicPartition("t", 0): 3})
            before = await lag._read_places(admin, ["g"])
            assert before == {"g": {TopicPartition("t", 0): (3, 10)}}
            await admin.alter_group_offsets("g", {TopicPartition("t", 0): 7})
            rows = lag._rows(await lag._read_places(admin, []), before, 2.0)
            with pytest.raises(click.ClickException, match="group 'other' does not exist"):
                await lag._read_places(admin, ["other"])
    assert rows == [
        {"group": "g", "topic": "t", "partition": 0, "offset": 7, "end": 10, "lag": 3, "rate": 2}
    ]
    lag._show(rows, "table", True, False)
    assert [line.split()[-2:] for line in capsys.readouterr().out.splitlines()] == [
        ["LAG", "RATE"],
        ["3", "2"],
    ]
    lag._show(lag._summed(rows), "json", False, True)
    assert json.loads(capsys.readouterr().out) == [
        {"group": "g", "partitions": 1, "lag": 3, "unknown": 0}
    ]


def test_unknown_lag_is_no_zero(capsys: pytest.CaptureFixture[str]) -> None:
    """A sum without some partitions is marked, and one without any is unknown."""
    rows = [
        {"group": group, "topic": "t", "partition": number, "offset": 3, "end": None, "lag": each}
        | {"rate": None}
        for group, lags in {"all": [1, 2], "some": [5, None], "none": [None, None]}.items()
        for number, each in enumerate(lags)
    ]
    summed = lag._summed(rows)
    assert [(row["lag"], row["unknown"]) for row in summed] == [(3, 0), (5, 1), (None, 2)]
    lag._show(summed, "table", False, True)
    assert [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()] == [
        ["GROUP", "PARTITIONS", "LAG"],
        ["all", "2", "3"],
        ["some", "2", "at least 5"],
        ["none", "2", "-"],
    ]
