"""Faults of responses: omitted parts and damaged bytes.

Pure functions over messages and frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from .messages import Message

#: A function that changes the bytes of a whole frame, its length included.
Change: TypeAlias = Callable[[bytes], bytes]

_INDEXES = ("partition_index", "partition", "index")
_NAMES = ("name", "topic")


def flip(frame: bytes) -> bytes:
    """Invert one byte in the middle of the message; the length stays correct."""
    place = 8 + (len(frame) - 8) // 2
    return frame[:place] + bytes([frame[place] ^ 0xFF]) + frame[place + 1 :]


def cut(frame: bytes) -> bytes:
    """Cut the message in the middle; the frame's length fits the rest."""
    body = frame[4 : max(8, len(frame) // 2)]
    return len(body).to_bytes(4, "big") + body


def strange_id(frame: bytes) -> bytes:
    """Change the correlation id to one of no request."""
    return (
        frame[:4] + (int.from_bytes(frame[4:8], "big") ^ 0x40000000).to_bytes(4, "big") + frame[8:]
    )


def leave_out(message: Message, topic: str, topic_id: Any, partition: int | None) -> bool:
    """Remove a partition, or a whole topic, from a response; return whether it was there.

    A topic without partitions left is removed as well.
    """
    found = False
    for name in _lists(message):
        items = getattr(message, name) or ()
        if any(_is_topic(item, topic, topic_id) for item in items):
            found |= any(_has(item, topic, topic_id, partition) for item in items)
            setattr(
                message,
                name,
                [item for item in items if not _emptied(item, topic, topic_id, partition)],
            )
        else:
            for item in items:
                found |= leave_out(item, topic, topic_id, partition)
    return found


def _lists(message: Message) -> list[str]:
    return [name for name, field in message.fields.items() if field.is_struct_array()]


def _is_topic(item: Message, topic: str, topic_id: Any) -> bool:
    names = [getattr(item, name) for name in _NAMES if name in item.fields]
    # A version without topic ids has `None` there, as has a topic that does not exist.
    return topic in names or (
        topic_id is not None and "topic_id" in item.fields and item.topic_id == topic_id
    )


def _has(item: Message, topic: str, topic_id: Any, partition: int | None) -> bool:
    """Return whether this is the topic, with that partition if one is given."""
    return _is_topic(item, topic, topic_id) and (
        partition is None or partition in map(_index, _partitions(item))
    )


def _partitions(item: Message) -> list[Message]:
    return [
        part
        for name in _lists(item)
        for part in getattr(item, name) or ()
        if any(index in part.fields for index in _INDEXES)
    ]


def _emptied(item: Message, topic: str, topic_id: Any, partition: int | None) -> bool:
    if not _is_topic(item, topic, topic_id):
        return False
    if partition is None:
        return True
    for name in _lists(item):
        parts = getattr(item, name)
        if parts and any(index in parts[0].fields for index in _INDEXES):
            setattr(item, name, [part for part in parts if _index(part) != partition])
            return not getattr(item, name)
    return False


def _index(part: Message) -> int:
    return int(next(getattr(part, name) for name in _INDEXES if name in part.fields))
