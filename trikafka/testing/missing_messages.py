"""Messages that kafka-python lacks, made from the schemas of trikafka's wire code."""

from __future__ import annotations

from typing import Any

from kafka.protocol import metadata
from kafka.protocol.api_message import ApiMessage

_APIS = (
    "ApiVersions",  # version 5, KIP-1242
    "AlterShareGroupOffsets",  # KIP-932
    "ConsumerGroupDescribe",  # KIP-848
    "ConsumerGroupHeartbeat",  # KIP-848
    "DeleteGroups",  # version 3
    "DeleteShareGroupOffsets",  # KIP-932
    "DescribeShareGroupOffsets",  # KIP-932
    "GetTelemetrySubscriptions",  # KIP-714
    "PushTelemetry",  # KIP-714
    "CreateDelegationToken",  # KIP-48
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
    "UnregisterBroker",  # KIP-631
    "AddRaftVoter",  # KIP-853
    "RemoveRaftVoter",
    "UnregisterController",
    "TxnOffsetCommit",  # version 6, KIP-1319
    "ShareGroupDescribe",  # KIP-932
    "StreamsGroupDescribe",  # KIP-1071
    "ShareGroupHeartbeat",  # KIP-932
    "ShareFetch",  # KIP-932
    "ShareAcknowledge",  # KIP-932
)


def _make(name: str) -> Any:
    # The header of this response has one form in all versions.
    base: Any = metadata.ApiVersionsResponse if name == "ApiVersionsResponse" else ApiMessage
    return type(base)(name, (base,), {"__module__": __name__}, load_json="trikafka._wire.schemas")


#: The messages by name, as the modules of ``kafka.protocol`` have them.
CLASSES: dict[str, Any] = {
    name: _make(name) for api in _APIS for name in (f"{api}Request", f"{api}Response")
}
