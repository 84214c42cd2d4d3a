"""How many things a request asks for by name: what bounds the response to it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def _each(field: str) -> Callable[[Any], int | None]:
    """So many as ``field`` has; ``None`` there asks for all that there are."""

    def count(request: Any) -> int | None:
        names: Sequence[Any] | None = getattr(request, field)
        return None if names is None else len(names)

    return count


def _partitions(topics: Any, field: str) -> int | None:
    return None if topics is None else sum(len(getattr(topic, field)) for topic in topics)


def _committed(request: Any) -> int | None:
    """The partitions of one group, which stand in one place before version 8 and in another from there on."""
    asked = [_partitions(where.topics, "partition_indexes") for where in request.groups or [request]]
    return None if None in asked else sum(filter(None, asked))


_COUNTS: Mapping[str, Callable[[Any], int | None]] = {
    "MetadataRequest": _each("topics"),
    "OffsetFetchRequest": _committed,
    "DescribeGroupsRequest": _each("groups"),
    "ConsumerGroupDescribeRequest": _each("group_ids"),
    "DescribeConfigsRequest": _each("resources"),
    "DescribeTopicPartitionsRequest": lambda request: 0,  # a page of as many partitions as it says, whatever it names
    "DescribeTransactionsRequest": _each("transactional_ids"),
    "DescribeProducersRequest": lambda request: _partitions(request.topics, "partition_indexes"),
}


def count_asked(request: Any) -> int | None:
    """The topics, groups, partitions and the like that ``request`` names; ``None`` where it asks for all, or names none."""
    count = _COUNTS.get(request.name)
    return None if count is None else count(request)
