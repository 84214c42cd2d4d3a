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


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The heartbeat of a consumer group's member, with its subscription and its partitions.

    See KIP-848, and KIP-1082 for version 1. ``member_epoch`` is 0 to join, -1 to leave, -2 for a
    static member that will return. ``None`` for the subscription, the assignor or the partitions,
    and -1 for the rebalance timeout, mean "unchanged".
    """


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the state and the members of groups of the KIP-848 protocol."""


class GetTelemetrySubscriptionsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the metrics that the broker wants (KIP-714).

    A client without an instance id (``None``) gets one in the response.
    """


class PushTelemetryRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Metrics for the broker, in OTLP's encoding (KIP-714)."""


class CreateDelegationTokenRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for a delegation token (KIP-48); from version 3 on for another owner (KIP-373)."""


class RenewDelegationTokenRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to extend a delegation token's life; -1 ms means the broker's usual period."""


class ExpireDelegationTokenRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to end a delegation token's life earlier; -1 ms means at once."""


class DescribeDelegationTokenRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the delegation tokens of owners; ``None`` means all."""


class UnregisterBrokerRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to forget a broker that will not return (KIP-631)."""


class AddRaftVoterRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to make a controller a voter of the metadata quorum (KIP-853)."""


class RemoveRaftVoterRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to take a controller's vote in the metadata quorum (KIP-853)."""


class UnregisterControllerRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to forget a controller that will not return."""


class ShareGroupDescribeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the state and the members of share groups (KIP-932)."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the state, the topology and the members of streams groups (KIP-1071)."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for the start offsets of share groups, sent to their group coordinators."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to set the start offsets of a share group without members."""


class DeleteShareGroupOffsetsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to delete a share group's offsets of whole topics."""


class DeleteGroupsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request to delete groups of any kind."""


class ShareGroupHeartbeatRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The heartbeat of a share group's member (KIP-932).

    ``member_epoch`` is 0 to join and -1 to leave. ``None`` for the rack or the topics means
    "unchanged".
    """


class ShareFetchRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A request for records of a share group, with acknowledgements (KIP-932).

    The consumer writes it by hand (:mod:`.share`); this class serves the scripted cluster.
    """


class ShareAcknowledgeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Acknowledgements of a share group's records, without a fetch (KIP-932)."""


# kafka-python finds the class of a response by the request's API, among the classes that still
# exist: the names here keep them alive. The fields are those of the schemas.
def _response(name: str) -> Any:
    return type(ApiMessage)(name, (ApiMessage,), {"__module__": __name__}, load_json=_OURS)


AddRaftVoterResponse = _response("AddRaftVoterResponse")
AlterShareGroupOffsetsResponse = _response("AlterShareGroupOffsetsResponse")
ConsumerGroupDescribeResponse = _response("ConsumerGroupDescribeResponse")
ConsumerGroupHeartbeatResponse = _response("ConsumerGroupHeartbeatResponse")
CreateDelegationTokenResponse = _response("CreateDelegationTokenResponse")
DeleteGroupsResponse = _response("DeleteGroupsResponse")
DeleteShareGroupOffsetsResponse = _response("DeleteShareGroupOffsetsResponse")
DescribeDelegationTokenResponse = _response("DescribeDelegationTokenResponse")
DescribeShareGroupOffsetsResponse = _response("DescribeShareGroupOffsetsResponse")
ExpireDelegationTokenResponse = _response("ExpireDelegationTokenResponse")
GetTelemetrySubscriptionsResponse = _response("GetTelemetrySubscriptionsResponse")
PushTelemetryResponse = _response("PushTelemetryResponse")
RemoveRaftVoterResponse = _response("RemoveRaftVoterResponse")
RenewDelegationTokenResponse = _response("RenewDelegationTokenResponse")
ShareAcknowledgeResponse = _response("ShareAcknowledgeResponse")
ShareFetchResponse = _response("ShareFetchResponse")
ShareGroupDescribeResponse = _response("ShareGroupDescribeResponse")
ShareGroupHeartbeatResponse = _response("ShareGroupHeartbeatResponse")
StreamsGroupDescribeResponse = _response("StreamsGroupDescribeResponse")
TxnOffsetCommitResponse = _response("TxnOffsetCommitResponse")
UnregisterBrokerResponse = _response("UnregisterBrokerResponse")
UnregisterControllerResponse = _response("UnregisterControllerResponse")
