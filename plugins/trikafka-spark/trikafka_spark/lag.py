"""The lag of a stream behind its topics.

Spark's connector has it as a metric, and Spark takes no metrics from Python sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from trikafka import TopicPartition


def stream_lag(
    query: StreamingQuery | StreamingQueryProgress | Mapping[str, Any] | str,
) -> dict[TopicPartition, int]:
    """Return the lag of each partition of a stream: the offsets that its last batch has not read.

    The lag is ``latestOffset`` less ``endOffset``, at the time when the batch was planned. It
    counts offsets, so control records and compacted records as well. ``max(lag.values(),
    default=0)`` is the connector's ``maxOffsetsBehindLatest``. The function asks nothing of Kafka.
    A query is asked in the JVM, which blocks: call it in a thread then.

    Args:
        query: A running or ended query, one of its progresses (also from a listener's event), or
            the JSON or the mapping of one.

    Returns:
        The lag by partition, at least 0; the largest one where several sources of the query read
        the partition. Sources of other formats are left out. A query without progress has no lag:
        an empty mapping.
    """
    found: dict[TopicPartition, int] = {}
    for source in _progress(query).get("sources") or ():
        latest = _offsets(source.get("latestOffset"))
        end = _offsets(source.get("endOffset"))
        if latest is not None and end is not None:
            for tp, offset in latest.items():
                # A partition that is newer than the batch is read from its beginning, which is
                # usually 0.
                found[tp] = max(found.get(tp, 0), offset - end.get(tp, 0))
    return found


def _progress(query: Any) -> Mapping[str, Any]:
    if hasattr(query, "lastProgress"):
        query = query.lastProgress
    if query is None:
        return {}
    if not isinstance(query, Mapping):
        query = json.loads(query if isinstance(query, str) else query.json)
    found: Mapping[str, Any] = query
    return found


def _offsets(value: Any) -> dict[TopicPartition, int] | None:
    """Return the offsets of this source or of the connector; ``None`` for another source."""
    from trikafka import TrikafkaError

    from .checkpoint_offsets import from_json

    try:
        return from_json(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, TrikafkaError):
        return None
