"""``trikafka topics elect`` and the checks of ``groups reset-offsets``, in virtual time."""

from __future__ import annotations

import click
import pytest
from piping import settings
from trio.testing import MockClock as Clock

import trikafka
from trikafka import TopicPartition
from trikafka.cli.elections import elected
from trikafka.cli.resetting import check_group
from trikafka.testing import ScriptedCluster


async def test_only_needed_elections_are_requested(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(nodes=2, topics={"t": 3, "u": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        replicas = cluster.partition("t", 1).replicas
        other = next(node for node in replicas if node != replicas[0])
        cluster.move_leader("t", 1, other)
        ((info, done),) = await elected(admin, None, unclean=False, acts=False)
        assert (info.topic, info.partition, info.leader, done) == ("t", 1, other, False)
        assert cluster.requests("ElectLeaders") == []
        assert await elected(admin, {"u": None}, unclean=False, acts=True) == []
        ((_, done),) = await elected(admin, {"t": None}, unclean=False, acts=True)
        assert done
        (asked,) = cluster.requests("ElectLeaders")
        assert [part.partitions for part in asked.request.topic_partitions] == [[1]]
        assert cluster.partition("t", 1).leader == replicas[0]
        assert await elected(admin, None, unclean=False, acts=True) == []


async def test_unclean_election_is_for_the_leaderless(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(nodes=2, topics={"t": 2}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        cluster.move_leader("t", 0, None)
        ((info, done),) = await elected(admin, {"t": {0, 1}}, unclean=True, acts=False)
        assert (info.partition, info.leader, done) == (0, None, False)
        ((_, done),) = await elected(admin, {"t": None}, unclean=True, acts=True)
        assert done
        assert cluster.partition("t", 0).leader is not None
        with pytest.raises(click.ClickException, match="topic 't' has no partition 7"):
            await elected(admin, {"t": {7}}, unclean=True, acts=True)


async def test_reset_warns_of_new_and_busy_groups(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        await admin.alter_group_offsets("billing", {TopicPartition("t", 0): 0})
        await check_group(admin, "billing")
        assert capsys.readouterr().err == ""
        await check_group(admin, "biling")
        assert "'biling' does not exist yet; did you mean 'billing'?" in capsys.readouterr().err
        async with trikafka.open_consumer("t", group_id="billing", **settings(cluster)) as member:
            await member.wait_receivable(timeout=1)
            await check_group(admin, "billing")
        assert "'billing' has members" in capsys.readouterr().err
