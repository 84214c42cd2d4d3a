"""A scripted Kafka cluster in memory, for trikafka's tests and for users' tests.

:class:`ScriptedCluster` speaks Kafka's protocol over memory streams, in virtual time, and injects
the faults that a test asks for. :func:`assert_all_awaits_cancellable` cancels a scenario at every
checkpoint.
"""

# ruff: noqa: E402  # the modules below import kafka-python, which needs the filter
from .._kafka_python import allow_schemas

allow_schemas()
from .batches import control_batch, encode_batch
from .cancellation import assert_all_awaits_cancellable
from .cluster import ScriptedCluster
from .faults import cut, flip, strange_id
from .messages import KAFKA_4, respond
from .script import Rule, Seen
from .share import RecordState, SharedRecord, ShareTimes

__all__ = [
    "KAFKA_4",
    "RecordState",
    "Rule",
    "ScriptedCluster",
    "Seen",
    "ShareTimes",
    "SharedRecord",
    "assert_all_awaits_cancellable",
    "control_batch",
    "cut",
    "encode_batch",
    "flip",
    "respond",
    "strange_id",
]
