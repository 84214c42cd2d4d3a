"""What a command has done that prints nothing else: one line, or with ``--json`` one object."""

from __future__ import annotations

import json

from commanding import Command, fresh


def test_topics_say_what_was_done(command: Command, broker: str) -> None:
    """Before, they said nothing unless the standard error was a terminal, and altering said nothing at all."""
    one, two, three = fresh(), fresh(), fresh()
    assert command("topics", "create", one, two) == (0, f"created: {one}, {two}\n".encode(), "")
    assert command("topics", "create", one, "--if-not-exists") == (0, b"nothing to create: all are there\n", "")
    assert command("topics", "alter", one, "-p", "3") == (0, f"3 partitions now: {one}\n".encode(), "")
    assert command("topics", "delete", one) == (0, f"deleted: {one}\n".encode(), "")
    assert command("topics", "delete", one, "--if-exists") == (0, b"nothing to delete: none is there\n", "")
    for args, what in (
        (("create", three, "--json"), {"created": [three]}),
        (("create", three, "--if-not-exists", "--output", "json"), {"created": []}),
        (("alter", three, "-p", "2", "--json"), {"altered": [three], "partitions": 2}),
        (("delete", two, three, "--json"), {"deleted": [two, three]}),
    ):
        ended = command("topics", *args)
        assert (ended.code, json.loads(ended.out), ended.err) == (0, what, "")


def test_groups_say_what_was_deleted(command: Command, topic: str) -> None:
    for json_too in (False, True):
        group = fresh()
        assert command("consume", topic, "-G", group, "-e").code == 0
        ended = command("groups", "--delete", group, *(["--json"] if json_too else []))
        said = {"deleted": [group]} if json_too else f"deleted: {group}\n"
        assert (ended.code, json.loads(ended.out) if json_too else ended.out.decode()) == (0, said)


def test_a_misspelt_topic(command: Command, broker: str) -> None:
    name = fresh() + "-of-january"
    assert command("topics", "create", name).code == 0
    meant = f"does not exist; did you mean {name!r}?"
    for args in (("consume", name[:-1]), ("topics", "describe", name[:-1])):
        assert meant in command(*args).err
