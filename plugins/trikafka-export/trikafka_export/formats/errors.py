"""The exceptions of schemas. A Spark worker sends them to the driver by their names."""

from __future__ import annotations

from trikafka import ConfigurationError, KafkaTimeoutError, TrikafkaError


class SchemaRegistryError(TrikafkaError):
    """A schema registry refused a request, or the server is not a schema registry.

    Attributes:
        url: The registry's URL without secrets.
        id: The id of the schema; ``None`` if unknown.
    """

    def __init__(self, what: str, url: str, id: int | None = None) -> None:
        self.url = url
        self.id = id
        super().__init__(what)


class SchemaRegistryTimeoutError(KafkaTimeoutError):
    """A schema registry did not return a schema in time: it is down or overloaded.

    No record is at fault, so the look-up is retried. The attributes of
    :exc:`trikafka.KafkaTimeoutError` exist as well.

    Attributes:
        url: The registry's URL without secrets.
        id: The id of the schema; ``None`` if unknown.
    """

    def __init__(
        self,
        call: str,
        limit: float,
        attempts: int,
        last_error: BaseException | None,
        url: str,
        id: int | None = None,
    ) -> None:
        self.url = url
        self.id = id
        super().__init__(call, limit, attempts, last_error)


class SchemaError(ConfigurationError):
    """A schema cannot be used: it does not parse, or has a type that cannot become a column."""


class UnreadableError(Exception):
    """A record cannot be parsed, and a retry cannot help. It becomes a dead letter."""
