"""Topics whose schema was not found.

They wait for the next plan, and do not delay the other topics of their export.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trikafka import ConfigurationError, KafkaTimeoutError, TrikafkaError
from trikafka.interfaces import PlannedRange
from trikafka.toolkit import with_others

from .errors import SchemaError, SchemaRegistryTimeoutError
from .schema_pinning import is_pinned


class MissingSchemas:
    """The topics without a schema, each with the error of its look-up.

    The look-ups of schemas add topics; the execution of a plan reads them.
    """

    def __init__(self) -> None:
        self._errors: dict[str, TrikafkaError] = {}
        self._silent: SchemaRegistryTimeoutError | None = None

    def clear(self) -> None:
        """Forget all topics, because another plan begins."""
        self._errors = {}
        self._silent = None

    def skips(self, topic: str, by_registry: bool) -> bool:
        """Return whether a look-up for the topic is pointless; record the topic then.

        A look-up is pointless if another schema of the topic is missing, or if the registry did not
        respond when it was asked about another topic.
        """
        if by_registry and self._silent is not None:
            self._errors.setdefault(topic, self._silent)
        return topic in self._errors

    def add(self, topic: str, error: TrikafkaError) -> None:
        """Record a topic whose schema was not found.

        An error in the configuration concerns the whole export, so it is raised at once.
        """
        if isinstance(error, ConfigurationError) and not isinstance(error, SchemaError):
            raise error
        if isinstance(error, SchemaRegistryTimeoutError):
            self._silent = error
        self._errors[topic] = error

    def check(self, format: Mapping[str, Any], topics: Iterable[str]) -> None:
        """Raise an error if none of the topics can be read, preferably a temporary one."""
        if not self._errors or any(is_pinned(format, topic) for topic in topics):
            return
        errors = list(self._errors.values())
        temporary = (error for error in errors if isinstance(error, KafkaTimeoutError))
        raise with_others(next(temporary, errors[0]), errors)

    def of(
        self, format: Mapping[str, Any], ranges: Sequence[PlannedRange]
    ) -> dict[PlannedRange, Exception]:
        """Return the errors of the ranges that cannot be read."""
        return {each: self._why(each.topic) for each in ranges if not is_pinned(format, each.topic)}

    def _why(self, topic: str) -> Exception:
        # Without an error, this run has looked up nothing: its plan is that of a killed export. The
        # next plan follows at once, and looks up the schema.
        return self._errors.get(topic) or KafkaTimeoutError(
            f"looking for the schemas of {topic!r}", 0.0
        )
