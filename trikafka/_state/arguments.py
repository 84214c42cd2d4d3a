"""What a caller may give as a partition, or as the parts of a record. No I/O."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._wire import _format
from ..config.topics import check_topic_name
from ..errors import ConfigurationError
from ..types import GroupMetadata, OffsetAndMetadata, TopicPartition

#: The most bytes that a text in a request may have.
_LONGEST_NOTE = 2**15 - 1
#: Headers as they are given: pairs of a name and a value.
HeaderPairs = Sequence[tuple[str, bytes | None]]


def checked_partition(given: Any) -> TopicPartition:
    """A partition that a user named, checked. Raises :exc:`ConfigurationError` that shows what is wrong."""
    try:
        topic, number = given
    except (TypeError, ValueError):
        raise ConfigurationError(f"a partition is a TopicPartition(topic, number), not {given!r}") from None
    if not isinstance(topic, str) or not topic:
        raise ConfigurationError(f"a partition's topic must be a name, not {topic!r}")
    check_topic_name(topic)
    if not _is_number(number, _format.MAX_INT32):
        raise ConfigurationError(f"a partition's number must be a whole number from 0{_most(number)}, not {number!r}")
    return TopicPartition(topic, number)


def check_target(topic: object, partition: object) -> str:
    """The topic's name, as a plain text: the member of an enum is one, too, but not what names are looked up by.

    Raises :exc:`ConfigurationError` for what cannot be a topic's name, or a partition (``None``: not given).
    """
    if not isinstance(topic, str) or not topic:
        raise ConfigurationError(f"topic must be a name, not {topic!r}")
    check_topic_name(topic)
    if partition is not None and not _is_number(partition, _format.MAX_INT32):
        raise ConfigurationError(f"partition must be a whole number from 0{_most(partition)}, not {partition!r}")
    return plain(topic)


def plain(name: str) -> str:
    """The text of a name that is perhaps the member of an enum, which is written, and shown, by its own name."""
    return str.__str__(name)


def _is_number(given: object, most: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= most


def _most(given: object, most: int = _format.MAX_INT32) -> str:
    return f" to {most}" if isinstance(given, int) and given > most else ""


def as_bytes(what: str, data: object) -> bytes | None:
    """``data`` as bytes; ``None`` of an Arrow scalar that is null. Raises :exc:`TypeError` for what is not bytes-like."""
    if isinstance(data, str):
        raise TypeError(f"{what} must be bytes, not str; encode it first: {what}={what}.encode()")
    try:
        if hasattr(data, "as_buffer"):  # an Arrow scalar
            data = data.as_buffer()
            return None if data is None else bytes(memoryview(data))  # type: ignore[arg-type]
        return bytes(memoryview(data))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # the second: a view that was released
        raise TypeError(f"{what} must be bytes-like or None, not {type(data).__name__}{_cure(what, data)}") from None


def _cure(what: str, data: object) -> str:
    name, to = (what, f"{what}=") if what.isidentifier() else ("value", "")  # of a header
    if isinstance(data, dict | list | tuple):
        return f"; encode it first, such as {to}json.dumps({name}).encode()"
    return f"; encode it first, such as {to}str({name}).encode()" if type(data) in (int, float) else ""


def check_headers(headers: HeaderPairs) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """Return the headers with their values as bytes, and the most that they take in a batch."""
    checked = []
    size = 0
    if isinstance(headers, Mapping):  # a name may stand there twice, and their order counts
        raise TypeError("headers must be pairs of a name and a value, not a dict: write headers=list(headers.items())")
    if isinstance(headers, Iterator) or not isinstance(headers, Iterable):  # an iterator would be empty when it is read again
        raise TypeError(f"headers must be a list of pairs of a name and a value, not {type(headers).__name__}")
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"headers must be pairs of a name (str) and a value (bytes or None), not {header!r}")
        name, value = header
        if isinstance(value, str):
            raise TypeError(f"header value must be bytes, not str; encode it first: ({name!r}, {value!r}.encode())")
        value = None if value is None else as_bytes("header value", value)
        size += _format.HEADER_OVERHEAD + len(_encoded(name)) + (0 if value is None else len(value))
        checked.append((name, value))
    return tuple(checked), size


def _encoded(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise TypeError(f"a header's name must be text that can be written as UTF-8, not {name!r}") from None


def check_timestamp(timestamp: object) -> int:
    """``timestamp``, if it is one."""
    if type(timestamp) is not int or not 0 <= timestamp <= _format.MAX_TIMESTAMP:
        raise ConfigurationError(f"timestamp must be milliseconds since the epoch, at least 0, not {timestamp!r}")
    return timestamp


def topic_names(topics: Iterable[str]) -> list[str]:
    """The names of topics that a user gave, checked. Raises :exc:`ConfigurationError`."""
    if isinstance(topics, str):
        raise ConfigurationError(f"topics must be a collection of names, not the text {topics!r}; write [{topics!r}]")
    names = list(topics)
    if wrong := [name for name in names if not isinstance(name, str) or not name]:
        raise ConfigurationError(f"a topic must be a name, not {wrong[0]!r}")
    return [check_topic_name(name) for name in names]


def offset_and_metadata(tp: TopicPartition, value: OffsetAndMetadata | int) -> OffsetAndMetadata:
    """What a user gave to be committed for ``tp``, checked. Raises :exc:`ConfigurationError`."""
    position = OffsetAndMetadata(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(position, OffsetAndMetadata) and type(position.offset) not in (int, bool):
        position = replace(position, offset=_whole(position.offset))
    if not isinstance(position, OffsetAndMetadata) or not _is_number(position.offset, _format.MAX_INT64):
        raise ConfigurationError(
            f"the offset to commit for {tp} must be a whole number from 0 or an OffsetAndMetadata, not {value!r}"
        )
    epoch, note = position.leader_epoch, position.metadata
    if not isinstance(note, str) or not (epoch is None or _is_number(epoch, _format.MAX_INT32)):
        raise ConfigurationError(f"what is noted beside the offset to commit for {tp} must be text, and a leader epoch: {value!r}")
    if (size := len(note.encode(errors="replace"))) > _LONGEST_NOTE:  # a broker hangs up on it, and says nothing
        raise ConfigurationError(f"the note beside the offset for {tp} has {size} bytes, and at most {_LONGEST_NOTE} can be sent")
    return position


def _whole(number: object) -> Any:
    """``number`` as Python's own, if it is a whole one of another kind, such as numpy's."""
    return operator.index(number) if hasattr(number, "__index__") else number


def check_group(group: GroupMetadata) -> GroupMetadata:
    """``group``, if it names a group and a member of it. Raises :exc:`ConfigurationError`."""
    texts = (group.group_id, group.member_id, group.group_instance_id or "")
    generation = group.generation
    if not all(isinstance(text, str) for text in texts) or not group.group_id:
        raise ConfigurationError(f"group must name a group, and a member of it, not {group!r}")
    if generation != -1 and not _is_number(generation, _format.MAX_INT32):
        raise ConfigurationError(f"group: the generation must be a whole number from 0, or -1, not {generation!r}")
    return group
