"""The watchdog of a producer: its records' outcomes, the end of its transaction.

See :mod:`.stalls`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from ..._managers.producer.produce import BatchProducing
from ..._managers.producer.transactions import Transactions
from ..._net.outages import Outages
from ..._state.producer.batch_completion import OldestBatch
from ..._state.producer.transaction_state import ProducerTransaction, TransactionState
from ...config import ProducerConfig
from ...errors import TrikafkaError
from ...interfaces import MetadataManager, ProduceManager, TransactionManager
from ..client.stalls import NEVER, Owed, StallWatch, calls_owed, metadata_owed

_log = logging.getLogger("trikafka.producer")
_S = TransactionState
#: The states in which a coordinator has to act.
_ENDING = frozenset({_S.INITIALIZING, _S.COMMITTING, _S.ABORTING, _S.UNDECIDED})


class ProducerWatchdog(StallWatch):
    """The watch over the progress that one producer owes."""

    def __init__(
        self,
        config: ProducerConfig,
        outages: Outages,
        metadata: MetadataManager,
        produce: ProduceManager,
        transaction: ProducerTransaction | None,
        transactions: TransactionManager | None,
    ) -> None:
        sources: list[Callable[[float], Iterator[Owed]]] = [self._records, self._transaction_end]
        sources += [partial(metadata_owed, metadata, outages), partial(calls_owed, config)]
        limit = config.stall_warning_ms / 1000
        super().__init__(_log, limit, sources, f"producer {config.client_id!r}")
        self._config = config
        self._outages = outages
        self._metadata = metadata
        self._produce = produce
        self._transaction = transaction
        self._transactions = transactions

    def _records(self, now: float) -> Iterator[Owed]:
        if not isinstance(self._produce, BatchProducing):
            return  # a plugin does not report what waits
        for head in self._produce.heads():
            place = head.batch.place
            yield Owed(
                place,
                str(place),
                head.batch,
                head.since,
                partial(self._why, self._produce, head, now),
            )

    def _why(self, produce: BatchProducing[object], head: OldestBatch, now: float) -> str:
        age = now - head.batch.created
        return (
            f"a record has had no outcome for {age:.0f} s ({head.phase}): "
            f"{self._cause(produce, head)}"
        )

    def _cause(self, produce: BatchProducing[object], head: OldestBatch) -> str:
        try:
            leader = self._metadata.snapshot.leader(head.batch.place)
        except TrikafkaError as error:
            return str(head.batch.last_error or error)
        outage = self._outages.unreachable().get(leader)
        return (
            produce.obstacle_of(head.batch)
            if outage is None
            else f"its leader cannot be reached: {outage.error}"
        )

    def _transaction_end(self, now: float) -> Iterator[Owed]:
        transaction = self._transaction
        transactions = self._transactions
        if transaction is None:
            return
        pending = transaction.state in _ENDING
        obstacle = transactions.obstacle if isinstance(transactions, Transactions) else None

        def why() -> str:
            missing = obstacle or "the coordinator has not responded yet"
            return f"its state is {transaction.state.value!r}: {missing}"

        name = f"transaction of {self._config.transactional_id!r}"
        yield Owed(
            "transaction", name, (transaction.number, pending), NEVER if pending else now, why
        )
