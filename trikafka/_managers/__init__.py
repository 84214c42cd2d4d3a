"""The request managers: each file owns its state and one kind of conversation with the brokers."""

# This import comes before any module of this package imports a module of kafka-python.
from .. import (
    _kafka_python as _kafka_python,
)
