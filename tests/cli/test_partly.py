"""Commands whose admin calls fail in part: they print what the others gave, and then the error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import click
import pytest
import trio
from commanding import Command
from kafka.protocol.admin import DescribeGroupsResponse
from piping import settings
from trio.testing import MockClock as Clock

from trikafka import Admin, TopicPartition, TrikafkaError
from trikafka._api.admin import opening
from trikafka.cli import topics
from trikafka.cli.partly import noted_failures
from trikafka.cli.running import sentence
from trikafka.errors import AdminErrors
from trikafka.testing import ScriptedCluster

TOPIC_EXISTS, GROUP_REFUSED, TOPIC_REFUSED, NON_EMPTY, INVALID = 36, 30, 29, 68, 42
Prepare = Callable[[ScriptedCluster], object]
Serve = Callable[..., None]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Return a function that lets commands ask three scripted brokers, each with a group."""
    opened = opening.open_admin

    def serving(prepare: Prepare, *parts: TopicPartition) -> None:
        parts = parts or (T0,)

        @asynccontextmanager
        async def scripted(**ignored: Any) -> AsyncIterator[Admin]:
            async with (
                ScriptedCluster(nodes=3, topics={"t": 2}) as cluster,
                opened(**settings(cluster)) as admin,
            ):
                for node in range(3):
                    cluster.move_coordinator(node, f"g{node}")
                    await admin.alter_group_offsets(f"g{node}", dict.fromkeys(parts, 0))
                prepare(cluster)
                yield admin

        monkeypatch.setattr(opening, "open_admin", scripted)

    return serving


@pytest.mark.parametrize(
    ("args", "api", "code", "groups"),
    [
        (("groups",), "ListGroups", INVALID, ["g0", "g2"]),
        (("groups", "--describe"), "ListGroups", INVALID, ["g0", "g2"]),
        (("groups", "g0", "g1", "g2"), "DescribeGroups", GROUP_REFUSED, ["g0", "g2"]),
        (("groups", "g0", "g1", "g2"), "OffsetFetch", GROUP_REFUSED, ["g0", "g2"]),
        (("groups", "lag"), "ListGroups", INVALID, ["g0", "g2"]),
        (("groups", "lag"), "OffsetFetch", GROUP_REFUSED, ["g0", "g2"]),
    ],
)
def test_other_groups_are_shown(
    command: Command, serve: Serve, args: tuple[str, ...], api: str, code: int, groups: list[str]
) -> None:
    serve(lambda cluster: cluster.fail(api, code, None, node=1))
    ended = command(*args, "-o", "jsonl")
    assert [row["group"] for row in ended.lines] == groups
    assert ended.code == 1
    head, line = ended.err.splitlines()
    assert head == "Error: 1 of 3 failed"
    assert line.startswith("  broker 1: " if api == "ListGroups" else "  g1: ")


def test_group_of_a_silent_broker_is_not_missing(command: Command, serve: Serve) -> None:
    """A group that a failed broker may have is not called missing; others are shown as ever."""
    serve(lambda cluster: cluster.fail("ListGroups", INVALID, None, node=1))
    for args in (("groups", "g1"), ("groups", "lag", "g1"), ("share-groups", "describe", "g1")):
        ended = command(*args)
        assert (ended.code, ended.out) == (1, b"")
        assert ended.err.startswith("Error: 1 of 3 failed\n  broker 1: ")
    assert command("groups", "lag", "g2").code == 0


def test_unknown_end_does_not_hide_a_lag(command: Command, serve: Serve) -> None:
    serve(lambda cluster: cluster.fail("ListOffsets", INVALID, None, topic="t", partition=0))
    ended = command("groups", "g0", "-o", "jsonl")
    (group,) = ended.lines
    (place,) = group["partitions"]
    assert (place["offset"], place["end"], place["lag"]) == (0, None, None)
    assert (ended.code, ended.err.startswith("Error: 1 of 1 failed\n  t-0: ")) == (1, True)


def test_producers_are_shown_without_a_leader(command: Command, serve: Serve) -> None:
    """The command waited for a leader for a minute."""
    serve(lambda cluster: cluster.move_leader("t", 1, None))
    ended = command("transactions", "producers", "t")
    assert (ended.code, ended.out) == (1, b"no producers\n")
    assert ended.err.startswith("Error: 1 of 2 failed\n  t-1: no leader at the moment; see: ")


def test_sum_without_an_unknown_end_is_marked(command: Command, serve: Serve) -> None:
    serve(
        lambda cluster: cluster.fail("ListOffsets", INVALID, None, topic="t", partition=0), T0, T1
    )
    assert b"  lag at least 0\n" in command("groups", "g0", "-o", "table").out
    (row,) = command("groups", "lag", "g0", "--by-group", "-o", "jsonl").lines
    assert row == {"group": "g0", "partitions": 2, "lag": 0, "unknown": 1}


@pytest.mark.parametrize("others", [(), ("g0",)])
def test_group_with_members_names_them(
    command: Command, serve: Serve, others: tuple[str, ...]
) -> None:
    async def with_members(request: object, default: Any) -> Any:
        response = await default()
        for group in response.groups:
            if group.group_id == "g1":
                group.members[:] = [
                    DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
                        member_id=f"m{number}", client_id="shop", client_host="/10.0.0.1"
                    )
                    for number in range(5)
                ]
        return response

    def prepare(cluster: ScriptedCluster) -> None:
        cluster.fail("DeleteGroups", NON_EMPTY, None, node=1)
        cluster.on("DescribeGroups", with_members)

    serve(prepare)
    ended = command("groups", "--delete", *others, "g1")
    assert ended.code == 1
    assert (
        "group 'g1' has members, so it was not deleted: m0 (client shop at 10.0.0.1), "
        "m1 (client shop at 10.0.0.1), m2 (client shop at 10.0.0.1) and 2 more; stop them first, "
        "or see 'trikafka groups remove-members g1 --all'"
    ) in ended.err
    if others:
        assert ended.err.startswith("Error: 1 of 2 failed\n  g1: ")


@pytest.mark.parametrize(
    ("args", "shown", "name"),
    [
        (("topics", "describe"), "topic", "t"),
        (("topics", "offsets", "--at", "latest"), "topic", "t"),
        (("groups",), "group", "g1"),
        (("groups", "lag"), "group", "g1"),
    ],
)
def test_a_missing_name_hides_no_other(
    command: Command, serve: Serve, args: tuple[str, ...], shown: str, name: str
) -> None:
    serve(lambda cluster: None)
    ended = command(*args, "nosuch", name, "-o", "jsonl")
    assert {row[shown] for row in ended.lines} == {name}
    assert ended.code == 1
    first, second = ended.err.splitlines()
    assert first == "Error: 1 of 2 failed"
    assert second.startswith(f"  nosuch: {shown} 'nosuch' does not exist")
    ended = command(*args, "nosuch", "other", "-o", "jsonl")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.startswith("Error: 2 of 2 failed\n  nosuch: ")
    ended = command(*args, "nosuch", "-o", "jsonl")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.startswith(f"Error: {shown} 'nosuch' does not exist")


@pytest.mark.parametrize(
    "args",
    [
        ("topics", "describe", "secret"),
        ("topics", "offsets", "secret"),
        ("topics", "elect", "secret"),
        ("records", "delete", "-t", "secret", "--before", "latest"),
        ("reassign", "move", "-t", "secret"),
        ("reassign", "cancel", "-t", "secret"),
        ("groups", "reset-offsets", "g0", "-t", "secret", "--to", "latest"),
        ("groups", "reset-offsets", "g1", "-t", "t", "--to", "latest"),
        ("groups", "secret"),
        ("groups", "lag", "secret"),
        ("groups", "--delete", "secret"),
        ("share-groups", "offsets", "secret"),
    ],
)
def test_a_hidden_name_is_not_missing(
    command: Command, serve: Serve, args: tuple[str, ...]
) -> None:
    """Lists leave out what the user may not see."""

    async def hide(request: Any, default: Any) -> Any:
        response = await default()
        for topic in response.topics:
            topic.error_code = TOPIC_REFUSED if topic.name == "secret" else topic.error_code
        return response

    def refuse(cluster: ScriptedCluster) -> None:
        cluster.on("Metadata", hide)
        cluster.fail("DescribeGroups", GROUP_REFUSED, None)
        cluster.fail("OffsetFetch", GROUP_REFUSED, None, node=1)

    serve(refuse)
    ended = command(*args)
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.startswith("Error: not authorized for the ")
    assert "does not exist" not in ended.err


def test_hidden_topic_is_not_taken_for_deleted(command: Command, serve: Serve) -> None:
    serve(lambda cluster: cluster.fail("DeleteTopics", TOPIC_REFUSED, None))
    ended = command("topics", "delete", "--if-exists", "secret")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err.startswith("Error: not authorized for the topic ")


def test_excused_name_is_no_failure(command: Command, serve: Serve) -> None:
    """The topic that is missing is what ``--if-exists`` allows."""

    async def refuse(request: Any, default: Any) -> Any:
        response = await default()
        for each in response.responses:
            each.error_code = TOPIC_REFUSED if each.name == "secret" else each.error_code
        return response

    serve(lambda cluster: cluster.on("DeleteTopics", refuse))
    ended = command("topics", "delete", "--if-exists", "nosuch", "secret")
    assert (ended.code, ended.out) == (1, b"")
    assert "not authorized for the topic " in ended.err
    assert "nosuch" not in ended.err


def test_topic_is_described_without_its_settings(command: Command, serve: Serve) -> None:
    serve(lambda cluster: cluster.fail("DescribeConfigs", INVALID, None))
    ended = command("topics", "describe", "t", "-o", "jsonl")
    (topic,) = ended.lines
    assert [part["end"] for part in topic["partitions"]] == [0, 0]
    assert topic["config"] is None
    assert (ended.code, "INVALID_REQUEST" in ended.err) == (1, True)


def test_directories_of_other_brokers_are_shown(command: Command, serve: Serve) -> None:
    serve(lambda cluster: cluster.fail("DescribeLogDirs", INVALID, None, node=1))
    ended = command("cluster", "log-dirs", "-o", "jsonl")
    assert {row["broker"] for row in ended.lines} == {0, 2}
    assert (ended.code, ended.err.startswith("Error: 1 of 3 failed\n")) == (1, True)


@pytest.mark.parametrize(
    "args",
    [
        ("configs", "get", "broker", "9"),
        ("configs", "get", "broker-logger", "9"),
        ("configs", "set", "broker", "9", "log.cleaner.threads=2"),
        ("configs", "set", "broker", "9", "--delete", "log.cleaner.threads"),
        ("cluster", "features", "--broker", "9"),
        ("reassign", "move", "-t", "t", "--to", "9"),
    ],
)
def test_missing_broker_is_no_wrong_usage(
    command: Command, serve: Serve, args: tuple[str, ...]
) -> None:
    serve(lambda cluster: None)
    ended = command(*args)
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err == "Error: the cluster has no live broker 9; it has 0, 1, 2\n"


@pytest.mark.parametrize(
    ("args", "api", "code", "failed", "said"),
    [
        (
            ("groups", "--delete", "g0", "g1"),
            "DeleteGroups",
            NON_EMPTY,
            "g1",
            {"deleted": ["g0"]},
        ),
        (
            ("topics", "create", "a", "b"),
            "CreateTopics",
            TOPIC_EXISTS,
            "b",
            {
                "created": ["a"],
                "topics": [{"topic": "a", "partitions": 1, "replication_factor": 1}],
            },
        ),
    ],
)
def test_changes_that_were_made_are_reported(
    command: Command,
    serve: Serve,
    args: tuple[str, ...],
    api: str,
    code: int,
    failed: str,
    said: dict[str, Any],
) -> None:
    serve(lambda cluster: cluster.fail(api, code, None, topic=failed))
    ended = command(*args, "--json")
    assert json.loads(ended.out) == said
    head, line = ended.err.splitlines()
    assert (ended.code, head) == (1, "Error: 1 of 2 failed")
    assert line.startswith(f"  {failed}: ")


@pytest.mark.parametrize("args", [("groups", "g0", "g1"), ("groups", "lag", "g0", "g1")])
def test_failures_of_two_groups_are_shown(
    command: Command, serve: Serve, args: tuple[str, ...]
) -> None:
    """Two groups that fail for the same partition have a line each, with the group's name."""

    def prepare(cluster: ScriptedCluster) -> None:
        for node, code in ((0, INVALID), (1, GROUP_REFUSED)):
            cluster.fail("OffsetFetch", code, None, node=node, topic="t", partition=0)

    serve(prepare, T0, T1)
    ended = command(*args, "-o", "jsonl")
    assert {row["group"] for row in ended.lines} == {"g0", "g1"}
    head, *lines = ended.err.splitlines()
    assert (ended.code, head) == (1, "Error: 2 failed")
    first, second = sorted(lines)
    assert first.startswith("  g0, t-0: ")
    assert "INVALID_REQUEST" in first
    assert second.startswith("  g1, t-0: ")
    assert "GROUP_AUTHORIZATION_FAILED" in second


def test_failures_before_the_last_are_shown(command: Command, serve: Serve) -> None:
    """The error that ends a command does not hide what failed before it."""

    def prepare(cluster: ScriptedCluster) -> None:
        cluster.fail("DescribeGroups", GROUP_REFUSED, None, node=1)
        for node in (0, 2):
            cluster.fail("OffsetFetch", GROUP_REFUSED, None, node=node)

    serve(prepare)
    for names in (["g0", "g1", "g2"], ["g0", "g1"]):
        ended = command("groups", *names)
        head, *lines = ended.err.splitlines()
        assert (ended.code, head) == (1, f"Error: {len(names)} failed")
        assert sorted(line.partition(":")[0] for line in lines) == [f"  {name}" for name in names]


async def test_topic_description_waits_once(autojump_clock: Clock) -> None:
    """The calls of a description run at once, so a silent leader delays it by one timeout."""
    async with (
        ScriptedCluster(nodes=1, topics={"t": 2}) as cluster,
        opening.open_admin(**settings(cluster, default_api_timeout_ms=30_000)) as admin,
    ):
        cluster.silence("ListOffsets")
        cluster.silence("DescribeConfigs")
        began = trio.current_time()
        with click.Context(topics.command):
            (topic,) = await topics._describe(admin, ["t"])
            failed = noted_failures()
        assert trio.current_time() - began == pytest.approx(30, abs=1)
    assert [part["begin"] for part in topic["partitions"]] == [None, None]
    assert topic["config"] is None
    assert failed is not None
    assert [name for name, _ in failed.failures] == ["first offsets", "end offsets", "settings"]


def test_repeated_look_warns_once(command: Command, serve: Serve) -> None:
    """A look of --watch that fails as the one before it prints no second warning."""
    asked = 0

    def later(request: object) -> bool:
        nonlocal asked
        asked += 1
        return asked > 9  # each look asks three brokers

    def prepare(cluster: ScriptedCluster) -> None:
        cluster.fail("OffsetFetch", GROUP_REFUSED, None, node=1)
        cluster.fail("ListGroups", INVALID, None, where=later)

    serve(prepare)
    ended = command("groups", "lag", "--watch", "--every", "0.1")
    assert ended.out.count(b"GROUP  TOPIC") == 3
    assert (ended.code, ended.err.count("Warning: ")) == (1, 1)


class Blind:
    """An admin client of a user who may not look at topics."""

    async def list_topics(self, **more: Any) -> Any:
        raise TrikafkaError("no")


async def test_failing_look_up_hides_no_creation() -> None:
    assert await topics._made(Blind(), ["new"]) == {"new": []}  # type: ignore[arg-type]


def test_a_failed_part_is_named_once() -> None:
    """As each rule is where the brokers have no authorizer."""
    failures = {
        name: TrikafkaError(f"{name}: the brokers have no authorizer") for name in ("rule a", "b")
    }
    text, code = sentence(AdminErrors.of(failures | {"c": TrikafkaError("refused")}, {}))
    assert code == 1
    assert text.splitlines() == [
        "3 of 3 failed",
        "  rule a: the brokers have no authorizer",
        "  b: the brokers have no authorizer",
        "  c: refused",
    ]


def test_parts_that_fail_alike_share_a_line() -> None:
    """A thousand partitions of a group would otherwise be a thousand lines."""
    alike = {f"t-{number}": TrikafkaError("stop them first") for number in range(30)}
    text, code = sentence(AdminErrors.of(alike | {"u-0": TrikafkaError("refused")}, {}))
    assert code == 1
    first, shared, single = text.splitlines()
    assert first == "31 of 31 failed"
    assert shared.startswith("  t-0, t-1, t-2, ")
    assert shared.endswith("t-19 and 10 more: stop them first")
    assert single == "  u-0: refused"
