"""Handlers of GetTelemetrySubscriptions and PushTelemetry (KIP-714).

They are offered only if a test enables them, as in Kafka.
"""

from __future__ import annotations

import uuid

from trikafka.error_codes import ErrorCode

from .call import ScriptedCall
from .messages import Message

_NO_ID = uuid.UUID(int=0)
_CODECS = [4, 3, 1, 2]  # zstd, lz4, gzip and snappy, in Kafka's order
_MAX_BYTES = 1_048_576


async def get_telemetry_subscriptions(call: ScriptedCall) -> Message:
    """Return the metrics and the interval that the test has set; assign missing client ids."""
    if code := call.error():
        return call.respond(error_code=code)
    wanted = call.state.telemetry
    asked = call.request.client_instance_id
    if asked in (None, _NO_ID):  # kafka-python reads a zero id as None
        wanted.clients += 1
        given = uuid.uuid5(_NO_ID, f"client {wanted.clients}")
    else:
        given = _NO_ID
    return call.respond(
        error_code=0,
        client_instance_id=given,
        subscription_id=wanted.subscription_id,
        accepted_compression_types=_CODECS,
        push_interval_ms=round(wanted.interval * 1000),
        telemetry_max_bytes=_MAX_BYTES,
        delta_temporality=True,
        requested_metrics=list(wanted.metrics),
    )


async def push_telemetry(call: ScriptedCall) -> Message:
    """Check a push of metrics and accept it. The log of requests has its content."""
    code = call.error()
    if not code and call.request.subscription_id != call.state.telemetry.subscription_id:
        code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if not code and call.request.compression_type not in (0, *_CODECS):
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if not code and len(call.request.metrics or b"") > _MAX_BYTES:
        code = ErrorCode.TELEMETRY_TOO_LARGE
    return call.respond(error_code=code)
