"""A scripted Kafka cluster in memory, for trikafka's tests and for yours.

:class:`ScriptedCluster` speaks Kafka's protocol over memory streams, in virtual time, and does wrong what the test tells it to.
:func:`assert_all_awaits_cancellable` cancels a scenario at every one of its checkpoints.
"""

from .. import _kafka_python as _kafka_python  # first: it loads kafka-python without its warnings
from .batches import control_batch, encode_batch
from .cancellation import assert_all_awaits_cancellable
from .cluster import ScriptedCluster
from .faults import cut, flip, strange_id
from .messages import KAFKA_4, respond
from .script import Rule, Seen

__all__ = [
    "KAFKA_4",
    "Rule",
    "ScriptedCluster",
    "Seen",
    "assert_all_awaits_cancellable",
    "control_batch",
    "cut",
    "encode_batch",
    "flip",
    "respond",
    "strange_id",
]
