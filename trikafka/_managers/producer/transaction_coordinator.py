"""The conversation with a transaction coordinator: one attempt of each request.

Error codes become exceptions here. Only the cache of coordinators changes; what a response means
for the transaction is decided by the transaction manager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..._net import reasons
from ..._state.producer.sequences import ProducerIdentity
from ...config import ProducerConfig
from ...error_codes import ErrorCode
from ...errors import (
    BrokerResponseError,
    MemberFencedError,
    ProducerFencedError,
    TrikafkaError,
    UnsupportedVersionError,
    from_code,
)
from ...errors.groups import with_others
from ...interfaces import BrokerAccess, CoordinatorKind, CoordinatorManager
from ...types import GroupMetadata, OffsetAndMetadata, TopicPartition
from . import transaction_messages as messages
from .transaction_failures import over_at_broker

#: The feature that names the version of the transaction protocol of a cluster (KIP-584, KIP-890).
_FEATURE, _V2 = "transaction.version", 2
#: The longest transaction of the protocol. With two-phase commit no transaction times out
#: (KIP-939).
_FOR_EVER_MS = 2**31 - 1


class TransactionCoordinator:
    """Requests to the coordinator of one transactional id.

    Offsets of a transaction go to the coordinator of their group.
    """

    def __init__(
        self, config: ProducerConfig, brokers: BrokerAccess, coordinators: CoordinatorManager
    ) -> None:
        assert config.transactional_id is not None
        self._config = config
        self._brokers = brokers
        self._coordinators = coordinators
        self._id = config.transactional_id
        #: The version of the transaction protocol, as of the last request to the coordinator.
        self.version = 1
        self.reason = reasons.WaitContext()  # what the last request waits for, or failed with

    async def initialize(self, current: ProducerIdentity | None) -> ProducerIdentity:
        """Get an identity, or with ``current`` its next epoch.

        The coordinator fences all other producers with this id and aborts what they left open.
        """
        two_phase = self._config.two_phase_commit
        timeout_ms = _FOR_EVER_MS if two_phase else int(self._config.transaction_timeout_ms)
        request = messages.init_producer_id(
            self._id, timeout_ms, current, two_phase_commit=two_phase
        )
        try:
            response = await self._ask(request)
            self._raise_for(response.error_code, "InitProducerId", in_transaction=False)
        except UnsupportedVersionError as error:
            what = (
                "two_phase_commit=True needs brokers with KIP-939"
                if two_phase
                else "transactions need brokers from Kafka 2.5 on"
            )
            raise UnsupportedVersionError(f"{what}: {error}") from error
        except BrokerResponseError as error:
            if two_phase and error.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                hint = (
                    "; two_phase_commit=True needs transaction.two.phase.commit.enable on the "
                    "brokers, and its permission"
                )
                error.args = (f"{error}{hint}",)
            raise
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    async def add_partitions(
        self, identity: ProducerIdentity, partitions: list[TopicPartition]
    ) -> tuple[list[TopicPartition], TrikafkaError | None]:
        """Add partitions to the transaction (version 1).

        Returns the partitions that the coordinator knows now, and the worst error of the others.
        """
        response = await self._ask(messages.add_partitions(self._id, identity, partitions))
        codes = messages.read_added(response, partitions)
        wrong = [
            self._in_transaction(
                from_code(code, f"{tp} in a transaction of {self._id!r}", operation="Write")
            )
            for tp, code in codes.items()
            if code
        ]
        return [tp for tp, code in codes.items() if not code], _cause(wrong)

    async def add_offsets(self, identity: ProducerIdentity, group: str) -> None:
        """Announce that offsets of ``group`` will follow (version 1)."""
        response = await self._ask(messages.add_offsets(self._id, identity, group))
        self._raise_for(response.error_code, f"AddOffsetsToTxn for group {group!r}")

    async def commit_offsets(
        self,
        identity: ProducerIdentity,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        version: int,
    ) -> None:
        """Make offsets part of the transaction, at the group's coordinator."""
        node = await self._coordinators.find(group.group_id)
        request = messages.commit_offsets(self._id, identity, group, offsets, version)
        try:
            response = await self._brokers.request(node, request, purpose="coordinator")
            errors = messages.read_committed(response, offsets, group, self._id)
            if errors:
                raise _cause(errors) or errors[0]
        except TrikafkaError as error:
            if error.refresh_coordinator:
                self._coordinators.mark_unknown(group.group_id)
            # A heartbeat may have brought a newer epoch than the one that was read here: worth
            # another attempt.
            if isinstance(error, MemberFencedError) and error.code == ErrorCode.STALE_MEMBER_EPOCH:
                error.retriable = True
            if isinstance(error, ProducerFencedError):
                raise over_at_broker(error) from error
            raise

    async def end(
        self,
        identity: ProducerIdentity,
        version: int,
        *,
        commit: bool,
        sending: Callable[[], object] = lambda: None,
    ) -> ProducerIdentity | None:
        """End the transaction; return the identity of the next one, where there is one (version 2).

        ``sending`` is called when the request goes out. An error before that proves that the
        coordinator did not see the request.
        """
        response = await self._ask(
            messages.end(self._id, identity, version, commit=commit), sending
        )
        self._raise_for(response.error_code, f"EndTxn({'commit' if commit else 'abort'})")
        return messages.read_next(response)

    async def _ask(self, request: Any, sending: Callable[[], object] = lambda: None) -> Any:
        with reasons.reasoning(self.reason):
            try:
                node = await self._coordinators.find(self._id, CoordinatorKind.TRANSACTION)
                connection = await self._brokers.connection(node, "coordinator")
                self.version = 2 if connection.features.get(_FEATURE, 0) >= _V2 else 1
                sending()
                response = await connection.request(request)
            except TrikafkaError as error:
                reasons.failed(error)
                self.failed(error)
                raise
        self.reason.clear()
        return response

    def failed(self, error: TrikafkaError) -> None:
        """Apply the error of a failed attempt to the coordinator."""
        if error.refresh_coordinator:
            self._coordinators.mark_unknown(self._id, CoordinatorKind.TRANSACTION)

    def _raise_for(self, code: int, what: str, *, in_transaction: bool = True) -> None:
        if code:
            # AddOffsetsToTxn needs a permission for the group, too.
            operation = "Read" if code == ErrorCode.GROUP_AUTHORIZATION_FAILED else "Write"
            error = from_code(code, f"{what} of {self._id!r}", operation=operation)
            if in_transaction:
                error = self._in_transaction(error)
            with reasons.reasoning(self.reason):
                reasons.failed(error)
            self.failed(error)
            raise error

    def _in_transaction(self, error: BrokerResponseError) -> BrokerResponseError:
        """Name the other cause of a refusal within a transaction, which the code does not tell.

        A coordinator of version 1 raises the epoch when it aborts an expired transaction, and then
        refuses that transaction's producer as it refuses one that another has fenced.
        """
        if isinstance(error, ProducerFencedError) and self.version < 2:
            also = "or the transaction was open for longer than transaction_timeout_ms"
            error.args = (f"{error}; {also}",)
        return error


def _cause(errors: Sequence[BrokerResponseError]) -> BrokerResponseError | None:
    """Return the error to act on: the worst one. ``None`` if there is none.

    The coordinator adds all partitions or none. If one is refused, the others have
    OPERATION_NOT_ATTEMPTED, which says nothing of them: they are sent again with whatever follows
    from the refused one. Notes name the other refusals.
    """

    def harm(error: BrokerResponseError) -> tuple[bool, bool, bool]:
        return error.code != ErrorCode.OPERATION_NOT_ATTEMPTED, error.fatal, not error.retriable

    if not errors:
        return None
    refused = [error for error in errors if error.code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return with_others(max(errors, key=harm), refused)
