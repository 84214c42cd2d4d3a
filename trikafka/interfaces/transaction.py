"""The state of a transactional producer, as its managers see it.

The rules are in :mod:`trikafka._state.producer.transaction_state`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Literal, Protocol

from ..errors import TrikafkaError
from ..types import TopicPartition

#: Producer id and producer epoch.
ProducerIdAndEpoch = tuple[int, int]


class Waitable(Protocol):
    """A condition to wait for: check the state, then wait, in a loop."""

    async def wait(self) -> None:
        """Wait for the next change."""


class TransactionSignals(Protocol):
    """The conditions that the transaction state notifies."""

    @property
    def changed(self) -> Waitable:
        """Notified when the state changes."""

    @property
    def wanted(self) -> Waitable:
        """Notified when partitions must be added at the coordinator (transaction version 1)."""


class ProducerTransactionState(Protocol):
    """The state of one transactional producer.

    A method that is not legal in the current state raises :exc:`AssertionError`.

    A transaction manager calls, in this order: :meth:`initializing` and :meth:`initialized` at
    opening; :meth:`begun`; :meth:`committing` or :meth:`aborting`; :meth:`ended`. The produce
    manager asks :meth:`admits` before it sends.
    """

    @property
    def state(self) -> Enum:
        """The state.

        Its ``value`` is ``"uninitialized"``, ``"initializing"``, ``"ready"``, ``"in transaction"``,
        ``"abortable error"``, ``"prepared"``, ``"committing"``, ``"undecided"``, ``"aborting"`` or
        ``"fatal error"``.
        """

    @property
    def identity(self) -> ProducerIdAndEpoch | None:
        """The producer id and epoch; ``None`` before :meth:`initialized`."""

    @property
    def given(self) -> ProducerIdAndEpoch:
        """The identity, as :attr:`identity`; an error before :meth:`initialized`."""

    @property
    def number(self) -> int:
        """The number of transactions begun so far."""

    @property
    def version(self) -> int:
        """The transaction version, 1 or 2 (KIP-890), of the open or last transaction."""

    @property
    def error(self) -> Exception | None:
        """The reason for an error state or for ``"undecided"``."""

    @property
    def started(self) -> bool:
        """True if the coordinator may know of the transaction, which must then be ended there."""

    @property
    def missing(self) -> list[TopicPartition]:
        """The partitions to add at the coordinator (transaction version 1)."""

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions of the open transaction."""

    @property
    def takes_records(self) -> bool:
        """True while a record may join the transaction."""

    def knows_group(self, group: str) -> bool:
        """Return whether ``group`` was added at the coordinator (transaction version 1)."""

    def joining(self) -> int:
        """Return the number of the transaction that a record joins now.

        Raises:
            TrikafkaError: As :meth:`check`.
        """

    def still(self, number: int) -> None:
        """Raise if a record of transaction ``number`` can no longer join it."""

    def admits(self, tp: TopicPartition) -> bool:
        """Return whether records may be sent to ``tp`` now.

        If so, the partition belongs to the transaction from now on. If not, ``tp`` is added to
        :attr:`missing` and ``transaction_signals.wanted`` is notified.
        """

    def check(
        self, call: Literal["begin", "send", "send_offsets", "prepare", "commit", "abort"]
    ) -> None:
        """Raise if the call is not legal in the current state."""

    def initializing(self) -> None:
        """Record that InitProducerId is being requested."""

    def initialized(self, identity: ProducerIdAndEpoch) -> None:
        """Record the producer id and epoch from the coordinator; transactions may begin."""

    def begun(self, version: int) -> int:
        """Begin a transaction with this transaction version; return its number."""

    def adding(self) -> None:
        """Record that a request to the coordinator is being sent.

        From now on the coordinator may have a transaction that must be ended.
        """

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the coordinator has added these partitions."""

    def group_added(self, group: str) -> None:
        """Record that the coordinator expects offsets of ``group`` (transaction version 1)."""

    def failed(self, error: Exception) -> None:
        """Record a failure in the transaction, which can no longer be committed."""

    def ruined(self, error: TrikafkaError) -> None:
        """Record a fatal error: the producer can no longer be used."""

    def closing(self) -> None:
        """Admit no more records to the transaction."""

    def reopened(self, number: int) -> None:
        """Record that a call that had closed transaction ``number`` has ended.

        If the call has sent no request to the coordinator, the transaction is open as before.
        """

    def prepared(self) -> None:
        """Record that the brokers have all records and offsets of the transaction (KIP-939)."""

    def committing(self) -> None:
        """Record that a commit is being requested."""

    def undecided(self, why: Exception | None) -> None:
        """Record that the committing call was cut off."""

    def not_committed(self, error: Exception) -> None:
        """Record that the coordinator refused to commit."""

    def aborting(self) -> None:
        """Record that an abort is being requested."""

    def ended(self, identity: ProducerIdAndEpoch | None = None, *, renew: bool = False) -> None:
        """Record that the transaction has ended as requested; the next one may begin.

        Args:
            identity: The identity of the next transaction, where EndTxn returned one (version 2).
            renew: True if a new epoch must be requested first; :meth:`initialized` follows.
        """
