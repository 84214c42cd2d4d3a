"""Offsets in the form of Spark's Kafka connector: ``{"topic": {"0": 23}}``. No I/O.

So a stream can change from the connector to this source and back, with the same checkpoint.
"""

# Topic ids in a form that the connector ignores
# ----------------------------------------------
#
# In a checkpoint, a Python source can store only its offsets. The connector can read only a map
# from topics to maps from partition numbers to offsets. So the id of a topic is stored as a key of
# its own: ``{"topic=<id>": {}}``. To the connector this is a topic without partitions. It cannot be
# mistaken for a topic, because no topic has ``=`` in its name.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trikafka import TopicPartition, TrikafkaError
from trikafka.config.whole import is_whole

Json = dict[str, dict[str, int]]


def to_json(
    offsets: Mapping[TopicPartition, int], ids: Mapping[str, str | None] | None = None
) -> Json:
    """Return the offsets as JSON, with the known ids of their topics.

    The keys are sorted, so the same offsets are always the same text: Spark compares texts.
    """
    found: Json = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    for topic in list(found):
        if (topic_id := (ids or {}).get(topic)) is not None:
            found[f"{topic}={topic_id}"] = {}
    return found


def ids_of(json: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids of the topics by name.

    Offsets of the connector, or of an older release, have none.
    """
    return dict(
        name.split("=", 1) for name, numbers in json.items() if "=" in name and numbers == {}
    )


def from_json(json: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Read the offsets of a checkpoint.

    Raises:
        TrikafkaError: Another kind of source has written the checkpoint.
    """
    try:
        found = {
            TopicPartition(str(topic), int(number)): offset
            for topic, numbers in json.items()
            for number, offset in numbers.items()
        }
        if not all(map(is_whole, found.values())):
            raise ValueError("an offset is not a whole number of at least 0")
    except (AttributeError, TypeError, ValueError) as error:
        raise TrikafkaError(
            f"the checkpoint's offsets are {str(json)[:200]!r} and not of the form "
            '{"topic": {"0": 23}}: another kind of source has written this checkpoint. Use the '
            "checkpointLocation of this query, or a new one"
        ) from error
    return found
