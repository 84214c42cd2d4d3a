"""Messages that kafka-python lacks: made by its classes of schemas of ours, and used like any other. No I/O.

ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848), GetTelemetrySubscriptions and PushTelemetry (KIP-714).
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

_OURS = "trikafka._wire.schemas"


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """A member of a consumer group says that it lives, what it wants, and what it owns (KIP-848; v1: KIP-1082).

    ``member_epoch`` is 0 to join, -1 to leave, -2 for a static member that will come back. ``None`` in the subscription, the
    assignor, the partitions, and -1 in the rebalance timeout, mean: as I said before.
    """


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """What the coordinator tells the member: its epoch, when to send the next heartbeat, and, if it changed, its assignment."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Asks for the state and the members of groups of the KIP-848 protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """The state, epochs and members of each group, with what each has and what it is meant to have."""


class GetTelemetrySubscriptionsRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Asks which metrics the broker wants, and for the client's instance id where it has none: ``None`` (KIP-714)."""


class GetTelemetrySubscriptionsResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Which metrics the broker wants, how often (ms), and in which compressions (by their ids in record batches)."""


class PushTelemetryRequest(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Brings the broker metrics, in OTLP's encoding (KIP-714)."""


class PushTelemetryResponse(ApiMessage, load_json=_OURS):  # type: ignore[misc, call-arg]
    """Whether the broker took the metrics."""
