"""What the brokers know a producer by, in one table: its id and epoch, each partition's epoch and numbers, its transaction.

No I/O. The accumulator tells it what happens to batches and that an id was given; who drives the transaction tells what becomes of
that. Nobody else keeps any of it: a queue asks its partition's row, and decides nothing about epochs and numbers itself.

================  ==============  =============================================================================================
kind              batches have    when a broker refuses a partition's numbers, or the id
================  ==============  =============================================================================================
Plain             neither         nothing: there is nothing to lose
Idempotent        numbers         the partition goes on in the next epoch, with its batches numbered anew (epochs are a
                                  partition's own here: a broker's state is one partition's too, so the trouble of one
                                  is not the others'); a fenced id, or one whose epochs are used up, is asked for anew
Transactional     numbers, flag   nothing is numbered anew: the batch fails, and the transaction can only be aborted (its
                                  one epoch is raised by the coordinator)
================  ==============  =============================================================================================

A row, :class:`~.sequences.PartitionSequences`, has the rules of numbers; :class:`~.transaction.ProducerTransaction` those of a
transaction: which state follows which, which call is legal when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from ..types import TopicPartition
from .sequences import Identity, PartitionSequences, next_epoch
from .transaction import ProducerTransaction


class ProducerState(ABC):
    """The table. Each method is quick and changes nothing in the accumulator."""

    #: Whether batches get sequence numbers, and wait for an id.
    numbered = True
    #: Whether batches are part of a transaction: the flag in their header.
    transactional = False
    #: Whether a partition whose numbers are lost begins anew by itself, under :meth:`successor`. Else what it has fails.
    renumbers = True

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionSequences] = {}

    def partition(self, place: TopicPartition) -> PartitionSequences:
        """The row of a partition, which is made when it is first asked for."""
        row = self._partitions.get(place)
        if row is None:
            row = self._partitions[place] = PartitionSequences(self, place)
        return row

    @property
    @abstractmethod
    def current(self) -> Identity | None:
        """Producer id and epoch; ``None`` while there is none, or none any more."""

    @abstractmethod
    def admits(self, row: PartitionSequences) -> bool:
        """Whether a batch for the row's partition may be sent now.

        If not, whoever can change that has been told; he calls ``Accumulator.identified`` or
        ``Accumulator.wake`` then.
        """

    @abstractmethod
    def initialized(self, identity: Identity) -> None:
        """A broker gave this id and epoch."""

    @abstractmethod
    def successor(self, own: Identity | None) -> Identity | None:
        """What a partition goes on with whose numbers under ``own`` are lost; ``None``: it waits for a new id."""

    @abstractmethod
    def fenced(self, error: Exception) -> None:
        """A broker says that the id is somebody else's now."""

    @abstractmethod
    def batch_failed(self, error: Exception) -> None:
        """A batch that was, or was to be, sent under the identity failed: records are missing that somebody was promised."""


class Plain(ProducerState):
    """Of a producer without idempotence."""

    numbered = False
    current: Identity | None = None

    def admits(self, row: PartitionSequences) -> bool:
        """See :class:`ProducerState`."""
        return True

    def initialized(self, identity: Identity) -> None:
        """It is not used."""

    def successor(self, own: Identity | None) -> Identity | None:
        """See :class:`ProducerState`."""
        return None

    def fenced(self, error: Exception) -> None:
        """Nobody is."""

    def batch_failed(self, error: Exception) -> None:
        """Nobody else is concerned."""


class Idempotent(ProducerState):
    """Of an idempotent producer: ``on_needed()`` is called when a batch waits for an id."""

    def __init__(self, on_needed: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._on_needed = on_needed
        self._current: Identity | None = None

    @property
    def current(self) -> Identity | None:
        """See :class:`ProducerState`."""
        return self._current

    def admits(self, row: PartitionSequences) -> bool:
        """See :class:`ProducerState`. A row that has an identity goes on under it."""
        if self._current is None:
            self._on_needed()
        return self._current is not None or row.identity is not None

    def initialized(self, identity: Identity) -> None:
        """See :class:`ProducerState`."""
        self._current = identity

    def successor(self, own: Identity | None) -> Identity | None:
        """See :class:`ProducerState`."""
        following = next_epoch(own, self._current)
        if following is None:
            self._current = None  # its last epoch is used up
        return following

    def fenced(self, error: Exception) -> None:
        """See :class:`ProducerState`."""
        self._current = None

    def batch_failed(self, error: Exception) -> None:
        """The partition's numbers say all that there is to say."""


class Transactional(ProducerState):
    """Of a producer with a transactional id: its identity is that of ``transaction``."""

    transactional = True
    renumbers = False

    def __init__(self, transaction: ProducerTransaction) -> None:
        super().__init__()
        self.transaction = transaction

    @property
    def current(self) -> Identity | None:
        """See :class:`ProducerState`."""
        return self.transaction.identity

    def admits(self, row: PartitionSequences) -> bool:
        """See :class:`ProducerState`."""
        return self.transaction.admits(row.place)

    def initialized(self, identity: Identity) -> None:
        """The transaction manager has told the transaction."""

    def successor(self, own: Identity | None) -> Identity | None:
        """The coordinator's business."""
        return own

    def fenced(self, error: Exception) -> None:
        """That the batch has failed says it."""

    def batch_failed(self, error: Exception) -> None:
        """See :class:`ProducerState`."""
        self.transaction.failed(error)
