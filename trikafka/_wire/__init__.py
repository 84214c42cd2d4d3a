"""What trikafka reads and writes: messages, record batches, columns. No I/O."""

from .. import _kafka_python as _kafka_python  # before anything in here imports a module of kafka-python
