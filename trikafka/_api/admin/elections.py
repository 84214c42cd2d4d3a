"""The election of partitions' leaders (KIP-460): requests and responses."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from kafka.protocol.admin import ElectLeadersRequest

from ..._net.deadlines import RunningCall
from ...errors import ConfigurationError, ErrorCode, from_code
from ...types import TopicPartition
from .messages import by_topic, of_partition
from .routing import Parts, Routing

Election: TypeAlias = Literal["preferred", "unclean"]
_TYPES: dict[Election, int] = {"preferred": 0, "unclean": 1}
#: The version that has unclean elections.
_SINCE_UNCLEAN = 1


def check_election(kind: str) -> None:
    """Raise :exc:`ConfigurationError` unless the value is a kind of election."""
    if kind not in get_args(Election):
        raise ConfigurationError(
            f"the kind of an election is one of {', '.join(get_args(Election))}, not {kind!r}"
        )


async def elect(
    routing: Routing,
    call: RunningCall,
    parts: Parts[TopicPartition, bool],
    kind: Election,
    *,
    everywhere: bool,
) -> None:
    """Let the controller elect leaders of the partitions that are left, or of all.

    The response about all partitions names only those that have a new leader, or should have one.
    """
    asked = parts.left
    response = await routing.request(call, "controller", _request(asked, call, kind, everywhere))
    if response.error_code:
        raise from_code(response.error_code, "the election of leaders", operation="Alter")
    results: dict[TopicPartition, Any] = {
        TopicPartition(topic.topic, part.partition_id): part
        for topic in response.replica_election_results
        for part in topic.partition_result
    }
    for tp, part in results.items():
        if everywhere:
            parts.add(tp)
        if part.error_code in (0, ErrorCode.ELECTION_NOT_NEEDED):
            parts.done(tp, not part.error_code)
            continue
        error = of_partition(tp, part.error_code, part.error_message, "Alter")
        # A broker that is down may be down for hours: waiting for it is the caller's decision.
        if part.error_code in (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ):
            error.retriable = False
        parts.failed(tp, error)
    parts.check(asked, "ElectLeaders")


def _request(
    partitions: list[TopicPartition], call: RunningCall, kind: Election, everywhere: bool
) -> ElectLeadersRequest:
    topic = ElectLeadersRequest.TopicPartitions
    return ElectLeadersRequest(
        min_version=_SINCE_UNCLEAN if kind == "unclean" else 0,
        election_type=_TYPES[kind],
        topic_partitions=None
        if everywhere
        else [
            topic(topic=name, partitions=numbers) for name, numbers in by_topic(partitions).items()
        ],
        timeout_ms=int(call.step_limit * 1000),
    )
