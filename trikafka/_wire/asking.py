"""The names in a request, which bound its response in size and in content. No I/O.

A broker's response names only topics, partitions, groups and the like that the request has named. A
response with other names is damaged, belongs to another request, or comes from a peer that is not
Kafka. The code that reads it would fail to find these names among its own. So
:func:`keep_requested` removes them from each decoded response first. Fetch and Produce do without:
their readers look up each partition in the request.

A response may also leave out a name. Usually the rest of it is still of use, and its reader handles
the gap. A response that is only of use as a whole (:data:`_WHOLE`) is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_log = logging.getLogger("trikafka.connection")
#: The number of names that a line of the log or an error shows.
_SHOWN = 5


def _each(field: str) -> Callable[[Any], int | None]:
    """Return a function that counts a request's ``field``; ``None`` there means all."""

    def count(request: Any) -> int | None:
        names: Sequence[Any] | None = getattr(request, field)
        return None if names is None else len(names)

    return count


def _partitions(topics: Any, field: str) -> int | None:
    return None if topics is None else sum(len(getattr(topic, field)) for topic in topics)


def _committed(request: Any) -> int | None:
    """Return the number of partitions in an OffsetFetch request.

    Up to version 7 they stand in the request itself, and later in its ``groups``.
    """
    asked = [
        _partitions(where.topics, "partition_indexes") for where in request.groups or [request]
    ]
    return None if None in asked else sum(filter(None, asked))


_COUNTS: Mapping[str, Callable[[Any], int | None]] = {
    "MetadataRequest": _each("topics"),
    "OffsetFetchRequest": _committed,
    "DescribeGroupsRequest": _each("groups"),
    "ConsumerGroupDescribeRequest": _each("group_ids"),
    "ShareGroupDescribeRequest": _each("group_ids"),
    "StreamsGroupDescribeRequest": _each("group_ids"),
    "DescribeConfigsRequest": _each("resources"),
    # The bounds of these responses do not depend on names in the request.
    "DescribeTopicPartitionsRequest": lambda request: 0,
    "DescribeClusterRequest": lambda request: 0,
    "DescribeQuorumRequest": lambda request: 0,
    "DescribeTransactionsRequest": _each("transactional_ids"),
    "DescribeProducersRequest": lambda request: _partitions(request.topics, "partition_indexes"),
}


def count_asked(request: Any) -> int | None:
    """Return the number of topics, groups, partitions and the like that ``request`` names.

    ``None``: the request asks for all of them, or is not in the table.
    """
    count = _COUNTS.get(request.name)
    return None if count is None else count(request)


class _Names(NamedTuple):
    """A list of a request and the list of its response that may name only the same items.

    Attributes:
        requested: The field of the request that has the list.
        responded: The field of the response that has the list.
        keys: The fields that identify an item of the response.
        inside: The lists inside each item, such as the partitions of a topic.
        keys_requested: The fields that identify an item of the request; ``None``: as ``keys``.
            Empty if the items of the request are the names themselves.
    """

    requested: str
    responded: str
    keys: tuple[str, ...]
    inside: _Names | None = None
    keys_requested: tuple[str, ...] | None = None


#: Items of a request that are the names themselves, such as numbers of partitions.
_PLAIN: tuple[str, ...] = ()
_PARTITIONS = _Names("partitions", "partitions", ("partition_index",))
_NUMBERS = _Names("partitions", "partitions", ("partition_index",), None, _PLAIN)
_LISTED = _Names("partition_indexes", "partitions", ("partition_index",), None, _PLAIN)
_BY_NAME, _BY_ID, _BY_GROUP = ("name",), ("topic_id",), ("group_id",)
_TOPICS = _Names("topics", "topics", _BY_NAME, _PARTITIONS)
_TOPICS_BY_ID = _Names("topics", "topics", _BY_ID, _PARTITIONS)
_TOPICS_LISTED = _Names("topics", "topics", _BY_NAME, _LISTED)
_TOPICS_LISTED_BY_ID = _Names("topics", "topics", _BY_ID, _LISTED)
_GROUPS_DESCRIBED = _Names("group_ids", "groups", _BY_GROUP, None, _PLAIN)
#: A DeleteTopics request has either names or ids. The response to ids has names, too.
_DELETED = _Names("topics", "responses", _BY_NAME)
_DELETED_BY_ID = _Names("topics", "responses", _BY_ID)
#: The names that the response to each kind of request may have, by the version from which on.
#:
#: Some requests are missing here: those without names; Metadata, because the metadata manager
#: itself refuses a response with other topics; and LeaveGroup, because any error in its response
#: concerns the one member that leaves.
_NAMES: Mapping[str, Mapping[int, _Names]] = {
    "ListOffsetsRequest": {0: _TOPICS},
    "OffsetForLeaderEpochRequest": {
        0: _Names(
            "topics", "topics", ("topic",), _Names("partitions", "partitions", ("partition",))
        )
    },
    "OffsetCommitRequest": {0: _TOPICS, 10: _TOPICS_BY_ID},
    "OffsetFetchRequest": {
        0: _TOPICS_LISTED,
        8: _Names("groups", "groups", _BY_GROUP, _TOPICS_LISTED),
        10: _Names("groups", "groups", _BY_GROUP, _TOPICS_LISTED_BY_ID),
    },
    "TxnOffsetCommitRequest": {0: _TOPICS, 6: _TOPICS_BY_ID},
    "AddPartitionsToTxnRequest": {
        0: _Names(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            _BY_NAME,
            _NUMBERS._replace(responded="results_by_partition"),
        )
    },
    "WriteTxnMarkersRequest": {
        0: _Names("markers", "markers", ("producer_id",), _TOPICS_LISTED),
    },
    "FindCoordinatorRequest": {
        4: _Names("coordinator_keys", "coordinators", ("key",), None, _PLAIN)
    },
    "CreateTopicsRequest": {0: _Names("topics", "topics", _BY_NAME)},
    "DeleteTopicsRequest": {
        0: _Names("topic_names", "responses", _BY_NAME, None, _PLAIN),
        6: _DELETED,
    },
    "CreatePartitionsRequest": {0: _Names("topics", "results", _BY_NAME)},
    "DescribeConfigsRequest": {
        0: _Names("resources", "results", ("resource_type", "resource_name"))
    },
    "IncrementalAlterConfigsRequest": {
        0: _Names("resources", "responses", ("resource_type", "resource_name"))
    },
    "DeleteRecordsRequest": {0: _TOPICS},
    "OffsetDeleteRequest": {0: _TOPICS},
    "DescribeGroupsRequest": {0: _Names("groups", "groups", _BY_GROUP, None, _PLAIN)},
    "ConsumerGroupDescribeRequest": {0: _GROUPS_DESCRIBED},
    "ShareGroupDescribeRequest": {0: _GROUPS_DESCRIBED},
    "StreamsGroupDescribeRequest": {0: _GROUPS_DESCRIBED},
    "DescribeShareGroupOffsetsRequest": {
        0: _Names(
            "groups", "groups", _BY_GROUP, _Names("topics", "topics", ("topic_name",), _NUMBERS)
        )
    },
    "AlterShareGroupOffsetsRequest": {
        0: _Names("topics", "responses", ("topic_name",), _PARTITIONS)
    },
    "DeleteShareGroupOffsetsRequest": {0: _Names("topics", "responses", ("topic_name",))},
    "AlterPartitionReassignmentsRequest": {0: _Names("topics", "responses", _BY_NAME, _PARTITIONS)},
    "ListPartitionReassignmentsRequest": {0: _TOPICS_LISTED},
    "ElectLeadersRequest": {
        0: _Names(
            "topic_partitions",
            "replica_election_results",
            ("topic",),
            _Names("partitions", "partition_result", ("partition_id",), None, _PLAIN),
        )
    },
    "UpdateFeaturesRequest": {0: _Names("feature_updates", "results", ("feature",))},
    "DeleteGroupsRequest": {0: _Names("groups_names", "results", _BY_GROUP, None, _PLAIN)},
    "DescribeTransactionsRequest": {
        0: _Names("transactional_ids", "transaction_states", ("transactional_id",), None, _PLAIN)
    },
    "DescribeProducersRequest": {0: _TOPICS_LISTED},
}
#: The requests whose responses are useless unless they are complete.
_WHOLE = {
    "FindCoordinatorRequest",
    "DescribeConfigsRequest",
    "DescribeTransactionsRequest",
    "WriteTxnMarkersRequest",
}


def names_something(request: Any) -> bool:
    """Return whether the response must be checked against the names in ``request``."""
    return request.name in _NAMES


def keep_requested(request: Any, response: Any, version: int) -> None:
    """Remove from ``response`` the items that ``request`` did not name, and duplicates.

    Of duplicates the first one is kept: no other is better, and each attempt keeps the same one.

    Raises:
        ValueError: A response that is only of use as a whole leaves out something.
    """
    if (names := _names_of(request, version)) is None:
        return
    if (left := _requested(names, request)) is None:
        return
    strange: list[str] = []
    _keep(names, left, response, strange)
    if strange:
        _log.debug(
            "a response to %s has names that were not requested, or duplicates: %s",
            request.name,
            _shown(strange),
        )
    if request.name in _WHOLE and (silent := list(_leaves(left))):
        raise ValueError(f"it leaves out {_shown(silent)}, which was requested")


def _names_of(request: Any, version: int) -> _Names | None:
    found = None
    for since, names in _NAMES.get(request.name, {}).items():
        if version >= since:
            found = names
    if found is _DELETED and request.topics and request.topics[0].name is None:
        return _DELETED_BY_ID
    return found


#: The requested items that were not found yet, by key, with the items inside each.
_Left = dict[tuple[Any, ...], Any]


def _requested(names: _Names, request: Any) -> _Left | None:
    """Return the items that ``request`` names; ``None``: it asks for all there are."""
    if (asked := getattr(request, names.requested)) is None:
        return None
    inside = names.inside
    fields = names.keys if names.keys_requested is None else names.keys_requested
    return {
        _key(item, fields) if fields else (item,): inside and _requested(inside, item)
        for item in asked
    }


def _key(item: Any, fields: Iterable[str]) -> tuple[Any, ...]:
    return tuple(getattr(item, field) for field in fields)


def _keep(names: _Names, left: _Left, response: Any, strange: list[str]) -> None:
    """Keep the items of the response that are in ``left``, and remove them from ``left``.

    A topic may occur twice in a response, with different partitions.
    """
    if (items := getattr(response, names.responded)) is None:
        return
    kept = []
    for item in items:
        key = _key(item, names.keys)
        if key not in left:
            strange.append(_text(key))
        elif names.inside is None:
            del left[key]
            kept.append(item)
        else:
            kept.append(item)
            if left[key] is not None:
                _keep(names.inside, left[key], item, strange)
    if len(kept) != len(items):
        items[:] = kept  # in place, since the response holds this list


def _leaves(left: _Left) -> Iterator[str]:
    for key, inside in left.items():
        if inside is None:
            yield _text(key)
        else:
            yield from (f"{_text(key)}-{each}" for each in _leaves(inside))


def _text(key: tuple[Any, ...]) -> str:
    return "-".join(map(str, key))


def _shown(names: Iterable[str]) -> str:
    """Return a few of the names for a log line or an error.

    The peer has chosen them, so control characters are escaped and long names are cut.
    """
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name[:100]) for name in names[:_SHOWN]) + more
