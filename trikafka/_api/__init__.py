"""The public clients (consumer, producer, admin), the functions that open them, and exports."""

from .. import (
    _kafka_python as _kafka_python,
)  # before any import of kafka-python in this package
