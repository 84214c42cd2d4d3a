"""One request manager a file: each owns its state and one kind of conversation with the brokers."""

from .. import _kafka_python as _kafka_python  # before anything in here imports a module of kafka-python
