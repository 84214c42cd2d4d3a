"""The quorum of controllers (KIP-595, KIP-853): values, requests and responses."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeQuorumRequest

from ..._wire._format import MAX_INT32
from ..._wire.extra_messages import AddRaftVoterRequest
from ...config.text import PlainTexts
from ...config.whole import is_whole
from ...errors import ConfigurationError, DamagedResponseError, TrikafkaError, from_code
from ..client.option_parsing import is_name
from .messages import collection_of, number_or_none, words

_TOPIC = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class VoterEndpoint(PlainTexts):
    """An address at which a controller is reached.

    Attributes:
        listener: The name of the listener, such as ``"CONTROLLER"``.
        host: The host.
        port: The port.
    """

    listener: str
    host: str
    port: int

    def __post_init__(self) -> None:
        self._make_plain()
        for name, value in (("listener", self.listener), ("host", self.host)):
            if not is_name(value):
                raise ConfigurationError(f"{name} must be a text that is not empty, not {value!r}")
        if not is_whole(self.port, 1, 65535):
            raise ConfigurationError(
                f"port must be a whole number from 1 to 65535, not {self.port!r}"
            )


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A replica of the cluster's metadata; ``None`` where the leader does not know.

    Attributes:
        node_id: The controller or broker.
        directory_id: The id of its log directory, in Kafka's notation (Kafka 3.9).
        log_end_offset: The end of its log.
        last_fetch: When it last fetched, in ms since the epoch.
        last_caught_up: When it last had all that the leader had, in ms since the epoch.
    """

    node_id: int
    directory_id: str | None
    log_end_offset: int | None
    last_fetch: int | None
    last_caught_up: int | None


@dataclass(frozen=True, slots=True)
class MetadataQuorum:
    """The quorum that keeps the cluster's metadata.

    Attributes:
        leader_id: The active controller; ``None`` if there is none.
        leader_epoch: Its epoch.
        high_watermark: The end of what the quorum has agreed on; ``None`` if it is not known.
        voters: The controllers that vote.
        observers: The others that read the metadata: brokers, and controllers without a vote.
        endpoints: The addresses of the controllers, by their number (Kafka 3.9).
    """

    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, tuple[VoterEndpoint, ...]]

    def lag(self, replica: QuorumReplica) -> int | None:
        """Return how many records a replica is behind the leader; ``None`` if not known."""
        leader = next((each for each in self.voters if each.node_id == self.leader_id), None)
        if leader is None or leader.log_end_offset is None or replica.log_end_offset is None:
            return None
        return max(0, leader.log_end_offset - replica.log_end_offset)


def check_node_id(what: str, node_id: object) -> None:
    """Raise :exc:`ConfigurationError` unless the value is the number of a node."""
    if not is_whole(node_id, most=MAX_INT32):
        raise ConfigurationError(f"{what} must be a whole number from 0, not {node_id!r}")


def check_cluster_id(cluster_id: object) -> None:
    """Raise :exc:`ConfigurationError` unless the value is the id of a cluster, or ``None``."""
    if cluster_id is not None and not is_name(cluster_id):
        raise ConfigurationError(f"cluster_id must be a text or None, not {cluster_id!r}")


def directory_uuid(text: object) -> uuid.UUID:
    """Return the id of a log directory as it is sent. Raises :exc:`ConfigurationError`.

    Kafka writes such ids in 22 letters of base64.
    """
    if isinstance(text, uuid.UUID):
        return text
    try:
        if not isinstance(text, str) or len(text) != 22:
            raise ValueError
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (ValueError, binascii.Error):
        raise ConfigurationError(
            "directory_id must be the id of a log directory as Kafka writes it, 22 letters such "
            f"as 'MvDxzVmcRsaTz33bUuRU6A', not {text!r}"
        ) from None


def directory_text(number: uuid.UUID | None) -> str | None:
    """Return the id of a log directory as Kafka writes it; ``None`` if it has none."""
    if number is None or not number.int:
        return None
    return base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")


def checked_endpoints(endpoints: Iterable[VoterEndpoint]) -> list[VoterEndpoint]:
    """Return the checked addresses of a controller. Raises :exc:`ConfigurationError`."""
    found = collection_of(VoterEndpoint, "endpoints", endpoints, bytes)
    if not found:
        raise ConfigurationError("a voter needs at least one VoterEndpoint")
    return found


def describe_request() -> DescribeQuorumRequest:
    """Return a DescribeQuorum request."""
    topic = DescribeQuorumRequest.TopicData
    return DescribeQuorumRequest(
        topics=[topic(topic_name=_TOPIC, partitions=[topic.PartitionData(partition_index=0)])]
    )


def read_described(response: Any) -> MetadataQuorum:
    """Return the quorum in a DescribeQuorum response. Raises its error."""
    _check_described(response)
    parts = [part for topic in response.topics for part in topic.partitions]
    if len(parts) != 1:
        raise DamagedResponseError(
            f"the response to DescribeQuorum has {len(parts)} partitions where one was asked for"
        )
    (part,) = parts
    _check_described(part)
    try:
        endpoints = {
            node.node_id: tuple(
                VoterEndpoint(each.name, each.host, each.port) for each in node.listeners
            )
            for node in sorted(response.nodes or (), key=lambda node: node.node_id)
        }
    except ConfigurationError as error:
        raise DamagedResponseError(
            f"the DescribeQuorum response has an impossible address: {error}"
        ) from error
    return MetadataQuorum(
        number_or_none(part.leader_id),
        part.leader_epoch,
        number_or_none(part.high_watermark),
        tuple(_replica(each) for each in part.current_voters),
        tuple(_replica(each) for each in part.observers),
        endpoints,
    )


def _replica(each: Any) -> QuorumReplica:
    return QuorumReplica(
        each.replica_id,
        directory_text(each.replica_directory_id),
        number_or_none(each.log_end_offset),
        number_or_none(each.last_fetch_timestamp),
        number_or_none(each.last_caught_up_timestamp),
    )


def add_request(
    node_id: int,
    directory: uuid.UUID,
    endpoints: Iterable[VoterEndpoint],
    cluster_id: str | None,
    timeout_ms: int,
) -> AddRaftVoterRequest:
    """Return an AddRaftVoter request."""
    return AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        voter_id=node_id,
        voter_directory_id=directory,
        listeners=[
            AddRaftVoterRequest.Listener(name=each.listener, host=each.host, port=each.port)
            for each in endpoints
        ],
        ack_when_committed=True,
    )


def error_of(response: Any, what: str, operation: str = "Alter") -> TrikafkaError | None:
    """Return the error of a response about ``what``; ``None`` if there is none."""
    if not response.error_code:
        return None
    detail = words(getattr(response, "error_message", None))
    return from_code(response.error_code, what + detail, operation=operation)


def _check_described(response: Any) -> None:
    error = error_of(response, "the metadata quorum", "Describe")
    if error is not None:
        raise error
