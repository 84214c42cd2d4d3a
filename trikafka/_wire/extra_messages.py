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


# kafka-python finds the class of a response by the request's API, among the classes that still
# exist: the names here keep them alive. The fields are those of the schemas.
def _message(name: str) -> Any:
    return type(ApiMessage)(name, (ApiMessage,), {"__module__": __name__}, load_json=_OURS)


# Offsets that are committed with a transaction (KIP-447). From version 6 on topics are named by
# their ids (KIP-1319).
TxnOffsetCommitRequest = _message("TxnOffsetCommitRequest")
TxnOffsetCommitResponse = _message("TxnOffsetCommitResponse")

# The protocol of consumer groups (KIP-848, KIP-1082). In a heartbeat, ``member_epoch`` is 0 to
# join, -1 to leave, -2 for a static member that will return. ``None`` for the subscription, the
# assignor or the partitions, and -1 for the rebalance timeout, mean "unchanged".
ConsumerGroupDescribeRequest = _message("ConsumerGroupDescribeRequest")
ConsumerGroupDescribeResponse = _message("ConsumerGroupDescribeResponse")
ConsumerGroupHeartbeatRequest = _message("ConsumerGroupHeartbeatRequest")
ConsumerGroupHeartbeatResponse = _message("ConsumerGroupHeartbeatResponse")

# Metrics for the broker, in OTLP's encoding (KIP-714). A client without an instance id (``None``)
# gets one with the subscription.
GetTelemetrySubscriptionsRequest = _message("GetTelemetrySubscriptionsRequest")
GetTelemetrySubscriptionsResponse = _message("GetTelemetrySubscriptionsResponse")
PushTelemetryRequest = _message("PushTelemetryRequest")
PushTelemetryResponse = _message("PushTelemetryResponse")

# Delegation tokens (KIP-48); from version 3 on for another owner (KIP-373). -1 ms is the broker's
# usual period for a renewal, and means at once for an expiry. ``None`` describes the tokens of all
# owners.
CreateDelegationTokenRequest = _message("CreateDelegationTokenRequest")
CreateDelegationTokenResponse = _message("CreateDelegationTokenResponse")
DescribeDelegationTokenRequest = _message("DescribeDelegationTokenRequest")
DescribeDelegationTokenResponse = _message("DescribeDelegationTokenResponse")
ExpireDelegationTokenRequest = _message("ExpireDelegationTokenRequest")
ExpireDelegationTokenResponse = _message("ExpireDelegationTokenResponse")
RenewDelegationTokenRequest = _message("RenewDelegationTokenRequest")
RenewDelegationTokenResponse = _message("RenewDelegationTokenResponse")

# The voters of the metadata quorum (KIP-853), and nodes that will not return (KIP-631).
AddRaftVoterRequest = _message("AddRaftVoterRequest")
AddRaftVoterResponse = _message("AddRaftVoterResponse")
RemoveRaftVoterRequest = _message("RemoveRaftVoterRequest")
RemoveRaftVoterResponse = _message("RemoveRaftVoterResponse")
UnregisterBrokerRequest = _message("UnregisterBrokerRequest")
UnregisterBrokerResponse = _message("UnregisterBrokerResponse")
UnregisterControllerRequest = _message("UnregisterControllerRequest")
UnregisterControllerResponse = _message("UnregisterControllerResponse")

# Groups of all kinds, streams groups (KIP-1071), and share groups (KIP-932). The offsets of a share
# group are where its partitions begin. A member joins with the epoch 0 and leaves with -1; ``None``
# for its rack or topics means "unchanged". :mod:`.share` writes ShareFetch and ShareAcknowledge.
AlterShareGroupOffsetsRequest = _message("AlterShareGroupOffsetsRequest")
AlterShareGroupOffsetsResponse = _message("AlterShareGroupOffsetsResponse")
DeleteGroupsRequest = _message("DeleteGroupsRequest")
DeleteGroupsResponse = _message("DeleteGroupsResponse")
DeleteShareGroupOffsetsRequest = _message("DeleteShareGroupOffsetsRequest")
DeleteShareGroupOffsetsResponse = _message("DeleteShareGroupOffsetsResponse")
DescribeShareGroupOffsetsRequest = _message("DescribeShareGroupOffsetsRequest")
DescribeShareGroupOffsetsResponse = _message("DescribeShareGroupOffsetsResponse")
ShareGroupDescribeRequest = _message("ShareGroupDescribeRequest")
ShareGroupDescribeResponse = _message("ShareGroupDescribeResponse")
ShareGroupHeartbeatRequest = _message("ShareGroupHeartbeatRequest")
ShareGroupHeartbeatResponse = _message("ShareGroupHeartbeatResponse")
StreamsGroupDescribeRequest = _message("StreamsGroupDescribeRequest")
StreamsGroupDescribeResponse = _message("StreamsGroupDescribeResponse")
