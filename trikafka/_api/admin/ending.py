"""The end of a detached transaction: EndTxn until the coordinator has decided.

Repeating the request is safe. Until another producer has the transactional id, the coordinator
accepts the epoch that the transaction had. In transaction version 1 the end does not change the
epoch. In version 2 (KIP-890) the coordinator still knows the epoch before the current one.
"""

from __future__ import annotations

from typing import NoReturn

from ..._managers.producer import transaction_messages as messages
from ..._net.deadlines import RunningCall
from ..._state.producer.sequences import ProducerIdentity
from ..._state.producer.transaction_proofs import Proof, proof_of
from ...error_codes import ErrorCode
from ...errors import (
    KafkaTimeoutError,
    TransactionNotOpenError,
    TransactionUndecidedError,
    TrikafkaError,
    from_code,
)
from ...interfaces import BrokerAccess, CoordinatorKind, CoordinatorManager
from ...types import DetachedTransaction, Node
from .places import at_coordinators

#: The coordinator's errors for a transaction that is no longer open as it was detached.
_GONE = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


class TransactionEnd:
    """The end of one transaction, over all attempts of a call."""

    def __init__(
        self,
        brokers: BrokerAccess,
        coordinators: CoordinatorManager,
        transaction: DetachedTransaction,
        *,
        commit: bool,
    ) -> None:
        self._brokers = brokers
        self._coordinators = coordinators
        self._transaction = transaction
        self._commit = commit
        # True if an attempt may have been carried out, although no response confirmed it.
        self.in_doubt = False

    async def attempt(self, call: RunningCall) -> None:
        """Send one EndTxn request to the coordinator.

        Raises:
            TransactionNotOpenError: The transaction is not open any more.
            TrikafkaError: The request failed. The error is retriable if a repetition may succeed.
        """
        names = [self._transaction.transactional_id]
        await at_coordinators(
            call,
            self._coordinators,
            CoordinatorKind.TRANSACTION,
            names,
            lambda node, _: self._ask(call, node),
        )

    async def _ask(self, call: RunningCall, node: Node) -> None:
        transaction = self._transaction
        identity = ProducerIdentity(transaction.producer_id, transaction.epoch)
        request = messages.end(
            transaction.transactional_id, identity, transaction.version, commit=self._commit
        )
        try:
            response = await call.step(
                f"EndTxn to {node}", lambda: self._brokers.request(node, request)
            )
        except TrikafkaError as error:
            self.in_doubt = self.in_doubt or proof_of(error, "EndTxn") is Proof.NOTHING
            raise
        if response.error_code:
            self._refuse(response.error_code)

    def _refuse(self, code: int) -> NoReturn:
        what = f"{'committing' if self._commit else 'aborting'} the transaction {self._transaction}"
        error = from_code(code, what, operation="Write")
        if proof_of(error, "EndTxn") is Proof.NOTHING:
            # Repeating the request is safe, and its response will show the outcome.
            self.in_doubt = True
            error.retriable = True
        if code not in _GONE:
            raise error
        why = (
            "it was open for longer than its transaction_timeout_ms, another producer was opened "
            "with its transactional id,"
        )
        why += (
            " this cluster never had it," if code == ErrorCode.INVALID_PRODUCER_ID_MAPPING else ""
        )
        why += " or it has been ended"
        why += (
            ", perhaps by an earlier attempt of this call, whose response is missing"
            if self.in_doubt
            else ""
        )
        raise TransactionNotOpenError(
            f"{what}: it is not open any more; {why} ({error.name})"
        ) from error

    def undecided(self, error: TrikafkaError) -> TransactionUndecidedError:
        """Return the error for a call that ends with an unknown outcome.

        Its time is up, or its last error does not allow another attempt.
        """
        text = (
            f"{error}; whether the transaction {self._transaction} has ended is not known: "
            "end_transaction may be called again"
        )
        if isinstance(error, KafkaTimeoutError):
            return TransactionUndecidedError(
                text, error.limit, error.attempts, error.last_error, error.call
            )
        return TransactionUndecidedError(text, last_error=error)
