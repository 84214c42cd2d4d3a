"""The requests and responses of a transaction, built and read without I/O.

Only the transaction manager uses them. The version of a request selects the version of the
transaction protocol: version 5 and up of EndTxn and TxnOffsetCommit belong to transactions in
version 2 (KIP-890). AddPartitionsToTxn from version 4 on is for brokers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from ..._state.producer.sequences import ProducerIdentity
from ..._wire.extra_messages import TxnOffsetCommitRequest
from ...error_codes import ErrorCode
from ...errors import BrokerResponseError, DamagedResponseError, from_code
from ...types import GroupMetadata, OffsetAndMetadata, TopicPartition
from ..commits.offset_messages import parts_by_topic

# The first versions of requests with these abilities.
_V2 = 5  # EndTxn and TxnOffsetCommit: transactions in version 2 (KIP-890)
_BY_ID = 6  # TxnOffsetCommit: topics are named by their ids (KIP-1319)
_TWO_PHASE = 6  # InitProducerId: two-phase commit (KIP-939)
_RENEWS = 3  # InitProducerId: a producer may ask for its next epoch (KIP-360)


def init_producer_id(
    transactional_id: str,
    timeout_ms: int,
    current: ProducerIdentity | None,
    *,
    two_phase_commit: bool,
) -> InitProducerIdRequest:
    """Return a request for an identity, or with ``current`` for its next epoch.

    The next epoch is refused if another producer has one by then.
    """
    producer_id, epoch = current or (-1, -1)
    fields: dict[str, Any] = {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": timeout_ms,
    }
    fields |= {"producer_id": producer_id, "producer_epoch": epoch}
    if two_phase_commit:
        return InitProducerIdRequest(
            **fields, enable2_pc=True, keep_prepared_txn=False, min_version=_TWO_PHASE
        )
    low = 0 if current is None else _RENEWS
    return InitProducerIdRequest(**fields, min_version=low, max_version=_TWO_PHASE - 1)


def add_partitions(
    transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Return a request that announces partitions to the coordinator (version 1)."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        by_topic[tp.topic].append(tp.partition)
    topics = [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=parts)
        for name, parts in by_topic.items()
    ]
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=topics,
        max_version=3,
    )


def read_added(response: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the coordinator's code for each partition.

    Raises :exc:`DamagedResponseError` if a partition is missing.
    """
    codes = {
        TopicPartition(topic.name, part.partition_index): part.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }
    if silent := [str(tp) for tp in partitions if tp not in codes]:
        raise DamagedResponseError(
            f"the transaction coordinator left {', '.join(silent)} out of its response"
        )
    return codes


def add_offsets(
    transactional_id: str, identity: ProducerIdentity, group: str
) -> AddOffsetsToTxnRequest:
    """Return a request that announces offsets of a group to the coordinator (version 1)."""
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group,
    )


def commit_offsets(
    transactional_id: str,
    identity: ProducerIdentity,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    version: int,
) -> TxnOffsetCommitRequest:
    """Return a request to commit offsets when the transaction is committed (KIP-447)."""
    topic_type = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    by_topic = parts_by_topic(topic_type.TxnOffsetCommitRequestPartition, offsets)
    ids = group.topic_ids
    topics = [
        topic_type(name=name, partitions=parts, **({"topic_id": ids[name]} if name in ids else {}))
        for name, parts in by_topic.items()
    ]
    limits = {"max_version": _V2 - 1}
    if version >= 2:
        # From version 6 on the request has no names.
        newest = _BY_ID if by_topic.keys() <= ids.keys() else _BY_ID - 1
        limits = {"min_version": _V2, "max_version": newest}
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id_or_member_epoch=group.generation,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=topics,
        **limits,
    )


def read_committed(
    response: Any,
    offsets: Iterable[TopicPartition],
    group: GroupMetadata,
    transactional_id: str,
) -> list[BrokerResponseError]:
    """Return the errors of the offsets.

    Raises :exc:`DamagedResponseError` if a partition is missing.
    """
    names = {topic_id: name for name, topic_id in group.topic_ids.items()}
    codes = {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), part.partition_index): (
            part.error_code
        )
        for topic in response.topics
        for part in topic.partitions
    }
    if silent := [str(tp) for tp in offsets if tp not in codes]:
        raise DamagedResponseError(
            f"the response of the coordinator of group {group.group_id!r} lacks {', '.join(silent)}"
        )
    what = f"group {group.group_id!r} in a transaction of {transactional_id!r}"
    # All three resources are checked: the group, the topics and the transactional id.
    of_id = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return [
        from_code(
            code, f"offset of {tp} for {what}", operation="Write" if code == of_id else "Read"
        )
        for tp, code in codes.items()
        if code
    ]


def end(
    transactional_id: str, identity: ProducerIdentity, version: int, *, commit: bool
) -> EndTxnRequest:
    """Return a request to commit or abort the transaction."""
    limits = {"min_version": _V2} if version >= 2 else {"max_version": _V2 - 1}
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
        **limits,
    )


def read_next(response: Any) -> ProducerIdentity | None:
    """Return the identity of the next transaction, where the coordinator gives one (version 2)."""
    producer_id = getattr(response, "producer_id", -1)
    return (
        None
        if producer_id is None or producer_id < 0
        else ProducerIdentity(producer_id, response.producer_epoch)
    )
