"""The bytes that trikafka reads and writes: messages, record batches, columns. No I/O."""

# Before anything in this package imports a module of kafka-python.
from .. import _kafka_python as _kafka_python
