"""Offsets as Spark's Kafka connector writes them into checkpoints: ``{"topic": {"0": 23}}``. Pure.

So a stream of the connector's goes on with this source from its checkpoint, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trikafka import TopicPartition, TrikafkaError

Json = dict[str, dict[str, int]]


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """Sorted, so that the same offsets are always the same text: Spark compares texts."""
    found: Json = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(json: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Read them back. Raises :exc:`trikafka.TrikafkaError` for what is no such mapping, a checkpoint of another source."""
    try:
        found = {
            TopicPartition(str(topic), int(number)): offset for topic, numbers in json.items() for number, offset in numbers.items()
        }
        if not all(isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0 for offset in found.values()):
            raise ValueError("an offset is no whole number from 0")
    except (AttributeError, TypeError, ValueError) as error:
        raise TrikafkaError(
            f'the checkpoint has {str(json)[:200]!r} for offsets, and not {{"topic": {{"0": 23}}}}: it is another source\'s'
        ) from error
    return found
