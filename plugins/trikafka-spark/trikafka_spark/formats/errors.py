"""What may go wrong with schemas. Carried from a worker of Spark to the driver by their names."""

from __future__ import annotations

from trikafka import ConfigurationError, KafkaTimeoutError, TrikafkaError


class SchemaRegistryError(TrikafkaError):
    """A schema registry said what is of no use: it refused, or this is no registry.

    Attributes: ``url`` (without secrets), ``id`` (of the schema).
    """

    def __init__(self, what: str, url: str, id: int | None = None) -> None:
        self.url, self.id = url, id
        super().__init__(what)


class SchemaRegistryTimeoutError(KafkaTimeoutError):
    """A schema registry did not give a schema in time: it is down, or overloaded. No record is to blame, so it is tried again.

    Beside the attributes of :exc:`trikafka.KafkaTimeoutError` it has ``url`` (without secrets) and ``id``.
    """

    def __init__(
        self, call: str, limit: float, attempts: int, last_error: BaseException | None, url: str, id: int | None = None
    ) -> None:
        self.url, self.id = url, id
        super().__init__(call, limit, attempts, last_error)


class SchemaError(ConfigurationError):
    """A schema cannot be used: it does not parse, or has a type that cannot become a column."""


class UnreadableError(Exception):
    """A record cannot be read, whatever is tried: the text says why. It becomes a dead letter."""
