"""Lines of JSON as columns, a block at once. What is not simple is left to ``from_json``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .._wire.column_rows import ColumnRows
from .record_lines import FIELDS
from .text_columns import rows_of

_NAMES = frozenset(FIELDS)
_NONE = type(None)
#: The fields that are parts of the record; others are ignored.
_USED = ("topic", "partition", "timestamp", "key", "value", "headers")
# `raw_decode` without its Python function, which costs two thirds of the parser for a short line.
_parse: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


def read_json_block(
    text: bytes, topic: str | None, *, with_partitions: bool, partition: int | None
) -> tuple[str, ColumnRows] | None:
    """Return the topic and the records of a block of lines.

    ``None``: the lines have to be read one by one, because a line is wrong, blank, of another
    topic, or has headers or bytes that are no text.
    """
    found = _objects(text)
    if not found:
        return None
    names = set().union(*found)
    if not names <= _NAMES:
        return None
    values: dict[str, list[Any]] = {
        name: [each.get(name) for each in found] for name in names.intersection(_USED)
    }
    if any(values.get("headers", ())):
        return None
    for name, kind in (("topic", str), ("headers", list)):
        if not set(map(type, values.get(name, ()))) <= {kind, _NONE}:
            return None
    topics = set(values.get("topic", [None]))
    target = topic or (topics.pop() if len(topics) == 1 else None)
    if target is None or not all(name is None or name.isascii() for name in topics):
        return None
    rows = rows_of(
        len(found),
        keys=values.get("key"),
        values=values.get("value"),
        timestamps=values.get("timestamp"),
        partitions=values.get("partition"),
        with_partitions=with_partitions,
        partition=partition,
    )
    return None if rows is None else (target, rows)


# Each line is parsed where it begins, and has to end at a line end. Parsing a block as one array,
# with commas for the line ends, is no faster, and an array or a text could then span two lines.
def _objects(block: bytes) -> list[dict[str, Any]] | None:
    """Return the object of each line; ``None``: a line is something else, or not simple."""
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    found: list[dict[str, Any]] = []
    at, end = 0, len(text)
    while at < end:
        try:
            thing, at = _parse(text, at)
        except (ValueError, RecursionError, StopIteration):
            return None
        found.append(thing)
        if at < end and text[at] == "\r":
            at += 1
        if at < end and text[at] != "\n":
            return None
        at += 1
    lines = text.count("\n") + (not text.endswith("\n"))  # an object may have line ends, too
    return found if len(found) == lines and set(map(type, found)) == {dict} else None
