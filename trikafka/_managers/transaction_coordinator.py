"""The conversation with a transaction coordinator: one attempt of each request, its codes turned into errors.

It changes no state but the cache of coordinators; what a response means for the transaction, the transaction manager decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._state.sequences import Identity
from ..config import ProducerConfig
from ..error_codes import ErrorCode
from ..errors import BrokerResponseError, MemberFencedError, TrikafkaError, UnsupportedVersionError, from_code
from ..interfaces import BrokerAccess, CoordinatorKind, CoordinatorManager
from ..types import GroupMetadata, OffsetAndMetadata, TopicPartition
from . import transaction_messages as messages

#: The feature that says which version of the protocol of transactions a cluster has (KIP-584, KIP-890).
_FEATURE, _V2 = "transaction.version", 2
#: What the protocol has as the longest transaction; with two-phase commit none times out (KIP-939).
_FOR_EVER_MS = 2**31 - 1


class TransactionCoordinator:
    """Asks the coordinator of one transactional id, and that of a group for the offsets that belong to its transactions."""

    def __init__(self, config: ProducerConfig, brokers: BrokerAccess, coordinators: CoordinatorManager) -> None:
        assert config.transactional_id is not None
        self._config, self._brokers, self._coordinators = config, brokers, coordinators
        self._id = config.transactional_id
        #: The version of the protocol that the cluster had when the coordinator was last spoken to.
        self.version = 1

    async def initialize(self, current: Identity | None) -> Identity:
        """Get an identity, which fences all others with this id and aborts what they left open; with ``current`` its next epoch."""
        two_phase = self._config.two_phase_commit
        timeout_ms = _FOR_EVER_MS if two_phase else int(self._config.transaction_timeout_ms)
        request = messages.init_producer_id(self._id, timeout_ms, current, two_phase_commit=two_phase)
        try:
            response = await self._ask(request)
            self._raise_for(response.error_code, "InitProducerId")
        except UnsupportedVersionError as error:
            what = (
                "two_phase_commit=True needs brokers with KIP-939" if two_phase else "transactions need brokers from Kafka 2.5 on"
            )
            raise UnsupportedVersionError(f"{what}: {error}") from error
        except BrokerResponseError as error:
            if two_phase and error.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                hint = "; two_phase_commit=True needs transaction.two.phase.commit.enable on the brokers, and its permission"
                error.args = (f"{error}{hint}",)
            raise
        return Identity(response.producer_id, response.producer_epoch)

    async def add_partitions(
        self, identity: Identity, partitions: list[TopicPartition]
    ) -> tuple[list[TopicPartition], TrikafkaError | None]:
        """Tell of partitions (version 1). Returns those that the coordinator knows now, and what was wrong with the others."""
        response = await self._ask(messages.add_partitions(self._id, identity, partitions))
        codes = messages.read_added(response, partitions)
        wrong = [from_code(code, f"{tp} in a transaction of {self._id!r}", operation="Write") for tp, code in codes.items() if code]
        first = next((error for error in wrong if not error.retriable), wrong[0] if wrong else None)
        return [tp for tp, code in codes.items() if not code], first

    async def add_offsets(self, identity: Identity, group: str) -> None:
        """Tell that offsets of ``group`` will follow (version 1)."""
        response = await self._ask(messages.add_offsets(self._id, identity, group))
        self._raise_for(response.error_code, f"AddOffsetsToTxn for group {group!r}")

    async def commit_offsets(
        self, identity: Identity, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata], version: int
    ) -> None:
        """Make offsets part of the transaction, at the group's coordinator."""
        node = await self._coordinators.find(group.group_id)
        request = messages.commit_offsets(self._id, identity, group, offsets, version)
        try:
            response = await self._brokers.request(node, request, purpose="coordinator")
            errors = messages.read_committed(response, offsets, group.group_id)
            if errors:
                raise next((error for error in errors if not error.retriable), errors[0])
        except TrikafkaError as error:
            if error.refresh_coordinator:
                self._coordinators.mark_unknown(group.group_id)
            # The epoch that a heartbeat has brought is newer than the one that was read here: worth another attempt.
            if isinstance(error, MemberFencedError) and error.code == ErrorCode.STALE_MEMBER_EPOCH:
                error.retriable = True
            raise

    async def end(self, identity: Identity, version: int, *, commit: bool) -> Identity | None:
        """End the transaction; returns the identity of the next one, where the coordinator gives it (version 2)."""
        response = await self._ask(messages.end(self._id, identity, version, commit=commit))
        self._raise_for(response.error_code, f"EndTxn({'commit' if commit else 'abort'})")
        return messages.read_next(response)

    async def _ask(self, request: Any) -> Any:
        node = await self._coordinators.find(self._id, CoordinatorKind.TRANSACTION)
        try:
            connection = await self._brokers.connection(node, "coordinator")
            self.version = 2 if connection.features.get(_FEATURE, 0) >= _V2 else 1
            return await connection.request(request)
        except TrikafkaError as error:
            self.failed(error)
            raise

    def failed(self, error: TrikafkaError) -> None:
        """Note what a failed attempt says of the coordinator."""
        if error.refresh_coordinator:
            self._coordinators.mark_unknown(self._id, CoordinatorKind.TRANSACTION)

    def _raise_for(self, code: int, what: str) -> None:
        if code:
            error = from_code(code, f"{what} of {self._id!r}", operation="Write")
            self.failed(error)
            raise error
