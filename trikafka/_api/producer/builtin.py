"""The built-in plugin of a producer: its request managers."""

from __future__ import annotations

from typing import Protocol

from ... import interfaces
from ..._managers.cluster.builtin import Builtin
from ..._managers.producer.produce import BatchProducing
from ..._managers.producer.transaction_coordinator import TransactionCoordinator
from ..._managers.producer.transaction_signals import ProducerTransactionSignals
from ..._managers.producer.transactions import Transactions
from ..._net.brokers import Brokers
from ..._state.producer.transaction_state import ProducerTransaction
from ..._state.telemetry.metrics import Meter
from ..client.codecs import GuardedCodec
from .ack import acks_of_this_run


class ProducerClient(interfaces.ProducerContext, Protocol):
    """A producer's context, with trikafka's own objects in it."""

    @property
    def brokers(self) -> Brokers: ...
    @property
    def codec(self) -> GuardedCodec | None: ...
    @property
    def metrics(self) -> Meter: ...
    @property
    def transaction(self) -> ProducerTransaction | None: ...
    @property
    def transaction_signals(self) -> ProducerTransactionSignals: ...


class ProducerBuiltin(Builtin):
    """The request managers of a producer."""

    @staticmethod
    def _produce(client: ProducerClient) -> interfaces.ProduceManager:
        return BatchProducing(
            client.config,
            client.brokers,
            client.manager("metadata"),
            client.start_soon,
            acks_of_this_run(),
            client.partitioner,
            client.transaction,
            client.watch,
            client.codec,
            client.metrics,
        )

    @staticmethod
    def _transactions(client: ProducerClient) -> interfaces.TransactionManager:
        coordinator = TransactionCoordinator(
            client.config, client.brokers, client.manager("coordinator")
        )
        produce = client.manager("produce")
        transaction = client.transaction
        assert transaction is not None
        return Transactions(
            client.config,
            coordinator,
            produce,
            transaction,
            client.transaction_signals,
            client.start_soon,
        )
