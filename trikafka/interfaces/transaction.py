"""The state of a transactional producer, as its managers tell it what happened. The rules: :mod:`trikafka._state.transaction`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from ..errors import TrikafkaError
from ..types import TopicPartition

#: Producer id and epoch.
ProducerIdAndEpoch = tuple[int, int]


class Waitable(Protocol):
    """A condition: look at it, then wait, in a loop."""

    async def wait(self) -> None:
        """Wait for the next change."""


class TransactionSignals(Protocol):
    """What the state of a transaction wakes tasks with."""

    @property
    def changed(self) -> Waitable:
        """It went from one state to another."""

    @property
    def wanted(self) -> Waitable:
        """There are partitions to tell the coordinator of (version 1)."""


class ProducerTransactionState(Protocol):
    """The state of one transactional producer. A step that is not legal in a state raises :exc:`AssertionError`."""

    @property
    def identity(self) -> ProducerIdAndEpoch | None:
        """Who the producer is; ``None``: nobody yet."""

    @property
    def number(self) -> int:
        """How many transactions have begun."""

    @property
    def version(self) -> int:
        """1, or 2 (KIP-890): of the transaction that is open, or else of the last."""

    @property
    def error(self) -> Exception | None:
        """Why it is in an error, or undecided."""

    @property
    def started(self) -> bool:
        """Whether the coordinator may know of the transaction, so that it has to be ended there."""

    @property
    def missing(self) -> list[TopicPartition]:
        """Partitions that the coordinator has to be told of (version 1)."""

    def check(self, call: Literal["begin", "send", "send_offsets", "prepare", "commit", "abort"]) -> None:
        """Raise if the call is not legal now."""

    def initializing(self) -> None:
        """InitProducerId is asked for."""

    def begun(self, version: int) -> int:
        """A transaction begins; its number."""

    def adding(self) -> None:
        """The coordinator is being told of something: from now on there is something to end."""

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """The coordinator knows of these partitions."""

    def failed(self, error: Exception) -> None:
        """Something of the transaction failed: it cannot be committed."""

    def ruined(self, error: TrikafkaError) -> None:
        """The producer is of no use any more."""

    def closing(self) -> None:
        """Nothing more is to join."""

    def reopened(self, number: int) -> None:
        """One call that closed transaction ``number`` has ended: if it was cut off, all is as before."""

    def prepared(self) -> None:
        """All of it is at the brokers (KIP-939)."""

    def committing(self) -> None:
        """The coordinator is asked to commit."""

    def undecided(self, why: Exception | None) -> None:
        """The call that commits was cut off."""

    def not_committed(self, error: Exception) -> None:
        """The coordinator refused to commit."""

    def aborting(self) -> None:
        """The coordinator is asked to abort."""
