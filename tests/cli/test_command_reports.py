"""Reports of commands that print nothing else: one line, or one object with ``--json``."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from commanding import Command, fresh

from trikafka import open_admin
from trikafka.cli import topics
from trikafka.testing import ScriptedCluster


def test_topics_report_each_change(command: Command, broker: str) -> None:
    """The report goes to the standard output also without a terminal, and for ``alter``."""
    one, two, three = fresh(), fresh(), fresh()
    made = "".join(f"created: {name}, 1 partition, 1 copy of each\n" for name in (one, two))
    assert command("topics", "create", one, two) == (0, made.encode(), "")
    assert command("topics", "create", one, "--if-not-exists") == (
        0,
        b"nothing to create: all are there\n",
        "",
    )
    assert command("topics", "alter", one, "-p", "3") == (
        0,
        f"3 partitions now: {one}\n".encode(),
        "",
    )
    assert command("topics", "delete", one) == (0, f"deleted: {one}\n".encode(), "")
    assert command("topics", "delete", one, "--if-exists") == (
        0,
        b"nothing to delete: none is there\n",
        "",
    )
    for args, what in (
        (
            ("create", three, "-p", "2", "--json"),
            {
                "created": [three],
                "topics": [{"topic": three, "partitions": 2, "replication_factor": 1}],
            },
        ),
        (
            ("create", three, "--if-not-exists", "--output", "json"),
            {"created": [], "topics": []},
        ),
        (("alter", three, "-p", "3", "--json"), {"altered": [three], "partitions": 3}),
        (("delete", two, three, "--json"), {"deleted": [two, three]}),
    ):
        ended = command("topics", *args)
        assert (ended.code, json.loads(ended.out), ended.err) == (0, what, "")


def test_groups_report_deletions(command: Command, topic: str) -> None:
    for json_too in (False, True):
        group = fresh()
        assert command("consume", topic, "-G", group, "-e").code == 0
        ended = command("groups", "--delete", group, *(["--json"] if json_too else []))
        said = {"deleted": [group]} if json_too else f"deleted: {group}\n"
        assert (ended.code, json.loads(ended.out) if json_too else ended.out.decode()) == (0, said)


def test_misspelt_topic_has_a_hint(command: Command, broker: str) -> None:
    name = fresh() + "-of-january"
    assert command("topics", "create", name).code == 0
    meant = f"does not exist; did you mean {name!r}?"
    near = name[:-1]
    for args in (
        ("consume", near),
        ("produce", "-t", near, "/dev/null"),
        ("topics", "describe", near),
        ("topics", "delete", near),
        ("topics", "alter", near, "-p", "9"),
        ("configs", "get", "topic", near),
        ("records", "delete", "-t", near, "--before", "0"),
        ("copy", near, "--to-topic", name),
    ):
        printed = command(*args).err
        assert printed.startswith(f"Error: topic {near!r} {meant}"), printed


@pytest.mark.parametrize(
    ("option", "code", "out"),
    [((), 1, b""), (("--if-exists",), 0, b"nothing to delete: none is there\n")],
)
def test_if_exists_accepts_a_deleted_topic(
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
    option: tuple[str, ...],
    code: int,
    out: bytes,
) -> None:
    """A broker still lists a topic that its controller has deleted."""

    async def gone(request: Any, default: Any) -> Any:
        response = await default()
        response.responses[0].error_code = 3
        return response

    def ask(common: Any, work: Any) -> Any:
        async def main() -> Any:
            async with ScriptedCluster(topics={"t": 1}) as cluster:
                cluster.on("DeleteTopics", gone)
                async with open_admin(
                    bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial
                ) as admin:
                    assert "t" in await admin.list_topics()
                    return await work(admin)

        return trio.run(main)

    monkeypatch.setattr(topics, "ask", ask)
    ended = command("topics", "delete", "t", *option)
    assert (ended.code, ended.out, "'t'" in ended.err) == (code, out, code == 1)
