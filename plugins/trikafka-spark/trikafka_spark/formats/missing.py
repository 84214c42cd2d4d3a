"""Topics whose schema could not be found: they wait for the next plan, and do not hold up the others of their export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trikafka import ConfigurationError, KafkaTimeoutError, TrikafkaError
from trikafka.interfaces import PlannedRange

from .errors import SchemaError, SchemaRegistryTimeoutError
from .pinning import is_pinned


class MissingSchemas:
    """Written while a plan's schemas are looked up, read when it is carried out."""

    def __init__(self) -> None:
        self._errors: dict[str, TrikafkaError] = {}
        self._silent: SchemaRegistryTimeoutError | None = None

    def clear(self) -> None:
        """Another plan begins."""
        self._errors, self._silent = {}, None

    def skips(self, topic: str, by_registry: bool) -> bool:
        """Whether looking is of no use: another schema of it is missing, or the registry has not answered for another topic."""
        if by_registry and self._silent is not None:
            self._errors.setdefault(topic, self._silent)
        return topic in self._errors

    def note(self, topic: str, error: TrikafkaError) -> None:
        """It could not be found. Raises ``error`` where that is nothing of the topic's, but of what was asked for."""
        if isinstance(error, ConfigurationError) and not isinstance(error, SchemaError):
            raise error
        if isinstance(error, SchemaRegistryTimeoutError):
            self._silent = error
        self._errors[topic] = error

    def check(self, format: Mapping[str, Any], topics: Iterable[str]) -> None:
        """Raise an error, one that can be waited out rather than another, when not one of the topics can be read."""
        if not self._errors or any(is_pinned(format, topic) for topic in topics):
            return
        errors = list(self._errors.values())
        raise next((error for error in errors if isinstance(error, KafkaTimeoutError)), errors[0])

    def of(self, format: Mapping[str, Any], ranges: Sequence[PlannedRange]) -> dict[PlannedRange, Exception]:
        """The ranges of a plan that cannot be read, and why."""
        return {each: self._why(each.topic) for each in ranges if not is_pinned(format, each.topic)}

    def _why(self, topic: str) -> Exception:
        # The plan may be that of a killed export: then the next one asks again, at once.
        return self._errors.get(topic) or KafkaTimeoutError(f"looking for the schemas of {topic!r}", 0.0)
