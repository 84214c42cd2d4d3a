"""Ends a transaction whose producer has detached it: EndTxn by whoever holds its name, until the coordinator has said how it is.

Asking again is safe. The coordinator takes the epoch that the transaction had until another producer has the transactional id: in
version 1 because an end leaves the epoch as it is, in version 2 (KIP-890) because it knows the epoch before its own.
"""

from __future__ import annotations

from typing import NoReturn

from .._managers import transaction_messages as messages
from .._net.deadlines import Call
from .._state.sequences import Identity
from ..error_codes import ErrorCode
from ..errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    RequestTimedOutError,
    TransactionNotOpenError,
    TransactionUndecidedError,
    TrikafkaError,
    from_code,
)
from ..interfaces import BrokerAccess, CoordinatorKind, CoordinatorManager
from ..types import DetachedTransaction, Node
from .admin_places import at_coordinators

#: What the coordinator says of a transaction that is not open any more as the one that was detached.
_GONE = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)  # fmt: skip


class TransactionEnd:
    """The end of one transaction, over all attempts of a call."""

    def __init__(
        self, brokers: BrokerAccess, coordinators: CoordinatorManager, transaction: DetachedTransaction, *, commit: bool
    ) -> None:
        self._brokers, self._coordinators = brokers, coordinators
        self._transaction, self._commit = transaction, commit
        self._unanswered = False  # a request may have been heard, though there was no response

    async def attempt(self, call: Call) -> None:
        """Ask the coordinator once."""
        names = [self._transaction.transactional_id]
        await at_coordinators(call, self._coordinators, CoordinatorKind.TRANSACTION, names, lambda node, _: self._ask(call, node))

    async def _ask(self, call: Call, node: Node) -> None:
        transaction = self._transaction
        identity = Identity(transaction.producer_id, transaction.epoch)
        request = messages.end(transaction.transactional_id, identity, transaction.version, commit=self._commit)
        try:
            response = await call.step(f"EndTxn to {node}", lambda: self._brokers.request(node, request))
        except (RequestTimedOutError, KafkaConnectionError):
            self._unanswered = True
            raise
        if response.error_code:
            self._refuse(response.error_code)

    def _refuse(self, code: int) -> NoReturn:
        what = f"{'committing' if self._commit else 'aborting'} the transaction {self._transaction}"
        error = from_code(code, what, operation="Write")
        if code not in _GONE:
            raise error
        why = "it was open for longer than its transaction_timeout_ms, another producer was opened with its transactional id,"
        why += " this cluster never had it," if code == ErrorCode.INVALID_PRODUCER_ID_MAPPING else ""
        why += " or it has been ended"
        why += ", perhaps by an earlier attempt of this call, which got no response" if self._unanswered else ""
        raise TransactionNotOpenError(f"{what}: it is not open any more; {why} ({error.name})") from error

    def undecided(self, error: TrikafkaError) -> TransactionUndecidedError:
        """What to raise when the time of the call is up, or it may not ask again."""
        text = f"{error}; whether the transaction {self._transaction} has ended is not known: end_transaction may be called again"
        if isinstance(error, KafkaTimeoutError):
            return TransactionUndecidedError(text, error.limit, error.attempts, error.last_error, error.call)
        return TransactionUndecidedError(text, last_error=error)
