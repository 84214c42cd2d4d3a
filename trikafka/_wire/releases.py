"""Which release of Kafka brought what a broker may lack: so that an error says what is needed. No I/O.

The oldest broker that trikafka is tested with is 3.3.2; what that one has is not listed.
"""

from __future__ import annotations

from kafka.protocol.api_key import ApiKey

_CONSUMER_GROUP_HEARTBEAT, _CONSUMER_GROUP_DESCRIBE = 68, 69
_GET_TELEMETRY_SUBSCRIPTIONS, _PUSH_TELEMETRY = 71, 72

#: (API, version) -> the first release in which brokers speak it without being told to try what is not finished.
_FIRST = {
    (_CONSUMER_GROUP_HEARTBEAT, 0): "4.0",
    (_CONSUMER_GROUP_DESCRIBE, 0): "4.0",
    (_GET_TELEMETRY_SUBSCRIPTIONS, 0): "3.7",
    (_PUSH_TELEMETRY, 0): "3.7",
    (int(ApiKey.ListTransactions), 1): "3.8",
    (int(ApiKey.ListTransactions), 2): "4.1",
    (int(ApiKey.OffsetCommit), 10): "4.1",
    (int(ApiKey.OffsetFetch), 10): "4.1",
}


def needed(api_key: int, version: int) -> str:
    """What to add to an error about a request in ``version`` that a broker does not speak; empty if there is nothing to say."""
    known = [(since, release) for (key, since), release in _FIRST.items() if key == api_key and since <= version]
    return f"; it needs Kafka {max(known)[1]} or newer" if known else ""
