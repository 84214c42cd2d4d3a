"""The state of a consumer that its managers share, and the signals between them."""

from __future__ import annotations

from collections.abc import Callable

from ..._managers.group.poll_timer import PollTimer
from ..._net.signal import Signal
from ..._state.consumer.assignment import AssignedPartition, Assignment, ChangeCallbacks
from ..._state.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from ..._state.consumer.subscription import Subscription
from ..._state.group.member import Member
from ...config import ConsumerConfig
from ...types import TopicPartition

#: Called whenever partitions were added or removed.
OnAssigned = Callable[[Assignment], None]


class Signals:
    """The signals, one for each kind of news.

    Only the state notifies them (:class:`~trikafka._state.consumer.assignment.ChangeCallbacks`),
    and the close.
    """

    def __init__(self) -> None:
        # Records, an error or a rebalance: a task that receives (from no single partition) looks
        # again.
        self.deliver = Signal()
        self.position = Signal()  # a partition's position may be known
        self.fetch = Signal()  # something may have become fetchable
        self.locate = Signal()  # a partition needs a position
        self.commit = Signal()  # more has been processed


class ConsumerCore:
    """The state of one consumer; each part is written by its own module."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.signals = signals = Signals()
        self._on_assigned: list[OnAssigned] = []
        self._on_news: list[Callable[[], None]] = []
        # News of these partitions concerns only their streams.
        self._streams: dict[AssignedPartition, Signal] = {}
        self.wake = ChangeCallbacks(
            deliver=self._deliver,
            fetch=signals.fetch.notify,
            locate=signals.locate.notify,
            commit=signals.commit.notify,
            assigned=self._notify_assigned,
            overtaken=lambda partition: self.buffer.drop(partition),
        )
        self.assignment = Assignment(
            self.wake,
            read_committed=config.isolation_level == "read_committed",
            marks=not config.enable_auto_offset_store,
        )
        self.subscription = Subscription(self.assignment)
        self.buffer = FetchBuffer(config.fetch_buffer_bytes, self.wake, config.memory_budget)
        self.member = Member(config.group_instance_id)
        # KIP-62: the poll interval is never below the session timeout.
        self.poll_timer = PollTimer(
            max(config.max_poll_interval_ms, config.session_timeout_ms) / 1000
        )

    def on_assigned(self, callback: OnAssigned) -> None:
        """Call ``callback`` whenever partitions were added or removed."""
        self._on_assigned.append(callback)

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever something concerns the whole consumer, such as a rebalance."""
        self._on_news.append(callback)

    def stream_signal(self, partition: AssignedPartition) -> Signal:
        """Return a stream's signal; records of this partition wake nothing else from now on."""
        return self._streams.setdefault(partition, Signal())

    def end_stream(self, partition: AssignedPartition) -> None:
        """End the stream of a partition: its records go to receives again."""
        self.buffer.stop_waiting(partition, ended=True)
        if (signal := self._streams.pop(partition, None)) is not None:
            signal.notify()

    def news(self) -> None:
        """Wake all tasks that wait to receive: something concerns the whole consumer."""
        self.wake.deliver(None)

    def buffered_of(self, tp: TopicPartition) -> int:
        """Return the buffered bytes of one partition."""
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
        """Buffer fetched records, for a plugin's fetch manager.

        Returns False if something has overtaken the fetch.
        """
        partition = self.assignment.partitions.get(tp)
        if partition is None or not partition.accepts(ticket):
            return False
        partition.fetched(end)
        self.buffer.put(CompletedFetch(partition, ticket, records, aborted, end))
        return True

    def _deliver(self, partition: AssignedPartition | None) -> None:
        # Which tasks news of a partition wakes. With a stream, its signal wakes the one task that
        # reads it: with thousands of streams, waking all of them for each fetch would cost more
        # than the records. Without a stream, ``deliver`` wakes the task that receives from all
        # partitions. News of no single partition (None: a rebalance, a close, an error of the
        # group) wakes everything, and sends the next record over the full path (``_on_news``),
        # because a live cursor looks at none of these.
        self.signals.position.notify()
        if partition is not None and (signal := self._streams.get(partition)) is not None:
            signal.notify()
            return
        self.signals.deliver.notify()
        if partition is None:
            for notify in self._on_news:
                notify()
            for signal in self._streams.values():
                signal.notify()

    def _notify_assigned(self) -> None:
        for notify in self._on_assigned:
            notify(self.assignment)
