"""Handlers of the transactional producers' APIs, and of the admin's transaction calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trikafka.error_codes import ErrorCode

from .batches import BatchInfo, control_batch
from .call import ScriptedCall
from .group import CommittedOffset, Group
from .leaders import led
from .messages import Message
from .modern import ModernGroup, Refused
from .state import Partition
from .transactions import CoordinatorTransaction, CoordinatorTransactionState, Identity, Target

_OFFSETS_TOPIC = "__consumer_offsets"
_OFFSETS_PARTITIONS = 50
#: The versions from which a request adds its partitions or group to the transaction (KIP-890).
_ADDS = {0: 12, 28: 5}  # Produce and TxnOffsetCommit
_SAYS_ABORTABLE = {0: 11, 28: 4}
_END_BUMPS = 5


def _refusal(call: ScriptedCall, name: str | None) -> int:
    """Return the error code of a call on a transactional id before its state matters, or 0."""
    if code := call.error(name):
        return code
    return (
        0 if not name or call.state.coordinator_of(name) is call.node else ErrorCode.NOT_COORDINATOR
    )


async def init_producer_id(call: ScriptedCall) -> Message:
    """Return a new producer id; for a transactional id the same one in a higher epoch."""
    request, state = call.request, call.state
    name = request.transactional_id
    if code := _refusal(call, name):
        return call.respond(error_code=code, producer_id=-1, producer_epoch=-1)
    if name is None:
        return call.respond(error_code=0, producer_id=state.new_producer_id(), producer_epoch=0)
    said = (
        Identity(request.producer_id, request.producer_epoch) if call.version >= 3 else Identity()
    )
    if (said.producer_id < 0) != (said.epoch < 0):
        return call.respond(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    expected = None if said == Identity() else said
    two_phase = call.version >= 6 and request.enable2_pc
    keep = call.version >= 6 and request.keep_prepared_txn
    found = state.transactions.initialize(
        name, request.transaction_timeout_ms, expected, two_phase=two_phase, keep=keep
    )
    code = found.error
    if code == ErrorCode.PRODUCER_FENCED and call.version < 4:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    values = {
        "ongoing_txn_producer_id": found.ongoing.producer_id,
        "ongoing_txn_producer_epoch": found.ongoing.epoch,
    }
    values |= {"producer_id": found.identity.producer_id, "producer_epoch": found.identity.epoch}
    return call.respond(error_code=code, **values)


async def add_partitions_to_txn(call: ScriptedCall) -> Message:
    """Add partitions to a transaction: all of them or none."""
    request = call.request
    if call.version < 4:
        producer = Identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        results = _add_partitions(
            call,
            request.v3_and_below_transactional_id,
            producer,
            request.v3_and_below_topics,
            verify=False,
        )
        return call.respond(results_by_topic_v3_and_below=results)
    answers = [
        {
            "transactional_id": item.transactional_id,
            "topic_results": _add_partitions(
                call,
                item.transactional_id,
                Identity(item.producer_id, item.producer_epoch),
                item.topics,
                verify=item.verify_only,
            ),
        }
        for item in request.transactions
    ]
    return call.respond(error_code=0, results_by_transaction=answers)


def _add_partitions(
    call: ScriptedCall, name: str, producer: Identity, topics: Any, *, verify: bool
) -> list[dict[str, Any]]:
    asked = [(item.name, index) for item in topics for index in item.partitions]
    codes: dict[Target, int] = {}
    for topic, index in asked:
        known = call.state.topics.get(topic)
        missing = known is None or known.partition(index) is None
        codes[topic, index] = call.error(topic, index) or (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else 0
        )
    if any(codes.values()):
        codes = {part: code or ErrorCode.OPERATION_NOT_ATTEMPTED for part, code in codes.items()}
    elif code := _refusal(call, name):
        codes = dict.fromkeys(codes, code)
    elif verify:
        codes = {part: call.state.transactions.verify(name, producer, part) for part in codes}
    else:
        code = call.state.transactions.add(name, producer, codes)
        codes = dict.fromkeys(codes, _fenced_then(call, code))
    return [
        {
            "name": item.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": codes[item.name, index]}
                for index in item.partitions
            ],
        }
        for item in topics
    ]


def _fenced_then(call: ScriptedCall, code: int) -> int:
    """Return the code as the version can express it: PRODUCER_FENCED needs v2 (KIP-588)."""
    return (
        ErrorCode.INVALID_PRODUCER_EPOCH
        if code == ErrorCode.PRODUCER_FENCED and call.version < 2
        else code
    )


async def add_offsets_to_txn(call: ScriptedCall) -> Message:
    """Add a group's offsets to a transaction."""
    request = call.request
    code = _refusal(call, request.transactional_id)
    if not code:
        producer = Identity(request.producer_id, request.producer_epoch)
        code = call.state.transactions.add(request.transactional_id, producer, [request.group_id])
    return call.respond(error_code=_fenced_then(call, code))


async def end_txn(call: ScriptedCall) -> Message:
    """Commit or abort a transaction."""
    request = call.request
    if code := _refusal(call, request.transactional_id):
        return call.respond(error_code=code)
    producer = Identity(request.producer_id, request.producer_epoch)
    bumps = call.version >= _END_BUMPS
    found = call.state.transactions.end(
        request.transactional_id, producer, commit=request.committed, bumps=bumps
    )
    values = {"producer_id": found.identity.producer_id, "producer_epoch": found.identity.epoch}
    return call.respond(error_code=_fenced_then(call, found.error), **values)


def admit(call: ScriptedCall, name: str | None, producer: Identity, target: Target) -> int:
    """Return the error code for a write to a partition or group outside of its transaction, or 0.

    Newer requests add the target to the transaction themselves (KIP-890). For older ones it must
    have been added before.
    """
    transactions = call.state.transactions
    api = call.request.API_KEY
    coordinator = call.state.coordinator_of(name or "")
    if coordinator is None:
        return ErrorCode.NOT_ENOUGH_REPLICAS if api == 0 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if call.version >= _ADDS[api]:
        code = transactions.add(name or "", producer, [target])
    elif transactions.verification:
        code = transactions.verify(name or "", producer, target)
    else:
        return ErrorCode.NONE
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and call.version < _SAYS_ABORTABLE[api]:
        return ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.CONCURRENT_TRANSACTIONS and call.version < _ADDS[api]:
        return ErrorCode.NOT_ENOUGH_REPLICAS if api == 0 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return code


def admit_batch(call: ScriptedCall, partition: Partition, info: BatchInfo) -> int:
    """Return the error code for a batch outside of a transaction of this partition, or 0."""
    producer = Identity(info.producer_id, info.producer_epoch)
    if not info.transactional or partition.in_transaction(*producer):
        return ErrorCode.NONE
    if code := admit(
        call, call.request.transactional_id, producer, (partition.topic, partition.index)
    ):
        return code
    # Outside of transactions, an unknown producer may begin with any sequence.
    begins = info.producer_id in partition.producers or info.base_sequence == 0
    return ErrorCode.NONE if begins else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def txn_offset_commit(call: ScriptedCall) -> Message:
    """Store offsets that count once the transaction is committed."""
    request = call.request
    producer = Identity(call.request.producer_id, call.request.producer_epoch)
    found = [(item, *call.state.find_topic(item.name, item.topic_id)) for item in request.topics]
    known = {
        (topic.name, part.partition_index)
        for item, topic, _ in found
        for part in item.partitions
        if topic is not None and topic.partition(part.partition_index) is not None
    }
    code = _commit_refusal(call, producer) if known else 0
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    topics = []
    for item, topic, missing in found:
        parts = []
        for part in item.partitions:
            key = topic.name if topic else item.name or "", part.partition_index
            error = call.error(*key) or (
                code if key in known else missing or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            if not error and len(part.committed_metadata or "") > 4096:
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if not error:
                offsets[key] = CommittedOffset(
                    part.committed_offset,
                    part.committed_leader_epoch,
                    part.committed_metadata or "",
                )
            parts.append({"partition_index": part.partition_index, "error_code": error})
        topics.append({"name": item.name, "topic_id": item.topic_id, "partitions": parts})
    if offsets:
        call.groups.get_or_make(request.group_id).hold_offsets(*producer, offsets)
    return call.respond(topics=topics)


def _commit_refusal(call: ScriptedCall, producer: Identity) -> int:
    """Return the error code for a TxnOffsetCommit, or 0.

    The transaction is checked first, the group's membership second.
    """
    request = call.request
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if call.state.coordinator_of(request.group_id) is not call.node:
        return ErrorCode.NOT_COORDINATOR
    group = call.groups.by_id.get(request.group_id)
    holds = group is not None and group.holds_offsets(*producer)
    if not holds and (code := admit(call, request.transactional_id, producer, request.group_id)):
        return code
    return _membership(call, group)


def _membership(call: ScriptedCall, group: Group | None) -> int:
    request = call.request
    says = call.version >= 3
    generation = request.generation_id_or_member_epoch if says else -1
    member_id = request.member_id if says else ""
    instance = request.group_instance_id if says else None
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
    nameless = generation < 0 and not member_id and instance is None
    if nameless or (generation < 0 and group.empty):
        return ErrorCode.NONE
    if group.modern is not None:
        return _modern(group.modern, member_id, generation)
    return group.check(member_id, instance, generation)


def _modern(modern: ModernGroup, member_id: str, epoch: int) -> int:
    try:
        modern.check(member_id, epoch)
    except Refused as refused:
        return (
            ErrorCode.ILLEGAL_GENERATION
            if refused.code == ErrorCode.STALE_MEMBER_EPOCH
            else refused.code
        )
    return ErrorCode.NONE


# -- the calls of admins (KIP-664)


async def describe_transactions(call: ScriptedCall) -> Message:
    """Describe the state and the partitions of each transactional id."""
    return call.respond(
        transaction_states=[_describe(call, name) for name in call.request.transactional_ids]
    )


def _describe(call: ScriptedCall, name: str) -> dict[str, Any]:
    found = call.state.transactions.by_id.get(name)
    code = _refusal(call, name) or (ErrorCode.INVALID_REQUEST if not name else 0)
    if not code and found is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if code or found is None:
        nothing = {
            "transaction_state": "",
            "transaction_timeout_ms": 0,
            "transaction_start_time_ms": 0,
        }
        return nothing | {
            "error_code": code,
            "transactional_id": name,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": [],
        }
    return {
        "error_code": 0,
        "transactional_id": name,
        "transaction_state": found.state.value,
        "transaction_timeout_ms": found.timeout_ms,
        "transaction_start_time_ms": found.started_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "topics": _described(found.targets),
    }


def _described(targets: Iterable[Target]) -> list[dict[str, Any]]:
    topics: dict[str, set[int]] = {}
    for target in targets:
        topic, index = (
            (_OFFSETS_TOPIC, _java_hash(target) % _OFFSETS_PARTITIONS)
            if isinstance(target, str)
            else target
        )
        topics.setdefault(topic, set()).add(index)
    return [{"topic": topic, "partitions": sorted(indexes)} for topic, indexes in topics.items()]


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) % 2**32
    return value % 2**31 if value < 2**31 else 2**32 - value


async def list_transactions(call: ScriptedCall) -> Message:
    """List the transactional ids that this node coordinates."""
    request = call.request
    if code := call.error():
        return call.respond(error_code=code, unknown_state_filters=[], transaction_states=[])
    names = {state.value for state in CoordinatorTransactionState} | {"Dead", "PrepareEpochFence"}
    unknown = [name for name in request.state_filters if name not in names]
    if request.state_filters and len(unknown) == len(request.state_filters):
        return call.respond(error_code=0, unknown_state_filters=unknown, transaction_states=[])
    try:
        pattern = re.compile(request.transactional_id_pattern or "" if call.version >= 2 else "")
    except re.error:
        return call.respond(
            error_code=ErrorCode.INVALID_REGULAR_EXPRESSION,
            unknown_state_filters=[],
            transaction_states=[],
        )
    found = [
        {
            "transactional_id": name,
            "producer_id": each.producer_id,
            "transaction_state": each.state.value,
        }
        for name, each in call.state.transactions.by_id.items()
        if call.state.coordinator_of(name) is call.node
        and _is_wanted(call, each)
        and _matches(pattern, name)
    ]
    return call.respond(error_code=0, unknown_state_filters=unknown, transaction_states=found)


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return not pattern.pattern or pattern.fullmatch(name) is not None


def _is_wanted(call: ScriptedCall, each: CoordinatorTransaction) -> bool:
    request = call.request
    if request.producer_id_filters and each.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and each.state.value not in request.state_filters:
        return False
    longer = request.duration_filter if call.version >= 1 else -1
    return longer < 0 or (each.started_ms >= 0 and call.state.clock() - each.started_ms > longer)


async def describe_producers(call: ScriptedCall) -> Message:
    """Describe the producers that the leaders of partitions remember."""
    topics = []
    for item in call.request.topics:
        parts = []
        for index in item.partition_indexes:
            _, partition, code = led(call, item.name, None, index)
            active = [] if partition is None or code else _producers(partition)
            parts.append({"partition_index": index, "error_code": code, "active_producers": active})
        topics.append({"name": item.name, "partitions": parts})
    return call.respond(topics=topics)


def _producers(partition: Partition) -> list[dict[str, Any]]:
    return [
        {
            "producer_id": producer_id,
            "producer_epoch": known.epoch,
            "last_sequence": known.batches[-1][1] if known.batches else -1,
            "last_timestamp": known.timestamp,
            "coordinator_epoch": known.coordinator_epoch,
            "current_txn_start_offset": partition.open_transactions.get(producer_id, -1),
        }
        for producer_id, known in partition.producers.items()
    ]


async def write_txn_markers(call: ScriptedCall) -> Message:
    """End transactions in partitions without their coordinators.

    An admin ends a hanging transaction in this way.
    """
    markers = []
    for item in call.request.markers:
        data = control_batch(
            item.producer_id,
            item.producer_epoch,
            commit=item.transaction_result,
            timestamp=call.state.clock(),
        )
        topics = []
        for topic in item.topics:
            parts = []
            for index in topic.partition_indexes:
                _, partition, code = led(call, topic.name, None, index)
                if partition is not None and not code:
                    code = partition.end_transaction(data)
                parts.append({"partition_index": index, "error_code": code})
            topics.append({"name": topic.name, "partitions": parts})
        markers.append({"producer_id": item.producer_id, "topics": topics})
    call.state.changed.notify()
    return call.respond(markers=markers)
