"""The checks of partitions, records, offsets and groups that callers pass. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from .._wire import _format
from .._wire.columns import RecordBatch
from ..config.text import in_place_of, plain_text
from ..config.topics import check_topic_name
from ..config.whole import is_whole, whole
from ..errors import ConfigurationError
from ..types import AnyRecord, GroupMetadata, OffsetAndMetadata, Record, TopicPartition

#: The largest number of bytes that a string in a request may have.
_LONGEST_NOTE = 2**15 - 1
#: NumPy's codes for the types of numbers and times: truth values, signed and unsigned integers,
#: real and complex numbers, spans (``timedelta64``) and points of time (``datetime64``).
_NUMBERS_AND_TIMES = ("b", "i", "u", "f", "c", "m", "M")
#: Headers as callers pass them: pairs of a name and a value.
HeaderPairs = Sequence[tuple[str, bytes | None]]
#: What can be committed: offsets of the next records to process, or processed records.
ToCommit = (
    Mapping[TopicPartition, OffsetAndMetadata | int]
    | AnyRecord
    | RecordBatch[Any, Any]
    | Iterable[AnyRecord | RecordBatch[Any, Any]]
)


def checked_partition(given: Any) -> TopicPartition:
    """Return the partition that a caller named, checked.

    Raises:
        ConfigurationError: ``given`` is not a partition; the message shows what is wrong.
    """
    try:
        topic, number = given
    except (TypeError, ValueError):
        raise ConfigurationError(
            "a partition is a TopicPartition(topic, number), not "
            f"{in_place_of(TopicPartition, given)}"
        ) from None
    if not isinstance(topic, str) or not topic:
        raise ConfigurationError(f"a partition's topic must be a name, not {topic!r}")
    topic = check_topic_name(topic)
    number = whole(number)
    if not is_whole(number, most=_format.MAX_INT32):
        raise ConfigurationError(
            f"a partition's number must be a whole number from 0{_most(number)}, not {number!r}"
        )
    return TopicPartition(topic, number)


def checked_partitions(given: Iterable[Any]) -> list[TopicPartition]:
    """Return the partitions that a caller named, checked.

    Raises:
        ConfigurationError: ``given`` is not a collection, or an item is not a partition.
    """
    if is_one_partition(given):
        raise of_one_partition(given)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(
            "partitions must be a collection of TopicPartition(topic, number), not "
            f"{in_place_of(TopicPartition, given)}"
        )
    return [checked_partition(tp) for tp in given]


def is_one_partition(given: object) -> TypeGuard[tuple[str, int]]:
    """Return whether this is one partition: a TopicPartition, or a tuple with the same parts.

    The TopicPartition of aiokafka and that of kafka-python are such tuples.
    """
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], str)
        and isinstance(given[1], int)
    )


def of_one_partition(given: tuple[str, int]) -> ConfigurationError:
    """Return the error for one partition in place of a collection; it is a tuple itself."""
    topic, partition = given
    return ConfigurationError(
        "partitions must be a collection, not one partition; write "
        f"[TopicPartition({topic!r}, {partition!r})]"
    )


def check_target(topic: object, partition: object) -> str:
    """Return the topic's name as a plain string, after checking topic and partition.

    Args:
        topic: The topic's name.
        partition: The partition's number; ``None`` if it is not given.

    Raises:
        ConfigurationError: ``topic`` cannot be a topic's name, or ``partition`` no partition's
            number.
    """
    if not isinstance(topic, str) or not topic:
        raise ConfigurationError(f"topic must be a name, not {topic!r}")
    topic = check_topic_name(topic)
    if partition is not None and not is_whole(partition, most=_format.MAX_INT32):
        raise ConfigurationError(
            f"partition must be a whole number from 0{_most(partition)}, not {partition!r}"
        )
    return topic


def _most(given: object) -> str:
    most = _format.MAX_INT32
    return f" to {most}" if isinstance(given, int) and given > most else ""


def as_bytes(what: str, data: object) -> bytes | None:
    """Return ``data`` as bytes; ``None`` for an Arrow scalar that is null.

    Raises:
        TypeError: ``data`` is not bytes-like.
    """
    if isinstance(data, str):
        raise TypeError(f"{what} must be bytes, not str; encode it first: {what}={what}.encode()")
    try:
        if hasattr(data, "as_buffer"):  # an Arrow scalar
            data = data.as_buffer()
            return None if data is None else bytes(memoryview(data))  # type: ignore[arg-type]
        view = memoryview(data)  # type: ignore[arg-type]
        if not _has_other_content(data, view):
            return bytes(view)
    except (TypeError, ValueError):  # ValueError: a memoryview that was released
        pass
    raise TypeError(
        f"{what} must be bytes-like or None, not {type(data).__name__}{_cure(what, data)}"
    )


# Every value of NumPy gives access to its memory, as bytes do. A number or a time, such as a key
# from a column of pandas, would be written as its eight bytes in memory, where a program means its
# text. An array of Python objects has their addresses, which mean nothing to a reader. An array of
# numbers is accepted, as the arrays of other libraries are.
def _has_other_content(data: object, view: memoryview) -> bool:
    """Return whether the memory of ``data`` is not what its user means: see above."""
    has_objects = view.format == "O" or getattr(getattr(data, "dtype", None), "hasobject", False)
    return has_objects or _is_single_of_numpy(data)


def _is_single_of_numpy(data: object) -> bool:
    """Return whether ``data`` is a single number or time of NumPy."""
    kind = getattr(getattr(data, "dtype", None), "kind", "")
    return kind in _NUMBERS_AND_TIMES and getattr(data, "ndim", None) == 0


def _cure(what: str, data: object) -> str:
    name, to = (what, f"{what}=") if what.isidentifier() else ("value", "")  # of a header
    such = ""
    if isinstance(data, dict | list | tuple):
        such = f", such as {to}json.dumps({name}).encode()"
    elif hasattr(type(data), "__dataclass_fields__"):
        such = f", such as {to}json.dumps(dataclasses.asdict({name})).encode()"
    elif type(data) in (int, float) or _is_single_of_numpy(data):
        such = f", such as {to}str({name}).encode()"
    return f"; encode it first{such}"


def check_headers(headers: HeaderPairs) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """Return the headers with their values as bytes, and the most bytes they take in a batch.

    Raises:
        TypeError: ``headers`` are not pairs of a name and a value.
    """
    checked = []
    size = 0
    if isinstance(headers, Mapping) and headers:  # a name may occur twice, and the order counts
        raise TypeError(
            "headers must be pairs of a name and a value, not a dict: write "
            "headers=list(headers.items())"
        )
    # An iterator would be empty when it is read again.
    if isinstance(headers, Iterator) or not isinstance(headers, Iterable):
        raise TypeError(
            f"headers must be a list of pairs of a name and a value, not {type(headers).__name__}"
        )
    for header in headers:
        if (
            not isinstance(header, tuple | list)
            or len(header) != 2
            or not isinstance(header[0], str)
        ):
            raise TypeError(
                f"headers must be pairs of a name (str) and a value (bytes or None), not {header!r}"
            )
        name, value = header
        if isinstance(value, str):
            raise TypeError(
                f"header value must be bytes, not str; encode it first: ({name!r}, "
                f"{value!r}.encode())"
            )
        value = None if value is None else as_bytes("header value", value)
        size += _format.HEADER_OVERHEAD + len(_encoded(name)) + (0 if value is None else len(value))
        checked.append((name, value))
    return tuple(checked), size


def _encoded(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise TypeError(
            f"a header's name must be text that can be written as UTF-8, not {name!r}"
        ) from None


def check_timestamp(timestamp: object) -> int:
    """Return ``timestamp`` as an ``int``, checked.

    Raises:
        ConfigurationError: ``timestamp`` is not a whole number of milliseconds from 0.
    """
    if type(timestamp) is not int:
        timestamp = whole(timestamp)
    if type(timestamp) is not int or not 0 <= timestamp <= _format.MAX_TIMESTAMP:
        raise ConfigurationError(
            f"timestamp must be milliseconds since the epoch, from 0 to {_format.MAX_TIMESTAMP}, "
            f"not {timestamp!r}{_milliseconds(timestamp)}"
        )
    return timestamp


def _milliseconds(given: object) -> str:
    """Return the hint how to convert a time into milliseconds; empty for an unknown kind."""
    if isinstance(given, float):
        return "; write int(time.time() * 1000) for a whole number"
    if callable(getattr(given, "timestamp", None)):  # a datetime, or the like of other libraries
        return "; for a datetime write int(when.timestamp() * 1000)"
    return ""


def topic_names(topics: Iterable[str]) -> list[str]:
    """Return the names of topics that a caller passed, checked.

    Raises:
        ConfigurationError: ``topics`` is one string, or an item is not a topic's name.
    """
    if isinstance(topics, str):
        raise ConfigurationError(
            f"topics must be a collection of names, not the text {topics!r}; write [{topics!r}]"
        )
    if not isinstance(topics, Iterable):
        raise ConfigurationError(f"topics must be a collection of names, not {topics!r}")
    names = list(topics)
    if wrong := [name for name in names if not isinstance(name, str) or not name]:
        raise ConfigurationError(f"a topic must be a name, not {wrong[0]!r}")
    return [check_topic_name(name) for name in names]


def offset_and_metadata(tp: TopicPartition, value: OffsetAndMetadata | int) -> OffsetAndMetadata:
    """Return what a caller passed to be committed for ``tp``, checked.

    Raises:
        ConfigurationError: The offset, the leader epoch or the note cannot be committed.
    """
    number = whole(value)
    position = OffsetAndMetadata(number) if is_whole(number) else value
    if isinstance(position, OffsetAndMetadata):
        exact = (whole(position.offset), whole(position.leader_epoch))
        if exact[0] is not position.offset or exact[1] is not position.leader_epoch:
            position = replace(position, offset=exact[0], leader_epoch=exact[1])
    if not isinstance(position, OffsetAndMetadata) or not is_whole(
        position.offset, most=_format.MAX_INT64
    ):
        raise ConfigurationError(
            f"the offset to commit for {tp} must be a whole number from 0 or an "
            f"OffsetAndMetadata, not {in_place_of(OffsetAndMetadata, value)}"
        )
    epoch, note = position.leader_epoch, position.metadata
    if not isinstance(note, str):
        raise ConfigurationError(
            f"the metadata of the offset to commit for {tp} must be text, not {note!r}"
        )
    if epoch is not None and not is_whole(epoch, most=_format.MAX_INT32):
        raise ConfigurationError(
            f"the leader epoch of the offset to commit for {tp} must be a whole number from 0, or "
            f"None, not {epoch!r}"
        )
    # A broker closes the connection on a longer note, without a response.
    if (size := len(note.encode(errors="replace"))) > _LONGEST_NOTE:
        raise ConfigurationError(
            f"the note beside the offset for {tp} has {size} bytes, and at most {_LONGEST_NOTE} "
            "can be sent"
        )
    return position if type(note) is str else replace(position, metadata=plain_text(note))


def position_to_seek(given: OffsetAndMetadata | int) -> tuple[int, int | None]:
    """Return the offset and the leader epoch that a caller seeks to, checked.

    A wrong epoch must be refused here: it would be part of every fetch from that broker, and would
    stop the broker's other partitions, too.

    Raises:
        ConfigurationError: The offset or the epoch is not a whole number from 0.
    """
    offset: object = given
    epoch: object = None
    if isinstance(given, OffsetAndMetadata):
        offset, epoch = given.offset, given.leader_epoch
    offset = whole(offset)
    epoch = whole(epoch)
    if not is_whole(offset, most=_format.MAX_INT64):
        # A result of offsets_for_times, or a record.
        inside = "; pass its offset" if hasattr(offset, "offset") else ""
        raise ConfigurationError(f"an offset must be a whole number from 0, not {offset!r}{inside}")
    if epoch is not None and not is_whole(epoch, most=_format.MAX_INT32):
        raise ConfigurationError(
            f"a leader epoch must be a whole number from 0, or None, not {epoch!r}"
        )
    return offset, epoch


def times_to_find(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the time to look up in each partition, checked.

    Raises:
        TypeError: ``given`` is not a mapping.
        ConfigurationError: A time is not a whole number of milliseconds from 0.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"timestamps must be a mapping of partitions to times, not {given!r}")
    found: dict[TopicPartition, int] = {}
    for tp, timestamp in given.items():
        time = whole(timestamp)
        if not is_whole(time, most=_format.MAX_INT64):
            raise ConfigurationError(
                f"the time for {tp} must be milliseconds since the epoch, from 0 to "
                f"{_format.MAX_INT64}, not {timestamp!r}{_milliseconds(timestamp)}"
            )
        found[checked_partition(tp)] = time
    return found


def check_group(group: GroupMetadata) -> GroupMetadata:
    """Return ``group``, checked.

    Raises:
        ConfigurationError: The ids are not text, ``group_id`` is empty, or the generation is not a
            whole number from -1.
    """
    instance = group.group_instance_id
    texts = (group.group_id, group.member_id, "" if instance is None else instance)
    generation = whole(group.generation)
    if not all(isinstance(text, str) for text in texts) or not group.group_id:
        raise ConfigurationError(f"group must name a group, and a member of it, not {group!r}")
    if not is_whole(generation, -1, _format.MAX_INT32):
        raise ConfigurationError(
            f"group: the generation must be a whole number from 0, or -1, not {generation!r}"
        )
    if generation is group.generation and all(type(text) is str for text in texts):
        return group
    return replace(
        group,
        group_id=plain_text(group.group_id),
        generation=generation,
        member_id=plain_text(group.member_id),
        group_instance_id=plain_text(group.group_instance_id),
    )


def offsets_to_commit(given: ToCommit) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that the argument of a commit stands for.

    Raises:
        TypeError: An item is neither a mapping, a record nor a batch.
    """
    if isinstance(given, Mapping):
        return {
            checked_partition(tp): offset_and_metadata(tp, value) for tp, value in given.items()
        }
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    items = (
        given
        if isinstance(given, Iterable) and not isinstance(given, Record | RecordBatch)
        else [given]
    )
    for item in items:
        if not isinstance(item, Record | RecordBatch):
            raise TypeError(
                "offsets to commit must be a mapping of partitions to offsets, records or batches, "
                f"not {item!r}"
            )
        tp = TopicPartition(item.topic, item.partition)
        after = item.offset + 1 if isinstance(item, Record) else item.next_offset
        if item and (tp not in found or found[tp].offset < after):
            found[tp] = OffsetAndMetadata(after)
    return found
