"""The handler of Produce."""

from __future__ import annotations

from typing import Any

from trikafka.error_codes import ErrorCode

from .batches import BadBatch, decode_batch, inspect, split_batches, verify
from .call import HangUp, ScriptedCall
from .leaders import endpoints, hint, led
from .messages import Message
from .state import Partition
from .transaction_calls import admit_batch

_MAX_MESSAGE_BYTES = 1_048_588
# Kafka refuses timestamps of more than an hour after its clock (message.timestamp.after.max.ms).
# The clocks of client and scripted cluster are years apart, so the cluster refuses only numbers that
# are no milliseconds: this one is in the year 33658, or 2001 in microseconds.
_MAX_TIMESTAMP = 10**15


async def produce(call: ScriptedCall) -> Message | None:
    """Check the batches, append them and return their offsets."""
    request, answers = call.request, []
    acks_ok = request.acks in (-1, 0, 1)
    for item in request.topic_data:
        parts = [_produce_one(call, item, part, acks_ok) for part in item.partition_data]
        answers.append({"name": item.name, "topic_id": item.topic_id, "partition_responses": parts})
    call.state.changed.notify()
    everything = [part for answer in answers for part in answer["partition_responses"]]
    if request.acks == 0:
        if any(part["error_code"] for part in everything):
            raise HangUp  # as Kafka does: with acks=0 there is no response for the error
        return None
    return call.respond(responses=answers, node_endpoints=endpoints(call, everything))


def _produce_one(call: ScriptedCall, item: Any, part: Any, acks_ok: bool) -> dict[str, Any]:
    topic, partition, code = led(call, item.name, item.topic_id, part.index)
    answer = {
        "index": part.index,
        "error_code": code or (0 if acks_ok else ErrorCode.INVALID_REQUIRED_ACKS),
        "base_offset": -1,
        "log_start_offset": -1,
    }
    answer |= hint(call, partition, code)
    if topic is None or partition is None or answer["error_code"]:
        return answer
    own_time = (
        call.state.clock()
        if topic.config.get("message.timestamp.type") == "LogAppendTime"
        else None
    )
    try:
        batches = split_batches(bytes(part.records or b""))
        if len(batches) != 1:
            raise BadBatch(
                ErrorCode.INVALID_RECORD,
                f"a produce request has one batch a partition, not {len(batches)}",
            )
        if len(batches[0]) > int(topic.config.get("max.message.bytes", _MAX_MESSAGE_BYTES)):
            raise BadBatch(ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {len(batches[0])} bytes")
        verify(batches[0])
        latest = inspect(batches[0]).max_timestamp
        checked = "message.timestamp.after.max.ms" not in topic.config and own_time is None
        if checked and latest > _MAX_TIMESTAMP:
            raise BadBatch(
                ErrorCode.INVALID_TIMESTAMP, f"Timestamp {latest} of a message is out of range"
            )
        if refused := _refusal(call, partition, batches[0]):
            raise BadBatch(refused, "the partition was not added to the transaction")
        if "compact" in topic.config.get("cleanup.policy", "delete") and (
            keyless := _keyless(batches[0], part.index)
        ):
            text = "Compacted topic cannot accept message without key"
            errors = [
                {"batch_index": index, "batch_index_error_message": text} for index in keyless
            ]
            return answer | {
                "error_code": ErrorCode.INVALID_RECORD,
                "record_errors": errors,
                "error_message": "One or more records have been rejected",
            }
        answer["base_offset"] = partition.store(batches[0], log_append_time=own_time)
    except BadBatch as bad:
        return answer | {"error_code": bad.code, "error_message": str(bad)}
    answer["log_start_offset"] = partition.start
    if own_time is not None:
        answer["log_append_time_ms"] = own_time
    return answer


def _keyless(batch: bytes, partition: int) -> list[int]:
    return [
        index
        for index, record in enumerate(decode_batch(batch, "", partition))
        if record.key is None
    ]


def _refusal(call: ScriptedCall, partition: Partition, batch: bytes) -> int:
    info = inspect(batch)
    if info.transactional and call.request.transactional_id is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return admit_batch(call, partition, info)
