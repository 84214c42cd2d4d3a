"""What a consumer knows and who waits for what of it: the state that its managers share, and the signals between them."""

from __future__ import annotations

from collections.abc import Callable

from .._managers.poll_timer import PollTimer
from .._net.signal import Signal
from .._state.assignment import AssignedPartition, Assignment, Wake
from .._state.fetch_buffer import CompletedFetch, FetchBuffer
from .._state.member import Member
from .._state.subscription import Subscription
from ..config import ConsumerConfig
from ..types import TopicPartition

#: Told whenever partitions came or went.
OnAssigned = Callable[[Assignment], None]


class Signals:
    """One for each kind of news. Only the state notifies them (:class:`~trikafka._state.assignment.Wake`), and closing."""

    def __init__(self) -> None:
        self.deliver = Signal()  # records, an error or a rebalance: whoever receives (of no one partition) looks again
        self.position = Signal()  # a partition's position may be known
        self.fetch = Signal()  # something may have become fetchable
        self.locate = Signal()  # a partition needs a position
        self.commit = Signal()  # more has been processed


class ConsumerCore:
    """The state of one consumer. Each part is written by its own module; see there."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.signals = signals = Signals()
        self._on_assigned: list[OnAssigned] = []
        self._on_news: list[Callable[[], None]] = []
        self._streams: dict[AssignedPartition, Signal] = {}  # what is news of these concerns nobody else
        self.wake = Wake(
            deliver=self._deliver,
            fetch=signals.fetch.notify,
            locate=signals.locate.notify,
            commit=signals.commit.notify,
            assigned=self._tell_assigned,
            overtaken=self._drop,
        )
        self.assignment = Assignment(
            self.wake, read_committed=config.isolation_level == "read_committed", marks=not config.enable_auto_offset_store
        )
        self.subscription = Subscription(self.assignment)
        self.buffer = FetchBuffer(config.fetch_buffer_bytes, self.wake, config.memory_budget)
        self.member = Member(config.group_instance_id)
        # KIP-62: the poll interval is never below the session timeout.
        self.poll_timer = PollTimer(max(config.max_poll_interval_ms, config.session_timeout_ms) / 1000)

    def on_assigned(self, tell: OnAssigned) -> None:
        """Have ``tell`` called whenever partitions came or went."""
        self._on_assigned.append(tell)

    def on_news(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called whenever something concerns the whole consumer: a posted rebalance, say."""
        self._on_news.append(tell)

    def stream_signal(self, partition: AssignedPartition) -> Signal:
        """The signal of a stream: from now on it alone is woken by records of this partition."""
        return self._streams.setdefault(partition, Signal())

    def end_stream(self, partition: AssignedPartition) -> None:
        """There is no stream of this partition any more: its records are for whoever receives."""
        if (signal := self._streams.pop(partition, None)) is not None:
            signal.notify()

    def news(self) -> None:
        """Something that concerns the whole consumer: have everybody look who waits to receive."""
        self.wake.deliver(None)

    def buffered_of(self, tp: TopicPartition) -> int:
        """Bytes in the buffer of one partition."""
        partition = self.assignment.partitions.get(tp)
        return 0 if partition is None else self.buffer.size_of(partition)

    def fetched(
        self,
        tp: TopicPartition,
        ticket: int,
        records: memoryview,
        end: int | None,
        aborted: list[tuple[int, int]] | None = None,
    ) -> bool:
        """For a fetch manager of a plugin: buffer what was fetched of a partition; whether nothing had overtaken it."""
        partition = self.assignment.partitions.get(tp)
        if partition is None or not partition.accepts(ticket):
            return False
        partition.fetched(end)
        self.buffer.put(CompletedFetch(partition, ticket, records, aborted, end))
        return True

    def _deliver(self, partition: AssignedPartition | None) -> None:
        self.signals.position.notify()
        if partition is not None and (signal := self._streams.get(partition)) is not None:
            signal.notify()
            return
        self.signals.deliver.notify()
        if partition is None:
            for tell in self._on_news:
                tell()
            for signal in self._streams.values():
                signal.notify()

    def _tell_assigned(self) -> None:
        for tell in self._on_assigned:
            tell(self.assignment)

    def _drop(self, partition: AssignedPartition) -> None:
        self.buffer.drop(partition)
