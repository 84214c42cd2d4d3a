"""``configs set --delete`` and ``transactions abort``, which act with ``--execute`` only."""

from __future__ import annotations

import re

import click
import pytest
from piping import settings
from trio.testing import MockClock as Clock

import trikafka
from trikafka import ConfigResource, ErrorCode, TopicPartition
from trikafka.cli.configs import planned
from trikafka.cli.partly import noted_errors
from trikafka.cli.transactions import aborted, hanging, open_transactions, remembered
from trikafka.testing import ScriptedCluster, encode_batch

T0 = TopicPartition("t", 0)


async def test_deletion_of_settings_is_shown_first(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        resource = ConfigResource("topic", "t")
        await admin.alter_configs({resource: {"retention.ms": "5"}})
        wanted = {"retention.ms": None, "cleanup.policy": "compact"}
        rows = await planned(admin, resource, wanted)
        assert rows == [("cleanup.policy", None, "compact"), ("retention.ms", "5", None)]
        (asked,) = cluster.requests("IncrementalAlterConfigs")[1:]
        assert asked.request.validate_only
        found = (await admin.describe_configs([resource]))[resource]
        assert found["retention.ms"].value == "5"


async def test_password_not_known_yet_is_hidden(autojump_clock: Clock) -> None:
    """A broker lists the settings of a listener only once they are set."""
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        name = "keystore_password"  # for a topic, whose configs the scripted cluster has
        rows = await planned(admin, ConfigResource("topic", "t"), {name: "hunter2"})
        assert rows == [(name, None, "(secret)")]


async def test_abort_shows_first_and_acts_on_request(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        async with trikafka.open_producer(**settings(cluster, transactional_id="x")) as producer:
            async with producer.transaction():
                await producer.send("t", b"v", partition=0)
                found, known = await aborted(admin, T0, 0, acts=False)
                assert (found.transaction_start, known) == (0, "x")
                text = "t-0 has no open transaction that begins at offset 7; those that are open"
                with pytest.raises(trikafka.TransactionNotOpenError, match=re.escape(text)):
                    await aborted(admin, T0, 7, acts=True)
                assert cluster.requests("WriteTxnMarkers") == []
        with pytest.raises(trikafka.TransactionNotOpenError, match=r"offset 0$"):
            await aborted(admin, T0, 0, acts=True)


async def test_search_names_what_it_could_not_see(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        hang(cluster)
        cluster.move_leader("t", 1, None)
        with click.Context(click.Command("find-hanging")):
            (found,) = await hanging(admin, None, 0)
            assert found.partition == T0
            (missed,) = noted_errors()
        assert "producers of t-1" in str(missed)


async def test_hanging_transaction_is_aborted(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        hang(cluster)
        found, known = await aborted(admin, T0, 0, acts=False)
        assert (found.producer_id, known) == (5, None)
        assert cluster.requests("WriteTxnMarkers") == []
        assert (await aborted(admin, T0, 0, acts=True))[0] == found
        assert len(cluster.requests("WriteTxnMarkers")) == 1
        with pytest.raises(trikafka.TransactionNotOpenError):
            await aborted(admin, T0, 0, acts=True)


@pytest.mark.parametrize("commit", [True, False])
async def test_abort_of_committed_records_is_warned_of(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str], commit: bool
) -> None:
    """A coordinator that skipped the partition's marker calls the transaction complete."""
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        async with trikafka.open_producer(**settings(cluster, transactional_id="x")) as producer:
            async with producer.transaction() as transaction:
                await producer.send("t", b"v", partition=1)
                (mine,) = (await admin.describe_producers([TopicPartition("t", 1)])).values()
                owner = (mine[0].producer_id, mine[0].producer_epoch, 0)
                await (transaction.commit() if commit else transaction.abort())
        data = encode_batch([b"x"], timestamp=0, producer=owner, transactional=True)
        cluster.partition("t", 0).store(data)
        found, known = await aborted(admin, T0, 0, acts=False)
        assert (found.producer_id, known) == (owner[0], None)
        said = capsys.readouterr().err
        assert ("'x' has committed this producer's last transaction" in said) is commit
        assert ("aborting it drops committed records" in said) is commit


async def test_abort_acts_without_the_look_up(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        hang(cluster)
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        cluster.fail("ListTransactions", refusal, refusal)
        with pytest.raises(trikafka.AuthorizationError):
            await aborted(admin, T0, 0, acts=False)
        assert capsys.readouterr().err == ""
        found, known = await aborted(admin, T0, 0, acts=True)
        assert (found.producer_id, known) == (5, None)
        assert len(cluster.requests("WriteTxnMarkers")) == 1
        assert "coordinator that knows the aborted transaction failed" in capsys.readouterr().err


async def test_open_transaction_is_found_by_id(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
        trikafka.open_producer(**settings(cluster, transactional_id="x")) as producer,
    ):
        async with producer.transaction():
            await producer.send("t", b"v", partition=0)
            with click.Context(click.Command("abort")):
                (found,) = await open_transactions(admin, ["x"])
                (row,) = await remembered(admin, [T0], only_open=True)
        assert (found.transactional_id, found.partitions) == ("x", (T0,))
        assert (row[:3], row[-2:]) == (("t", 0, found.producer_id), (0, "x"))
        # Fencing an id would make it, or end a program that holds nothing open.
        with click.Context(click.Command("abort")):
            with pytest.raises(click.ClickException, match=r"'x' has no open transaction \(Com"):
                await open_transactions(admin, ["x"])
            with pytest.raises(trikafka.TrikafkaError):
                await open_transactions(admin, ["nosuch"])
            assert await remembered(admin, [T0], only_open=True) == []
            assert [row[-2:] for row in await remembered(admin, [T0], only_open=False)] == [
                (None, None)
            ]
        assert len(cluster.requests("InitProducerId")) == 1


def hang(cluster: ScriptedCluster) -> None:
    """Write a record of a transaction that no coordinator knows of."""
    data = encode_batch([b"x"], timestamp=0, producer=(5, 3, 0), transactional=True)
    cluster.partition("t", 0).store(data)
