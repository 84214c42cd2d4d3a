"""The plan of ``trikafka reassign move``: which brokers get the replicas. No real broker."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from commanding import Command
from hypothesis import given
from hypothesis import strategies as st
from piping import settings

from trikafka import Admin, TopicPartitionReplica
from trikafka._api.admin import opening
from trikafka.cli.log_dirs import readable
from trikafka.cli.reassign import planned
from trikafka.cli.reassign_plan import read_plan
from trikafka.error_codes import ErrorCode
from trikafka.testing import ScriptedCluster
from trikafka.types import TopicPartition

T = [TopicPartition("t", number) for number in range(6)]
NO_RACKS: dict[int, str | None] = {}


def test_replicas_that_may_stay_do() -> None:
    now = {T[0]: (1, 2), T[1]: (2, 9), T[2]: (9, 8)}
    assert planned(now, [1, 2, 3], None, NO_RACKS) == {T[0]: (1, 2), T[1]: (2, 3), T[2]: (3, 1)}


def test_other_number_of_replicas() -> None:
    now = {T[0]: (1, 2, 3), T[1]: (2, 3, 1)}
    assert planned(now, [1, 2, 3], 1, NO_RACKS) == {T[0]: (1,), T[1]: (2,)}
    assert planned({T[0]: (1,)}, [1, 2, 3], 2, NO_RACKS) == {T[0]: (1, 2)}
    with pytest.raises(click.ClickException, match=r"t-0 needs 4 replicas.*3 brokers"):
        planned(now, [1, 2, 3], 4, NO_RACKS)


def test_replicas_go_to_other_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    found = planned({T[0]: (1,), T[1]: (3,)}, [1, 2, 3, 4], 2, racks)
    assert found == {T[0]: (1, 4), T[1]: (3, 2)}


@given(
    st.dictionaries(
        st.sampled_from(T),
        st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    st.lists(st.integers(0, 5), min_size=3, max_size=6, unique=True),
)
def test_plan_moves_only_what_has_to(
    now: dict[TopicPartition, tuple[int, ...]], brokers: list[int]
) -> None:
    found = planned(now, brokers, None, NO_RACKS)
    for tp, replicas in found.items():
        assert len(set(replicas)) == len(replicas) == len(now[tp])
        assert set(replicas) <= set(brokers)
        assert set(now[tp]) & set(brokers) <= set(replicas)


def test_new_replicas_are_spread_evenly() -> None:
    now = dict.fromkeys(T, (9,))
    found = planned(now, [1, 2, 3], 2, NO_RACKS)
    assert Counter(each for own in found.values() for each in own) == {1: 4, 2: 4, 3: 4}
    assert Counter(own[0] for own in found.values()) == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, None),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 40, "5.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_are_readable(size: int | None, text: str | None) -> None:
    assert readable(size) == text


def test_emptied_broker_keeps_nothing() -> None:
    """Only its replicas move; those on a broker that is down stay."""
    now = {T[0]: (1, 2), T[1]: (2, 9), T[2]: (9, 1), T[3]: (9,)}
    assert planned(now, [2, 3], None, NO_RACKS, [1]) == {
        T[0]: (2, 3),
        T[1]: (2, 9),
        T[2]: (9, 3),
        T[3]: (9,),
    }
    assert planned(now, [2, 3], None, NO_RACKS, [9]) == {
        T[0]: (1, 2),
        T[1]: (2, 3),
        T[2]: (1, 3),
        T[3]: (3,),
    }
    with pytest.raises(click.ClickException, match=r"needs 2 replicas.*has 1 broker "):
        planned({T[0]: (1, 2)}, [2], None, NO_RACKS, [1])
    now = {T[0]: (1, 2), T[1]: (2,)}
    assert planned(now, [2], 1, NO_RACKS, [1]) == {T[0]: (2,), T[1]: (2,)}


# --- plans in a file ------------------------------------------------------------------------------


def write_plan(place: Path, *parts: object) -> str:
    file = place / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": parts}))
    return str(file)


def part(number: int, replicas: object, *directories: object) -> dict[str, object]:
    found: dict[str, object] = {"topic": "t", "partition": number, "replicas": replicas}
    return {**found, "log_dirs": list(directories)} if directories else found


def test_plan_names_directories(tmp_path: Path) -> None:
    found = read_plan(
        write_plan(tmp_path, part(0, [1, 2], "any", "/b"), part(1, [2]), part(2, [3], "any"))
    )
    assert found.replicas == {T[0]: (1, 2), T[1]: (2,), T[2]: (3,)}
    assert found.directories == {TopicPartitionReplica("t", 0, 2): "/b"}


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([part(0, [1, 2], "any")], "t-0 has 2 replicas and 1 log_dirs"),
        ([part(0, [1], 7)], "the log_dirs of t-0 are paths or 'any'"),
        ([{**part(0, [1]), "log_dirs": "/a"}], "the log_dirs of t-0 are paths or 'any'"),
        ([part(0, [1]), part(0, [2])], "t-0 is there twice"),
        ([part(0, [1, 1])], "numbers of brokers, each once"),
        ([part(0, [])], "numbers of brokers, each once"),
        ([part(0, [1.5])], "numbers of brokers, each once"),
        ([{**part(0, [1]), "partition": "x"}], "TopicPartition, not"),
        ([{"topic": "t"}], "is not a plan such as"),
        (["t"], "is not a plan such as"),
    ],
)
def test_wrong_plan_is_explained(tmp_path: Path, parts: list[object], reason: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        read_plan(write_plan(tmp_path, *parts))
    assert reason in caught.value.message


class Disks:
    """Brokers with the directories /a and /b; each has its replicas in /a at first."""

    def __init__(self) -> None:
        self.moved: list[tuple[int, str, str, int]] = []
        self.late = 1  # so many requests come before the broker has the replica

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = opening.open_admin

        @asynccontextmanager
        async def scripted(**ignored: Any) -> AsyncIterator[Admin]:
            async with (
                ScriptedCluster(nodes=2, topics={"t": 2}) as cluster,
                opened(**settings(cluster)) as admin,
            ):
                await admin.alter_partition_reassignments({T[0]: [0], T[1]: [0]})
                for node in range(2):
                    cluster.on("DescribeLogDirs", self._describe, node=node)
                    cluster.on("AlterReplicaLogDirs", self._altering(node), node=node)
                yield admin

        monkeypatch.setattr(opening, "open_admin", scripted)

    async def _describe(self, request: Any, default: Any) -> Any:
        response = await default()
        (first,) = response.results
        first.log_dir = "/a"
        second = type(first)(log_dir="/b", topics=[], error_code=0)
        response.results = [first, second]
        return response

    def _altering(self, node: int) -> Any:
        async def alter(request: Any, default: Any) -> Any:
            response = await default()
            for directory in request.dirs:
                for topic in directory.topics:
                    for number in topic.partitions:
                        self.moved.append((node, directory.path, topic.name, number))
            late, self.late = self.late > 0, self.late - 1
            for result in response.results:
                for one in result.partitions:
                    one.error_code = ErrorCode.REPLICA_NOT_AVAILABLE.value if late else 0
            return response

        return alter


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    found = Disks()
    found.serve(monkeypatch)
    return found


def test_plan_moves_into_directories(command: Command, disks: Disks, tmp_path: Path) -> None:
    """To another broker, which has the replica later, and on the same broker."""
    plan = write_plan(tmp_path, part(0, [1], "/b"), part(1, [0], "/b"))
    move = ("reassign", "move", "--file", plan)
    ended = command(*move)
    assert (ended.code, ended.err) == (0, "")
    table = [line.split() for line in ended.out.decode().splitlines()]
    assert table[:3] == [
        ["TOPIC", "PARTITION", "REPLICAS", "NEW", "DIRECTORIES"],
        ["t", "0", "0", "1", "/b"],
        ["t", "1", "0", "0", "/b"],
    ]
    assert not disks.moved
    ended = command(*move, "--execute", "-o", "json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out)["partitions"] == [
        {"topic": "t", "partition": 0, "before": [0], "after": [1], "log_dirs": ["/b"]},
        {"topic": "t", "partition": 1, "before": [0], "after": [0], "log_dirs": ["/b"]},
    ]
    assert set(disks.moved) == {(1, "/b", "t", 0), (0, "/b", "t", 1)}
    assert len(disks.moved) == 3  # one broker was asked again


def test_executed_plan_says_where_to_look(command: Command, disks: Disks, tmp_path: Path) -> None:
    """'reassign status' shows no moves between the directories of a broker."""
    plan = write_plan(tmp_path, part(1, [0], "/b"))
    ended = command("reassign", "move", "--file", plan, "--execute")
    assert b"'trikafka cluster log-dirs -o json' the directories" in ended.out


def test_replica_in_its_directory_stays(command: Command, disks: Disks, tmp_path: Path) -> None:
    plan = write_plan(tmp_path, part(0, [0], "/a"))
    ended = command("reassign", "move", "--file", plan, "--execute")
    assert (ended.code, b"nothing to move" in ended.out) == (0, True)
    assert not disks.moved


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (part(0, [1], "/c"), "broker 1 has no log directory '/c'; it has /a, /b"),
        (part(0, [7]), "t-0 cannot move to broker 7: the cluster has no such live broker"),
    ],
)
def test_plan_that_cannot_be_is_refused(
    command: Command, disks: Disks, tmp_path: Path, parts: object, reason: str
) -> None:
    """Also without --execute."""
    for more in ((), ("--execute",)):
        ended = command("reassign", "move", "--file", write_plan(tmp_path, parts), *more)
        assert (ended.code, ended.out) == (1, b"")
        assert reason in ended.err


class Moving:
    """A partition on broker 0 that moves to broker 1, so that it has both for a while."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.code = 0

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = opening.open_admin

        @asynccontextmanager
        async def scripted(**ignored: Any) -> AsyncIterator[Admin]:
            async with (
                ScriptedCluster(nodes=4, topics={"t": 1}) as cluster,
                opened(**settings(cluster)) as admin,
            ):
                await admin.alter_partition_reassignments({T[0]: [1, 0]})
                cluster.on("ListPartitionReassignments", self._list)
                yield admin
                self.asked = [
                    part.replicas
                    for call in cluster.requests("AlterPartitionReassignments")[1:]
                    for topic in call.request.topics
                    for part in topic.partitions
                ]

        monkeypatch.setattr(opening, "open_admin", scripted)

    async def _list(self, request: Any, default: Any) -> Any:
        response = await default()
        topic = type(response).OngoingTopicReassignment
        part = topic.OngoingPartitionReassignment(
            partition_index=0, replicas=[1, 0], adding_replicas=[1], removing_replicas=[0]
        )
        response.topics = [] if self.code else [topic(name="t", partitions=[part])]
        response.error_code = self.code
        return response


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> Moving:
    found = Moving()
    found.serve(monkeypatch)
    return found


def test_moving_partition_keeps_its_number(command: Command, moving: Moving) -> None:
    """The brokers that it leaves do not count, or each new move would make more replicas."""
    ended = command("reassign", "move", "-t", "t", "--to", "2,3", "--execute", "-o", "json")
    assert ended.code == 0
    assert json.loads(ended.out)["partitions"] == [
        {"topic": "t", "partition": 0, "before": [1], "after": [2]}
    ]
    assert moving.asked == [[2]]
    assert "t-0 moves to 1 already: the new move replaces that one" in ended.err


def test_move_under_way_is_not_repeated(command: Command, moving: Moving, tmp_path: Path) -> None:
    plan = write_plan(tmp_path, part(0, [1]))
    ended = command("reassign", "move", "--file", plan, "--execute")
    assert (ended.code, moving.asked) == (0, [])
    assert b"or on their way" in ended.out
    plan = write_plan(tmp_path, part(0, [1, 0]))
    ended = command("reassign", "move", "--file", plan, "--execute")
    assert (ended.code, moving.asked) == (0, [[1, 0]])


def test_plan_needs_no_right_to_list_moves(command: Command, moving: Moving) -> None:
    """Without the right the plan begins with the replicas that the metadata show."""
    moving.code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    ended = command("reassign", "move", "-t", "t", "--to", "2,3", "-o", "json")
    assert ended.code == 0
    assert json.loads(ended.out)["partitions"] == [
        {"topic": "t", "partition": 0, "before": [1, 0], "after": [2, 3]}
    ]
    assert ended.err.startswith("Warning: this user may not list reassignments")
    ended = command("reassign", "move", "-t", "t", "--to", "2,3", "--execute")
    assert (ended.code, moving.asked) == (1, [])


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands ask a cluster of three brokers with two topics."""
    opened = opening.open_admin

    @asynccontextmanager
    async def scripted(**ignored: Any) -> AsyncIterator[Admin]:
        async with (
            ScriptedCluster(nodes=3, topics={"t": 2, "u": 1}) as cluster,
            opened(**settings(cluster)) as admin,
        ):
            u = TopicPartition("u", 0)
            await admin.alter_partition_reassignments({T[0]: [0, 1], T[1]: [1, 2], u: [2, 0]})
            yield admin

    monkeypatch.setattr(opening, "open_admin", scripted)


def test_broker_is_emptied_of_all_topics(command: Command, three: None) -> None:
    ended = command("reassign", "move", "--off", "0", "-o", "json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == {
        "executed": False,
        "partitions": [
            {"topic": "t", "partition": 0, "before": [0, 1], "after": [1, 2]},
            {"topic": "u", "partition": 0, "before": [2, 0], "after": [2, 1]},
        ],
    }
    ended = command("reassign", "move", "--off", "0", "-t", "u", "--execute", "-o", "json")
    assert [each["topic"] for each in json.loads(ended.out)["partitions"]] == ["u"]


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (("--off", "7"), 1, "broker 7 is not live, and has none of these partitions' replicas"),
        (("--off", "0", "--to", "0,1"), 2, "broker 0 is in --to and in --off: choose one"),
        (("--off", "0,x"), 2, "Invalid value for --off: '0,x' is not a list of broker numbers"),
        (("--off", "0", "--file", __file__), 2, "give --topic or --off, or --file alone"),
        (("--off", "0,1"), 1, "needs 2 replicas, and has 1 broker for them"),
    ],
)
def test_broker_that_cannot_be_emptied(
    command: Command, three: None, args: tuple[str, ...], code: int, reason: str
) -> None:
    ended = command("reassign", "move", *args)
    assert (ended.code, ended.out) == (code, b"")
    assert reason in ended.err
