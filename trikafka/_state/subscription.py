"""What the consumer wants and what it has: the topics, the assigned partitions, and how far it is in each. No I/O.

The membership manager (or ``assign``) writes which partitions are assigned; the consumer writes positions as it hands out
records and when the user seeks; the positions manager resolves resets; the fetch manager writes where it fetches next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Any

from ..errors import ConfigurationError, IllegalStateError, TrikafkaError, UnknownTopicOrPartitionError
from ..types import OffsetSpec, TopicPartition


class Mode(Enum):
    """How partitions come to the consumer."""

    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    MANUAL = "manual"


def checked_partition(given: Any) -> TopicPartition:
    """A partition that a user named, checked. Raises :exc:`ConfigurationError` that shows what is wrong."""
    try:
        topic, number = given
    except (TypeError, ValueError):
        raise ConfigurationError(f"a partition is a TopicPartition(topic, number), not {given!r}") from None
    if not isinstance(topic, str) or not topic:
        raise ConfigurationError(f"a partition's topic must be a name, not {topic!r}")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigurationError(f"a partition's number must be a whole number from 0, not {number!r}")
    return TopicPartition(topic, number)


class PartitionState:
    """One assigned partition. ``epoch`` grows whenever the position jumps, so that what was fetched before it is dropped."""

    __slots__ = (
        "buffered", "done", "epoch", "error", "fetch_offset", "high_watermark", "leader_epoch", "limit", "log_start",
        "missing_since", "paused", "position", "position_asked", "ready", "reset", "retry_at", "revoking", "tp",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, ready: bool) -> None:
        self.tp = tp
        self.position: int | None = None  # next to hand out; None: not known yet
        self.done: int | None = None  # position after what the user has come back from: what auto commit may commit
        self.fetch_offset = -1  # next to fetch; at or after the position
        self.reset: OffsetSpec | None = None  # a reset that is asked for and not resolved yet
        self.epoch = 0
        self.ready = ready  # the assigned-listeners have run
        self.revoking = False  # posted to the listeners; nothing more is handed out
        self.paused = False
        self.limit: int | None = None  # hand out nothing at or past this offset
        self.buffered = 0  # bytes in the fetch buffer
        self.leader_epoch: int | None = None  # of the last record handed out
        self.high_watermark: int | None = None
        self.log_start: int | None = None
        self.retry_at = 0.0  # no fetch before this time, after an error
        self.position_asked = False  # somebody waits for the position, though the listeners have not run
        self.missing_since: float | None = None  # since when the cluster has not known the partition
        self.error: Exception | None = None  # to be raised by the next receive

    @property
    def usable(self) -> bool:
        """Whether records of it may be handed out."""
        if self.limit is not None and self.position is not None and self.position >= self.limit:
            return False
        return self.ready and not self.paused and not self.revoking

    @property
    def fetchable(self) -> bool:
        """Whether it may be fetched: what is handed out soon, from a known offset."""
        if self.fetch_offset < 0 or (self.limit is not None and self.fetch_offset >= self.limit):
            return False
        return self.usable and self.error is None

    def refetch(self, offset: int) -> None:
        """Fetch again from ``offset``; what was fetched before and is not handed out yet is dropped."""
        self.epoch += 1
        self.fetch_offset = offset
        self.retry_at = 0.0

    def miss(self, now: float, error: TrikafkaError | None) -> None:
        """Somebody waits for the partition, and the cluster does not know it: after the patience that is theirs to know."""
        if error is None:
            self.missing_since = None
        elif self.missing_since is None:
            self.missing_since = now
        elif now - self.missing_since >= error.patience:
            self.missing_since, self.error = None, error

    def jump(self, offset: int) -> None:
        """Set the position, whatever was asked, fetched or validated before."""
        self.epoch += 1
        self.position = self.done = self.fetch_offset = offset
        self.reset = None
        self.leader_epoch = None
        self.error = None
        self.retry_at = 0.0
        self.position_asked = False

    def ask_reset(self, spec: OffsetSpec) -> None:
        """Forget the position; the positions manager looks up the new one."""
        self.epoch += 1
        self.position = self.done = None
        self.fetch_offset = -1
        self.reset = spec
        self.leader_epoch = None
        self.error = None
        self.retry_at = 0.0


class Subscription:
    """The subscription and the assignment of one consumer."""

    def __init__(self) -> None:
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.receiving = False  # a receive is under way

    def subscribe(self, topics: Iterable[str]) -> None:
        """Follow ``topics`` as a member of the group."""
        self._enter(Mode.TOPICS)
        self.pattern = None
        self._follow(frozenset(topics))

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Follow every topic whose whole name matches ``pattern``."""
        self._enter(Mode.PATTERN)
        self.pattern = pattern

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Take exactly ``partitions``, without a group's coordination. Those that stay keep their positions."""
        self._enter(Mode.MANUAL)
        wanted = dict.fromkeys(partitions)
        self.remove([tp for tp in self.partitions if tp not in wanted])
        self.partitions = {tp: self.partitions.get(tp) or PartitionState(tp, ready=True) for tp in wanted}
        self.topics = frozenset(tp.topic for tp in wanted)

    def clear(self) -> None:
        """Forget everything."""
        self.mode, self.topics, self.pattern = Mode.NONE, frozenset(), None
        self.remove(list(self.partitions))

    @property
    def grouped(self) -> bool:
        """Whether partitions come from the group."""
        return self.mode in (Mode.TOPICS, Mode.PATTERN)

    def note_missing(self, state: PartitionState, error: TrikafkaError, now: float) -> None:
        """The leader of ``state`` cannot be told because of ``error``. A group waits for its topics to appear."""
        waited_for = not self.grouped and (self.receiving or state.position_asked)
        state.miss(now, error if waited_for and isinstance(error, UnknownTopicOrPartitionError) else None)

    def match(self, names: Iterable[str]) -> bool:
        """Set the topics to those of ``names`` that the pattern matches; return whether that changed them."""
        assert self.pattern is not None
        topics = frozenset(name for name in names if self.pattern.fullmatch(name))
        changed = topics != self.topics
        self._follow(topics)
        return changed

    def _follow(self, topics: frozenset[str]) -> None:
        """Of a topic that is not followed any more nothing is handed out, though its partitions are still to be given up."""
        self.topics = topics
        for tp, state in self.partitions.items():
            if tp.topic not in topics:
                state.revoking = True

    def state(self, tp: TopicPartition) -> PartitionState:
        """The state of an assigned partition. Raises :exc:`IllegalStateError` for one that is not."""
        state = self.partitions.get(tp)
        if state is None:
            raise IllegalStateError(f"partition {tp} is not assigned to this consumer")
        return state

    def add(self, partitions: Iterable[TopicPartition], *, ready: bool) -> None:
        """Add partitions that the group assigned."""
        for tp in partitions:
            if tp not in self.partitions:
                self.partitions[tp] = PartitionState(tp, ready)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Take away partitions that were revoked or lost."""
        for tp in partitions:
            if (state := self.partitions.pop(tp, None)) is not None:
                state.epoch += 1
                state.revoking = True

    def _enter(self, mode: Mode) -> None:
        if self.mode not in (Mode.NONE, mode):
            raise IllegalStateError(
                f"the consumer already gets its partitions by {self.mode.value}; unsubscribe() before changing that to {mode.value}"
            )
        self.mode = mode
