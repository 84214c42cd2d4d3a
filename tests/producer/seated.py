"""The transaction manager without bytes: the scripted cluster's coordinator responds directly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

import trio
import trio.lowlevel

from trikafka import TopicPartition, Transaction
from trikafka._api.client.service import Service
from trikafka._managers.producer.transaction_coordinator import TransactionCoordinator
from trikafka._managers.producer.transaction_signals import ProducerTransactionSignals
from trikafka._managers.producer.transactions import Transactions
from trikafka._state.producer.transaction_state import ProducerTransaction
from trikafka.config import ProducerConfig
from trikafka.error_codes import ErrorCode
from trikafka.errors import from_code
from trikafka.testing._signal import WakeSignal
from trikafka.testing.transactions import Identity
from trikafka.testing.transactions import TransactionCoordinatorState as Coordinator
from trikafka.types import Node

# A test that interrupts a transaction at every moment needs thousands of runs. With a whole
# producer they would take minutes. So the network and the records are replaced: a request calls the
# scripted coordinator directly, and the records are one record. The manager, the state, the
# conversation with the coordinator and the user's block are the real ones, since their order of
# steps is what is tested. Checkpoints stand for the way to the broker (turns), so that other tasks
# run in between.

T0 = TopicPartition("t", 0)
NAME = "x"


async def turns(count: int = 3) -> None:
    """Let other tasks run, as a request to a broker would."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


class Direct:
    """The brokers, their only connection, and the coordinator look-up.

    A request is carried out directly on the scripted coordinator.
    """

    def __init__(self, version: int) -> None:
        #: True for each commit marker of the coordinator, False for each abort marker.
        self.markers: list[bool] = []
        ids = iter(range(1_000_000))
        self.coordinator = Coordinator(lambda: 0, lambda: next(ids), WakeSignal())
        self.coordinator.version = version
        self.coordinator.write_marker = lambda target, producer, commit: (
            not self.markers.append(commit)
        )
        self.features: Mapping[str, int] = {"transaction.version": version}

    async def find(self, key: str, kind: object = None) -> int:
        return 0

    def mark_unknown(self, key: str, kind: object = None) -> None:
        pass

    async def connection(self, node: Node | int, purpose: str) -> Any:
        await turns(1)
        return self

    async def request(self, request: Any) -> Any:
        await turns()
        response = self._carry_out(request)
        await turns()
        return response

    def _carry_out(self, request: Any) -> Any:
        name = type(request).__name__
        if name == "InitProducerIdRequest":
            said = Identity(request.producer_id, request.producer_epoch)
            expected = None if said == Identity() else said
            found = self.coordinator.initialize(NAME, 60_000, expected, two_phase=False, keep=False)
        elif name == "EndTxnRequest":
            said = Identity(request.producer_id, request.producer_epoch)
            bumps = self.coordinator.version >= 2
            found = self.coordinator.end(NAME, said, commit=request.committed, bumps=bumps)
        else:
            said = Identity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            code = self.coordinator.add(NAME, said, [tuple(T0)])
            part = SimpleNamespace(partition_index=0, partition_error_code=code)
            topic = SimpleNamespace(name="t", results_by_partition=[part])
            return SimpleNamespace(results_by_topic_v3_and_below=[topic])
        return SimpleNamespace(
            error_code=found.error,
            producer_id=found.identity.producer_id,
            producer_epoch=found.identity.epoch,
        )


class Records:
    """The produce manager's place, with one record: it is delivered, refused, or dropped."""

    def __init__(
        self, direct: Direct, transaction: ProducerTransaction, hold: trio.Event | None
    ) -> None:
        self._direct = direct
        self._transaction = transaction
        self._hold = hold
        self._admitted = trio.Event()
        self._outcome = trio.Event()
        self._flying: trio.Event | None = None

    async def send(self) -> None:
        """Send the record as a sender task does: once its partition is part of the transaction."""
        while not self._outcome.is_set() and not self._transaction.admits(T0):
            self._admitted = trio.Event()
            await self._admitted.wait()
        if self._outcome.is_set():
            return
        identity = self._transaction.given
        self._flying = trio.Event()
        try:
            await turns()
            code = self._direct.coordinator.add(NAME, Identity(*identity), [tuple(T0)])
            if self._hold is not None:
                await self._hold.wait()
                code = code or ErrorCode.MESSAGE_TOO_LARGE
            await turns()
        finally:
            self._flying.set()
        if code and not self._outcome.is_set():
            self._transaction.failed(from_code(code))
        self._outcome.set()

    async def drain(self) -> None:
        await self._outcome.wait()

    def drop(self, error: Exception, at_most: float = 0, *, unsent: bool = False) -> bool:
        if not self._outcome.is_set() and not (unsent and self._flying is not None):
            self._outcome.set()
            self._transaction.failed(error)
        self._admitted.set()
        return False

    def partitions_added(self) -> None:
        self._admitted.set()

    def delayed(self, error: Exception) -> None:
        pass

    def identify(self, identity: Collection[int]) -> None:
        pass

    async def wait_none_in_flight(self) -> None:
        if self._flying is not None:
            await self._flying.wait()


class Seated:
    """A producer's transactions with their tasks in ``nursery``.

    With ``hold`` the record is refused once that event is set.
    """

    def __init__(self, version: int, nursery: trio.Nursery, hold: trio.Event | None = None) -> None:
        signals = ProducerTransactionSignals()
        self.direct = Direct(version)
        self.state = ProducerTransaction(
            changed=signals.changed.notify, wanted=signals.wanted.notify
        )
        self.records = Records(self.direct, self.state, hold)
        seats: Any = self.direct, self.records
        coordinator = TransactionCoordinator(_CONFIG, seats[0], seats[0])
        self.manager = Transactions(
            _CONFIG, coordinator, seats[1], self.state, signals, nursery.start_soon
        )

    def transaction(self) -> Transaction:
        check_open: Callable[[], object] = lambda: None  # noqa: E731
        return Transaction(
            self.manager, self.state, _CONFIG, None, check_open, Service(trio.CancelScope())
        )


_CONFIG = ProducerConfig(transactional_id=NAME)
