"""``cluster health`` and ``topics offsets``, in virtual time."""

from __future__ import annotations

import click
import pytest
import trio
from commanding import Command
from piping import settings
from trio.testing import MockClock as Clock

import trikafka
from trikafka import AdminErrors, ErrorCode, OffsetSpec, PartitionInfo, TopicPartition
from trikafka.cli.deleting_offsets import stored_places
from trikafka.cli.health import Health, Trouble, examine, report, summary
from trikafka.cli.offsets import Ends, Found, found_at, found_ends, parse_at
from trikafka.cli.partly import noted_errors
from trikafka.cli.resetting import look_up_led, offsets_at, reset
from trikafka.cli.running import sentence
from trikafka.cli.start import At, Start
from trikafka.testing import ScriptedCluster


async def test_health_lists_what_is_wrong(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(nodes=3, topics={"t": 3, "u": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        found = await examine(admin)
        assert (found.partitions, found.troubles, found.gone) == (4, (), ())
        cluster.move_leader("t", 1, None)
        found = await examine(admin)
        assert [(each.info.partition, each.problem) for each in found.troubles] == [
            (1, "no leader")
        ]
        assert summary(found) == "1 of 4 partitions are not healthy: 1 without a leader"


async def test_health_knows_how_many_are_needed(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(nodes=1, topics={"t": 1, "u": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):

        async def behind(request: object, default: object) -> object:
            """Add replicas of brokers that are not there, and are behind."""
            response = await default()  # type: ignore[operator]
            for topic in response.topics:
                for part in topic.partitions:
                    part.replica_nodes = [0, 7, 8]
            return response

        cluster.on("Metadata", behind)
        resource = trikafka.ConfigResource("topic", "t")
        await admin.alter_configs({resource: {"min.insync.replicas": "2"}})
        found = await examine(admin)
        seen = [(each.info.topic, each.problem, each.min_in_sync) for each in found.troubles]
        assert seen == [("t", "too few in sync", 2), ("u", "replica behind", None)]
        assert found.gone == (7, 8)
        assert summary(found) == (
            "2 of 2 partitions are not healthy: 1 with fewer replicas in sync than "
            "min.insync.replicas, 1 with a replica behind; brokers with replicas that are not in "
            "the cluster: 7, 8"
        )

        async def hide_u(request: object, default: object) -> object:
            response = await default()  # type: ignore[operator]
            for result in response.results:
                if result.resource_name == "u":
                    result.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return response

        hiding = cluster.on("DescribeConfigs", hide_u)
        found = await examine(admin)
        seen = [(each.info.topic, each.problem, each.min_in_sync) for each in found.troubles]
        assert seen == [("t", "too few in sync", 2), ("u", "replica behind", None)]
        hiding.remove()
        cluster.fail("DescribeConfigs", ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
        found = await examine(admin)
        assert [each.min_in_sync for each in found.troubles] == [None, None]


def test_trouble_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    info = PartitionInfo(
        "t", 0, leader=None, leader_epoch=None, replicas=(1, 2), in_sync_replicas=()
    )
    with pytest.raises(click.ClickException, match="1 of 9 partitions are not healthy"):
        report(Health(9, (Trouble(info, "no leader", None),), (2,)), "table")
    assert "1,2" in capsys.readouterr().out
    report(Health(9, (), ()), "table")
    assert capsys.readouterr().out.startswith("9 partitions, each with a leader")
    report(Health(1, (), ()), "table")
    assert capsys.readouterr().out == "1 partition with a leader and all replicas in sync\n"
    report(Health(9, (), ()), "json")
    assert capsys.readouterr().out == "[]\n"


async def test_offsets_of_a_time_are_found(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
        trikafka.open_producer(**settings(cluster)) as producer,
    ):
        for stamp in (1_000, 2_000, 3_000):
            await producer.send("t", b"v", partition=0, timestamp=stamp)
        t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
        assert await found_at(admin, {"t": None}, 1_500) == [
            Found(t0, 1, 2_000, 2),
            Found(t1, None, None, 0),
        ]
        assert await found_at(admin, {"t": {0}}, OffsetSpec.LATEST) == [Found(t0, 3, None, 0)]
        assert await found_at(admin, {"t": {0}}, OffsetSpec.MAX_TIMESTAMP) == [
            Found(t0, 2, 3_000, 1)
        ]
        await admin.delete_records({t0: 2})
        assert await found_ends(admin, {"t": None}) == [Ends(t0, 2, 3), Ends(t1, 0, 0)]
        with pytest.raises(click.ClickException, match="topic 't' has no partition 7"):
            await found_at(admin, {"t": {7}}, 0)


async def test_partition_without_a_leader_is_not_awaited(autojump_clock: Clock) -> None:
    """Its broker may be down for hours, and the others have offsets."""
    async with (
        ScriptedCluster(topics={"t": 2, "u": 1}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        t0, lost = TopicPartition("t", 0), "t-1: no leader at the moment; see: trikafka cluster"
        cluster.move_leader("t", 1, None)
        began = trio.current_time()
        with click.Context(click.Command("offsets")):
            assert await found_ends(admin, {"t": None}) == [Ends(t0, 0, 0)]
            assert next(str(each) for each in noted_errors()).startswith(lost)
            found = await found_at(admin, {"t": None}, OffsetSpec.LATEST)
            assert [each.place for each in found] == [t0]
        for work in (found_ends(admin, {"t": {1}}), look_up_led(admin, {"u": None, "t": None})):
            with pytest.raises(click.ClickException, match=lost):
                await work
        assert await look_up_led(admin, {"t": {0}}) == [t0]
        assert trio.current_time() == began


async def test_reset_of_all_topics_awaits_no_leader(autojump_clock: Clock) -> None:
    """The wait took a minute, and its error listed the other partitions as done."""
    async with (
        ScriptedCluster(topics={"t": 3}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):
        places = [TopicPartition("t", number) for number in range(2)]
        await admin.alter_group_offsets("g", dict.fromkeys(places, 0))
        to_end = Start(At.END)
        assert await reset(admin, "g", None, to_end, acts=True) == [(tp, 0, 0) for tp in places]
        cluster.move_leader("t", 2, None)  # the group has no offset of this one
        assert len(await reset(admin, "g", None, to_end, acts=False)) == 2
        cluster.move_leader("t", 1, None)
        began = trio.current_time()
        with pytest.raises(click.ClickException, match="t-1: no leader at the moment"):
            await reset(admin, "g", None, to_end, acts=False)
        assert trio.current_time() == began


async def test_offset_beyond_the_end_is_not_deleted(autojump_clock: Clock) -> None:
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
        trikafka.open_producer(**settings(cluster)) as producer,
    ):
        await producer.send("t", b"v", partition=0)
        t0 = TopicPartition("t", 0)
        beyond = Start(At.OFFSET, 20_260_131)
        with pytest.raises(
            click.ClickException, match="no partition has an offset 20260131, the highest"
        ):
            await offsets_at(admin, beyond, [t0], {}, deletes=True)
        assert await offsets_at(admin, beyond, [t0], {}) == {t0: 1}
        # One that some partition has is the end of those that are shorter.
        one = Start(At.OFFSET, 1)
        t1 = TopicPartition("t", 1)
        assert await offsets_at(admin, one, [t0, t1], {}, deletes=True) == {t0: 1, t1: 0}


async def test_failed_look_up_did_nothing(autojump_clock: Clock) -> None:
    """Its error named the offsets that were looked up: 'done: t-0'."""
    async with (
        ScriptedCluster(topics={"t": 2}) as cluster,
        trikafka.open_admin(**settings(cluster)) as admin,
    ):

        async def hide_t1(request: object, default: object) -> object:
            response = await default()  # type: ignore[operator]
            for part in response.topics[0].partitions:
                if part.partition_index == 1:
                    part.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return response

        cluster.on("ListOffsets", hide_t1)
        with pytest.raises(AdminErrors) as caught:
            await reset(admin, "g", {"t": None}, Start(At.END), acts=True)
        text, code = sentence(caught.value)
        assert text.splitlines()[0] == "1 of 1 failed"
        assert "t-1" in text
        assert "done" not in text
        assert code == 1


def test_places_of_offsets() -> None:
    assert parse_at("earliest") is OffsetSpec.EARLIEST
    assert parse_at("end") is OffsetSpec.LATEST
    assert parse_at("newest") is OffsetSpec.MAX_TIMESTAMP
    assert parse_at("@5") == 5
    assert parse_at("1970-01-01T00:00:01") == 1_000
    for wrong in ("5", "+5", "-5", "stored", "soon", ""):
        with pytest.raises(click.BadParameter, match="is neither"):
            parse_at(wrong)


def test_offsets_to_delete_are_stored_ones() -> None:
    t0, t1, u0 = (TopicPartition(*each) for each in (("t", 0), ("t", 1), ("u", 0)))
    stored = [u0, t1, t0]
    assert stored_places("g", stored, {"t": None}) == [t0, t1]
    assert stored_places("g", stored, {"u": {0}, "t": {1}}) == [u0, t1]
    with pytest.raises(click.ClickException, match="no offsets of topic 'v'; it has those of t, u"):
        stored_places("g", stored, {"v": None})
    with pytest.raises(click.ClickException, match="no offset of partition 7 of topic 't'"):
        stored_places("g", stored, {"t": {0, 7}})
    with pytest.raises(click.ClickException, match=r"no offsets of topic 't'$"):
        stored_places("g", [], {"t": None})


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        ("tail t", "'consume'"),
        ("consumer-groups", "'groups'"),
        ("offsets t", "'topics offsets'"),
        ("topics get-offsets t", "'offsets'"),
        ("health", "'cluster health'"),
        ("cluster check", "'trikafka cluster health'"),
        ("ls", "'topics list'"),
        ("topics rm t", "'delete'"),
        ("describe t", "'topics describe'"),
        ("reset g", "'groups reset-offsets'"),
        ("help", "'--help'"),
        ("version", "'--version'"),
        ("quorum", "'cluster quorum'"),
        ("features", "'cluster features'"),
        ("producers t", "'transactions producers'"),
        ("groups reset g --to earliest", "'trikafka groups reset-offsets GROUP'"),
        ("groups --delete-offsets -G g", "'trikafka groups delete-offsets'"),
        ("topics --under-replicated-partitions", "'trikafka cluster health'"),
        ("topics describe --unavailable-partitions", "'trikafka cluster health'"),
        ("topics create t -c a=1", "'--config'"),
        ("configs --alter --entity-type topics", "'trikafka configs set'"),
        (
            "configs unset topic t retention.ms",
            "'trikafka configs set topic NAME --delete SETTING'",
        ),
        ("acls --add --allow-principal User:a", "'trikafka acls set'"),
        ("acls set --allow-principal User:a", "'-u'"),
        ("acls --remove", "'trikafka acls delete'"),
        ("reassign --verify", "'trikafka reassign status'"),
        ("reassign drain 1", "'trikafka reassign move --off BROKER'"),
        ("cluster --features", "'trikafka cluster features'"),
        ("--list", "'trikafka topics list'"),
    ],
)
def test_words_of_habit_name_the_command(command: Command, args: str, meant: str) -> None:
    ended = command(*args.split())
    assert ended.code == 2
    assert f"did you mean {meant}?" in ended.err


@pytest.mark.parametrize(
    "args", ["acls set -u a --allow", "topics delete t --delete", "groups list --list"]
)
def test_command_suggests_no_command_that_it_is(command: Command, args: str) -> None:
    ended = command(*args.split())
    assert ended.code == 2
    assert "no such option" in ended.err
    assert "did you mean" not in ended.err


@pytest.mark.parametrize(
    ("args", "option", "meant"),
    [
        ("topics describe t --delete", "--delete", "topics delete"),
        ("topics -b a:1 list --delete", "--delete", "topics delete"),
        ("topics delete t --create", "--create", "topics create"),
    ],
)
def test_option_of_kafka_topics_changes_no_command(
    command: Command, args: str, option: str, meant: str
) -> None:
    """It deleted the topic, and one that is named like the command."""
    ended = command(*args.split())
    assert ended.code == 2
    assert f"no such option {option}" in ended.err
    assert f"did you mean 'trikafka {meant}'?" in ended.err


def test_topic_may_be_named_like_a_command(command: Command) -> None:
    ended = command("topics", "-b", "localhost:1", "--create", "--topic", "list")
    assert ended.code == 1
    assert "no bootstrap address" in ended.err


@pytest.mark.parametrize("group", ["acls", "configs", "quotas", "reassign", "topics", "users"])
def test_help_cuts_no_sentence(command: Command, group: str) -> None:
    assert b"..." not in command(group, "--help").out.partition(b"Commands:")[2]
