"""Messages that kafka-python lacks, made by its classes from schemas of trikafka's. No I/O.

They are used like any other message: ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848),
GetTelemetrySubscriptions and PushTelemetry (KIP-714), delegation tokens (KIP-48), the voters and
registrations of nodes (KIP-853), share groups and their administration (KIP-932), streams groups
(KIP-1071), and DeleteGroups with the broker's own words.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kafka.protocol import metadata
from kafka.protocol.api_message import ApiMessage

from .._kafka_python import allow_schemas

_OURS = "trikafka._wire.schemas"
_UNSUPPORTED_VERSION = b"\x00\x23"
allow_schemas()


class ApiVersionsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The first request of a connection (KIP-511).

    From version 5 on it names the cluster and the node that the client expects (KIP-1242).
    """


class ApiVersionsResponse(metadata.ApiVersionsResponse, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The versions of each API that the broker speaks, and the cluster's features.

    A broker that lacks the version of the request answers in version 0.
    """

    @classmethod
    def decode(cls, data: Any, version: int | None = None, **options: Any) -> Any:
        """Return the message.

        kafka-python reads every error in version 0. A broker uses that version only where it lacks
        the requested one, and its other errors come in the requested version.
        """
        if not options and data[:2] != _UNSUPPORTED_VERSION:
            with suppress(Exception):
                return ApiMessage.decode.__func__(cls, data, version=version)
        return super().decode(data, version=version, **options)


class TxnOffsetCommitRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to commit offsets with a transaction (KIP-447).

    From version 6 on it names topics by their ids (KIP-1319).
    """


class TxnOffsetCommitResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The error code of each partition's offset."""


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The heartbeat of a consumer group's member, with its subscription and its partitions.

    See KIP-848, and KIP-1082 for version 1. ``member_epoch`` is 0 to join, -1 to leave, -2 for a
    static member that will return. ``None`` for the subscription, the assignor or the partitions,
    and -1 for the rebalance timeout, mean "unchanged".
    """


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The coordinator's answer: the member's epoch, the heartbeat interval, and a new assignment.

    The assignment is present only if it changed.
    """


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the state and the members of groups of the KIP-848 protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The state, epochs and members of each group.

    Each member has its present assignment and its target.
    """


class GetTelemetrySubscriptionsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the metrics that the broker wants (KIP-714).

    A client without an instance id (``None``) gets one in the response.
    """


class GetTelemetrySubscriptionsResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The metrics that the broker wants, how often (ms), and the accepted compressions.

    Compressions are the codecs' ids in record batches.
    """


class PushTelemetryRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Metrics for the broker, in OTLP's encoding (KIP-714)."""


class PushTelemetryResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The broker's answer to pushed metrics: an error code, or none."""


class CreateDelegationTokenRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for a delegation token (KIP-48); from version 3 on for another owner (KIP-373)."""


class CreateDelegationTokenResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The new token with its secret."""


class RenewDelegationTokenRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to extend a delegation token's life; -1 ms means the broker's usual period."""


class RenewDelegationTokenResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The new end of a delegation token's life."""


class ExpireDelegationTokenRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to end a delegation token's life earlier; -1 ms means at once."""


class ExpireDelegationTokenResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The new end of a delegation token's life."""


class DescribeDelegationTokenRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the delegation tokens of owners; ``None`` means all."""


class DescribeDelegationTokenResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Delegation tokens with their secrets."""


class UnregisterBrokerRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to forget a broker that will not return (KIP-630)."""


class UnregisterBrokerResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The answer about a broker to forget: an error code, or none."""


class AddRaftVoterRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to make a controller a voter of the metadata quorum (KIP-853)."""


class AddRaftVoterResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The answer about a new voter: an error code, or none."""


class RemoveRaftVoterRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to take a controller's vote in the metadata quorum (KIP-853)."""


class RemoveRaftVoterResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The answer about a removed voter: an error code, or none."""


class UnregisterControllerRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to forget a controller that will not return."""


class UnregisterControllerResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The answer about a controller to forget: an error code, or none."""


class ShareGroupDescribeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the state and the members of share groups (KIP-932)."""


class ShareGroupDescribeResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The state, epochs and members of each share group."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the state, the topology and the members of streams groups (KIP-1071)."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The state, epochs, topology and members of each streams group."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the start offsets of share groups, sent to their group coordinators."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The start offset and, from version 1 on, the lag of each partition of share groups."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to set the start offsets of a share group without members."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The outcome for each partition of the share group."""


class DeleteShareGroupOffsetsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to delete a share group's offsets of whole topics."""


class DeleteShareGroupOffsetsResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The outcome for each topic of the share group."""


class DeleteGroupsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to delete groups of any kind."""


class DeleteGroupsResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The outcome for each group; from version 3 on with the broker's own words."""


class ShareGroupHeartbeatRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The heartbeat of a share group's member (KIP-932).

    ``member_epoch`` is 0 to join and -1 to leave. ``None`` for the rack or the topics means
    "unchanged".
    """


class ShareGroupHeartbeatResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The coordinator's response: member epoch, heartbeat interval, and a new assignment."""


class ShareFetchRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for records of a share group, with acknowledgements (KIP-932).

    The consumer writes it by hand (:mod:`.share`); this class serves the scripted cluster.
    """


class ShareFetchResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Records, the ranges of them that were acquired, and the outcome of acknowledgements."""


class ShareAcknowledgeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Acknowledgements of a share group's records, without a fetch (KIP-932)."""


class ShareAcknowledgeResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The outcome of acknowledgements, by partition."""
