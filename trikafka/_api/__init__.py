"""What the user holds: consumer, producer, admin client, and how they are opened."""

from .. import _kafka_python as _kafka_python  # before anything in here imports a module of kafka-python
