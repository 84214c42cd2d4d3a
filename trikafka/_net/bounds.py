"""How large a response may be, by what was asked: before memory is set aside for it, or anybody reads it. No I/O.

The bounds are generous: they are for peers that are broken or mean it, not for brokers of a later release. Only
``receive_message_max_bytes`` bounds what brings as much as there is, whatever was asked: records (a batch may be larger than what a
Fetch asks for, KIP-74), metadata, the members of a group and their assignments, the metadata of committed offsets, and all that
lists or describes. Who reads those compares what is in them with what was asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from .._wire.messages import EncodedRequest

#: Any response may have so many bytes.
LEAST = 131_072
#: How many more bytes each byte of the request may bring: partitions and members have an error each, names have a message beside
#: theirs, and a topic that was made comes with its configuration.
FACTORS: Mapping[str, int] = {
    **dict.fromkeys(("ApiVersions", "SaslHandshake", "SaslAuthenticate", "GetTelemetrySubscriptions", "PushTelemetry"), 0),
    **dict.fromkeys(("Heartbeat", "InitProducerId", "AddOffsetsToTxn", "EndTxn"), 0),
    **dict.fromkeys(("Produce", "ListOffsets", "OffsetForLeaderEpoch", "OffsetCommit", "TxnOffsetCommit"), 16),
    **dict.fromkeys(("AddPartitionsToTxn", "WriteTxnMarkers", "LeaveGroup"), 16),
    **dict.fromkeys(("FindCoordinator", "DeleteTopics", "CreatePartitions", "DeleteGroups"), 128),
    "CreateTopics": 1_024,
}
#: How many more each record may bring: a broker that refuses records says of each why (KIP-467).
_A_RECORD = 512


def excess(outgoing: EncodedRequest, size: int) -> str | None:
    """What is wrong with a response to ``outgoing`` of ``size`` bytes, in words that follow the peer's name; ``None``: nothing."""
    most = most_bytes(outgoing)
    if most is None or size <= most:
        return None
    return f"sent {size:,} bytes in response to {outgoing.api}, which can bring {most:,} at most: more than was asked for"


def most_bytes(outgoing: EncodedRequest) -> int | None:
    """How many bytes a response to ``outgoing`` may have; ``None`` if that does not depend on what was asked."""
    factor = FACTORS.get(outgoing.api.removesuffix("Request"))
    if factor is None:
        return None
    return LEAST + factor * sum(map(len, outgoing.pieces)) + _A_RECORD * outgoing.records
