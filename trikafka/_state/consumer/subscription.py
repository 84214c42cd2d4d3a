"""The subscription of a consumer: topics, a pattern, or a fixed set of partitions. No I/O.

Only the consumer's calls change it. The partitions themselves are in
:mod:`trikafka._state.consumer.assignment`, which stops delivering those whose topics are no longer
subscribed to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from ...errors import IllegalStateError
from ...types import SubscriptionPattern, TopicPartition
from .assignment import Assignment


class Mode(Enum):
    """The way in which partitions are chosen for the consumer."""

    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    BROKER_PATTERN = "broker's pattern"
    MANUAL = "manual"


class Subscription:
    """The subscription of one consumer."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.broker_pattern: SubscriptionPattern | None = None

    @property
    def grouped(self) -> bool:
        """True while partitions are assigned by the group."""
        return self.mode in (Mode.TOPICS, Mode.PATTERN, Mode.BROKER_PATTERN)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Follow ``topics`` as a member of the group."""
        self._enter(Mode.TOPICS)
        self.pattern = None
        self._follow(frozenset(topics))

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Follow every topic whose whole name matches ``pattern``."""
        self._enter(Mode.PATTERN)
        self.pattern = pattern

    def subscribe_broker_pattern(self, pattern: SubscriptionPattern) -> None:
        """Follow every topic that the broker says matches ``pattern`` (KIP-848)."""
        self._enter(Mode.BROKER_PATTERN)
        self.broker_pattern = pattern

    def follows(self, topic: str) -> bool:
        """Return whether ``topic`` is subscribed to, or may be.

        With a broker's pattern only the broker knows which topics match.
        """
        return self.mode is Mode.BROKER_PATTERN or topic in self.topics

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, without a group.

        Partitions that were assigned before keep their positions.
        """
        self._enter(Mode.MANUAL)
        wanted = list(partitions)
        self.topics = frozenset(tp.topic for tp in wanted)
        self._assignment.assign(wanted)

    def clear(self) -> None:
        """Forget the subscription, and clear the assignment."""
        self.mode = Mode.NONE
        self.topics = frozenset()
        self.pattern = None
        self.broker_pattern = None
        self._assignment.clear()

    def match(self, names: Iterable[str]) -> bool:
        """Set the topics to those of ``names`` that match the pattern.

        Returns whether that changed the topics.
        """
        assert self.pattern is not None
        topics = frozenset(name for name in names if self.pattern.fullmatch(name))
        changed = topics != self.topics
        self._follow(topics)
        return changed

    def _follow(self, topics: frozenset[str]) -> None:
        """Set the topics; the revocation of all other topics' partitions begins."""
        self.topics = topics
        self._assignment.begin_revocation(self._assignment.of_topics_not_in(topics))

    def _enter(self, mode: Mode) -> None:
        if self.mode not in (Mode.NONE, mode):
            raise IllegalStateError(
                f"the consumer already gets its partitions by {self.mode.value}; unsubscribe() "
                f"before changing that to {mode.value}"
            )
        self.mode = mode
