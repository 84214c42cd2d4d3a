"""The bounds of a response's length, by the content of the request. No I/O.

They are checked before memory is allocated for the response. The bounds are generous: they are
meant for peers that are broken or hostile, not for brokers of a later release.

Requests for everything there is have no such bound; only ``receive_message_max_bytes`` bounds their
responses. These are metadata of all topics, committed offsets of all partitions, ListGroups and
ListTransactions, JoinGroup (the leader gets all members), and the requests that list what the
cluster has (access rules, quotas, tokens, log directories, reassignments, elections). Fetch has no
bound either, because the first batch comes as a whole, whatever its size (KIP-74). So
:func:`~trikafka._wire.fetch.read_fetch_response` compares the response with the request. A response
without a bound needs memory of its size once, and is decoded in a thread (:mod:`.decoding`).
"""

from __future__ import annotations

from collections.abc import Mapping

from .._wire.messages import EncodedRequest

#: Any response may have this many bytes.
LEAST = 131_072
#: How many more bytes each byte of the request may bring: partitions and members have an error
#: each, names have a message beside theirs, and a new topic comes with its configuration.
FACTORS: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "ApiVersions",
            "SaslHandshake",
            "SaslAuthenticate",
            "GetTelemetrySubscriptions",
            "PushTelemetry",
        ),
        0,
    ),
    **dict.fromkeys(("Heartbeat", "InitProducerId", "AddOffsetsToTxn", "EndTxn"), 0),
    **dict.fromkeys(("AddRaftVoter", "RemoveRaftVoter"), 0),
    **dict.fromkeys(("UnregisterBroker", "UnregisterController"), 0),
    **dict.fromkeys(("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken"), 0),
    **dict.fromkeys(
        (
            "Produce",
            "ListOffsets",
            "OffsetForLeaderEpoch",
            "OffsetCommit",
            "TxnOffsetCommit",
            "DeleteRecords",
            "OffsetDelete",
        ),
        16,
    ),
    **dict.fromkeys(
        ("AddPartitionsToTxn", "WriteTxnMarkers", "LeaveGroup", "AlterReplicaLogDirs"), 16
    ),
    **dict.fromkeys(("FindCoordinator", "DeleteTopics", "CreatePartitions", "DeleteGroups"), 128),
    **dict.fromkeys(
        ("AlterPartitionReassignments", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"), 128
    ),
    "ShareAcknowledge": 128,
    **dict.fromkeys(("CreateAcls", "AlterClientQuotas", "UpdateFeatures"), 128),
    **dict.fromkeys(("CreateTopics", "IncrementalAlterConfigs"), 1_024),
}
_MIB = 1 << 20
#: The bytes that a response may have for each item that the request names, and the bytes that it
#: may have besides, however many items there are.
NAMED: Mapping[str, tuple[int, int]] = {
    # 200,000 partitions of a topic, which is more than clusters have, with some replicas each; and
    # 5,000 brokers.
    "Metadata": (200_000 * 64, 2 * _MIB),
    # What a program has stored beside a committed offset: four times what brokers take as they come
    # (offset.metadata.max.bytes).
    "OffsetFetch": (4 * 4_096, 0),
    # The members of a group and what each is assigned: 10,000 with 6 kB each.
    **dict.fromkeys(
        ("DescribeGroups", "ConsumerGroupDescribe", "ShareGroupDescribe", "StreamsGroupDescribe"),
        (64 * _MIB, 0),
    ),
    # Some hundred settings, of which some are lists.
    "DescribeConfigs": (4 * _MIB, 0),
    # 5,000 brokers. Those that are not voters observe the quorum.
    **dict.fromkeys(("DescribeCluster", "DescribeQuorum"), (0, 2 * _MIB)),
    # A page of a thousand partitions.
    "DescribeTopicPartitions": (0, 4 * _MIB),
    # The partitions of a transaction: a broker keeps them in one record.
    "DescribeTransactions": (4 * _MIB, 0),
    # The producers that a partition remembers for a day, of 37 bytes: some programs make one for
    # each record.
    "DescribeProducers": (64 * _MIB, 0),
}
#: One member's part: the partitions that it is assigned.
ASSIGNED: Mapping[str, int] = dict.fromkeys(
    ("SyncGroup", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat"), 16 * _MIB
)
#: How many more bytes each record may bring: a broker that refuses records gives a reason for each
#: (KIP-467).
_A_RECORD = 512


def excess(outgoing: EncodedRequest, size: int) -> str | None:
    """Return what is wrong with a response of ``size`` bytes; ``None``: nothing.

    The text follows the peer's name.
    """
    most = most_bytes(outgoing)
    if most is None or size <= most:
        return None
    return (
        f"sent {size:,} bytes in response to {outgoing.api}, which can bring {most:,} at most: "
        "more than was asked for"
    )


def most_bytes(outgoing: EncodedRequest) -> int | None:
    """Return the most bytes of a response to ``outgoing``.

    ``None`` if that does not depend on what was asked for.
    """
    api = outgoing.api.removesuffix("Request")
    if api in ASSIGNED:
        return ASSIGNED[api]
    factor = FACTORS.get(api)
    size = sum(map(len, outgoing.pieces))
    if factor is not None:
        return LEAST + factor * size + _A_RECORD * outgoing.records
    if outgoing.asked is None or api not in NAMED:
        return None
    each, besides = NAMED[api]
    return LEAST + 16 * size + each * outgoing.asked + besides
