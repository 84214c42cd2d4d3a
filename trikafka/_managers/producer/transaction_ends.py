"""The end of a transaction: EndTxn until the outcome is known, then the next epoch.

A part of the transaction manager. Tasks of the client run it, so the end goes on when a caller is
cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ..._net import reasons
from ..._net.retry import Retry
from ..._state.producer.sequences import ProducerIdentity
from ..._state.producer.transaction_proofs import Proof, proof_of
from ..._state.producer.transaction_state import ProducerTransaction, TransactionState
from ...config import ProducerConfig
from ...error_codes import ErrorCode
from ...errors import (
    AuthenticationError,
    AuthorizationError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionUndecidedError,
    TrikafkaError,
)
from ...errors.refusals import may_be_lifted
from ...interfaces import ProduceManager
from .offsets_under_way import OffsetsUnderWay
from .transaction_coordinator import TransactionCoordinator
from .transaction_failures import TransactionFailures

#: The most seconds between two attempts while the markers of the last transaction are written.
MARKERS = 0.02
#: The number of such attempts; after them the waits are the usual ones.
QUICK_ATTEMPTS = 25
#: The coordinator has another producer id for the transactional id, or has forgotten it
#: (transactional.id.expiration.ms).
FORGOTTEN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
_log = logging.getLogger("trikafka.transactions")


class PendingEndTxn:
    """The end of one transaction, and its outcome."""

    __slots__ = (
        "_heard",
        "_unproven",
        "commit",
        "done",
        "doubt",
        "error",
        "forgotten",
        "is_reported",
        "named",
        "number",
        "over",
        "reason",
    )

    def __init__(self, number: int, commit: bool, named: bool) -> None:
        self.number = number
        self.commit = commit
        # True for a prepared transaction. Other programs know its identity and may end it, even
        # late. Without a new epoch, a late request of theirs would end the next transaction.
        self.named = named
        # True once the transaction has ended as requested; the next epoch may still be missing.
        self.over = False
        # Why an attempt may have been carried out although its response did not say so.
        self.doubt = ""
        # True if the coordinator does not know this producer id any more.
        self.forgotten = False
        self.done = trio.Event()
        # Why the transaction did not end as requested.
        self.error: Exception | None = None
        # True if a call that asked for this end raises or returns its outcome.
        self.is_reported = True
        self.reason = reasons.WaitContext()
        self._heard = False
        self._unproven = False

    def will_be_reported(self) -> None:
        """Record that a call raises or returns the outcome."""
        self.is_reported = True
        self._heard = True

    def will_not_be_reported(self) -> None:
        """Record that a call that asked for this end was cut off."""
        self.is_reported = self._heard

    def ended(self) -> None:
        """Record that the transaction has ended as requested."""
        self.over = True
        self.error = None

    def failed(self, error: Exception | None) -> None:
        """Record why the transaction did not end as requested, or why that cannot be known."""
        self.error = error

    def sent(self) -> None:
        """Record that EndTxn is being sent.

        From now on the coordinator may carry it out, unless :meth:`refused` proves the contrary.
        """
        self._unproven = True

    def refused(self, error: TrikafkaError) -> Proof:
        """Return what the failure of the last attempt proves.

        If the failure proves nothing, a doubt about the attempt stays.
        """
        proof = proof_of(error, "EndTxn") if self._unproven else Proof.NOT_DONE
        self._unproven = False
        self.forgotten = error.code == FORGOTTEN
        if proof is Proof.NOT_COMMITTED:
            self.doubt = ""
        elif proof is Proof.NOTHING:
            got = (
                "no response"
                if error.code is None
                else f"the response {getattr(error, 'name', error.code)}, which does not say"
            )
            self.doubt = f"an earlier attempt got {got}"
        return proof

    async def settled(self) -> None:
        """Wait until the transaction has ended, or has failed to end; raise nothing.

        Cancelling this wait does not stop the end itself.
        """
        with reasons.waiting_behind(self.reason):
            await self.done.wait()


class TransactionEnds:
    """The part of the transaction manager that ends transactions."""

    def __init__(
        self,
        config: ProducerConfig,
        coordinator: TransactionCoordinator,
        produce: ProduceManager,
        transaction: ProducerTransaction,
        failures: TransactionFailures,
        offsets: OffsetsUnderWay,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._produce = produce
        self._transaction = transaction
        self._failures = failures
        self._offsets = offsets

    async def carry_out(self, pending: PendingEndTxn) -> None:
        """End the transaction, and get the identity of the next one."""
        # The order of the steps. An abort first fails all records without an outcome, so that their
        # callers return and their memory is free at once. With transaction.version 1 it then waits
        # until nothing is in flight: a batch or an offset commit that reached the broker after the
        # abort would begin a transaction that no request ends. With version 2 (KIP-890) each
        # transaction has an epoch of its own, and the broker refuses late arrivals. A commit needs
        # no such wait, because its caller has flushed everything before.
        #
        # The next epoch is requested here and not by the next `begin`, because `begin` makes no
        # request. A request is needed if the coordinator has not returned the next epoch (version
        # 1), and either this was an abort, or the cluster has been upgraded meanwhile, or the
        # transaction was prepared and others know its identity.
        #
        # The error that is set first stands only if this task is cancelled, which happens when the
        # client closes.
        reasons.adopt(pending.reason)
        pending.failed(
            TransactionUndecidedError(
                "the producer was closed before the outcome of the transaction was known"
            )
        )
        transaction = self._transaction
        version = self._transaction.version
        try:
            if not pending.commit:
                await self._failures.abort_all()
            if not transaction.started:
                transaction.ended()
                pending.ended()
                return
            if not pending.commit and version < 2:
                # See above: a request that arrives after the abort would begin another transaction.
                await self._produce.wait_none_in_flight()
                await self._offsets.ended()
            following = await self._ended_by_coordinator(pending, version)
            upgraded = self._coordinator.version > version
            renew = following is None and (upgraded or not pending.commit or pending.named)
            transaction.ended(following, renew=renew)
            pending.ended()
            if following is not None:
                self._produce.identify(following)
            if renew:
                await self._renew(forgotten=pending.forgotten)
        except TrikafkaError as error:
            self._not_ended(pending, error)
        finally:
            pending.done.set()

    async def _ended_by_coordinator(
        self, pending: PendingEndTxn, version: int
    ) -> ProducerIdentity | None:
        """Send EndTxn until the coordinator's response is conclusive.

        Return the identity for the next transaction, or ``None`` if the response has none.
        """
        # A lost response proves nothing. The coordinator appends the outcome to its log before it
        # responds. So the request may have been carried out after a timeout, a lost connection, or
        # even an error code of the append itself. Unless the table of proofs
        # (`_state/producer/transaction_proofs.py`) has the error, it means "may have been done".
        # EndTxn is then sent again with the same epoch, by which the coordinator recognizes the
        # copy: it responds to a repeated commit as it did to the first one.
        #
        # There are three proofs:
        #
        # * NOTHING: the request is sent again, and the doubt is kept (`PendingEndTxn.doubt`).
        # * NOT_DONE: this attempt has changed nothing, but an earlier one with a doubt may have.
        # * NOT_COMMITTED: no attempt has committed, nor will one, so there is no doubt any more.
        #
        # Without a doubt, a missing permission ends a commit at once, and its caller may abort.
        # With a doubt the request is repeated, because only the coordinator knows the outcome:
        # consumers may already read the records of a transaction that an error would call failed.
        retry = Retry(self._config)
        while True:
            try:
                return await self._coordinator.end(
                    self._transaction.given, version, commit=pending.commit, sending=pending.sent
                )
            except TrikafkaError as error:
                proof = pending.refused(error)
                if not pending.commit and error.code in (ErrorCode.INVALID_TXN_STATE, FORGOTTEN):
                    # The coordinator has no open transaction, because nothing was added to it. The
                    # request for the next epoch will show whether the identity is still valid.
                    return None
                if not _asks_again(pending, error, proof):
                    raise
                if not error.retriable and not retry.failures:
                    why = (
                        "this response does not show whether the transaction has ended"
                        if proof is Proof.NOTHING
                        else "the transaction has not ended"
                    )
                    _log.warning("sending EndTxn again, because %s: %s", why, error)
                await self._hold_back(retry, error)

    def _not_ended(self, pending: PendingEndTxn, error: TrikafkaError) -> None:
        transaction = self._transaction
        in_doubt = pending.commit and (bool(pending.doubt) or pending.named)
        # The transaction has ended, but there is no identity for the next one.
        if transaction.state is TransactionState.INITIALIZING:
            transaction.ruined(error)
            _log.error("no next transaction is possible, close this producer: %s", error)
        elif pending.commit and (
            proof_of(error, "EndTxn") is Proof.NOT_COMMITTED or not (error.fatal or in_doubt)
        ):
            transaction.not_committed(error)
            late = (
                "; was it open for longer than transaction_timeout_ms?"
                if error.code == ErrorCode.INVALID_TXN_STATE
                else ""
            )
            refused = TransactionAbortableError(f"the transaction was not committed: {error}{late}")
            refused.__cause__ = error
            pending.failed(refused)
        else:
            transaction.ruined(error)
            pending.failed(transaction.error)
            if pending.error is not None and in_doubt:
                others = pending.doubt or "it was prepared, so another program may have ended it"
                pending.error.add_note(
                    f"Whether the transaction was committed is unknown: {others}."
                )

    async def _renew(self, *, forgotten: bool) -> None:
        """Request the next epoch (KIP-360), after which brokers refuse the current one.

        If the coordinator has ``forgotten`` the transactional id, it assigns a new producer id, and
        the request cannot be repeated after a lost response. By then the coordinator no longer
        knows the old producer id, and responds as to a producer that another one has fenced.
        """
        failures = 0

        async def initialize() -> ProducerIdentity:
            nonlocal failures
            try:
                return await self._coordinator.initialize(self._transaction.given)
            except ProducerFencedError as error:
                if not (forgotten and failures):
                    raise
                raise TransactionFatalError(
                    "the coordinator had forgotten the transactional id, and its response to the "
                    "request for a new producer id was lost. By now the transactional id has a "
                    f"producer id, of this producer or of another ({error.name}): close this "
                    "producer, and open it again if no other uses the transactional id"
                ) from error
            except TrikafkaError as error:
                failures += proof_of(error, "InitProducerId") is Proof.NOTHING
                raise

        identity = await self._persist_initialize(initialize)
        self._transaction.initialized(identity)
        self._produce.identify(identity)

    async def _persist_initialize(
        self, attempt: Callable[[], Awaitable[ProducerIdentity]]
    ) -> ProducerIdentity:
        """Call ``attempt`` until it succeeds or fails permanently.

        A request that may have been carried out is safe to repeat (KIP-360).
        """
        retry = Retry(self._config)
        while True:
            try:
                return await attempt()
            except TrikafkaError as error:
                may_pass = error.retriable or isinstance(
                    error, AuthenticationError | AuthorizationError
                )
                unproven = proof_of(error, "InitProducerId") is Proof.NOTHING
                if error.fatal or not (may_pass or unproven):
                    raise
                await self._hold_back(retry, error)

    async def _hold_back(self, retry: Retry, error: TrikafkaError) -> None:
        reasons.failed(error)
        _log.debug("%s (%d failures before)", error, retry.failures)
        await back_off(retry, error)


def _asks_again(pending: PendingEndTxn, error: TrikafkaError, proof: Proof) -> bool:
    """Return whether EndTxn must be sent again, because only the coordinator knows the outcome."""
    if proof is Proof.NOTHING or error.retriable:
        return True
    # Credentials or permissions were missing, or the look-up of the coordinator failed, so this
    # attempt changed nothing. If no earlier attempt can have carried out a commit, it fails at
    # once, so that its caller can abort. In all other cases the request is repeated until the
    # permissions are granted, or the broker has recovered.
    undone = pending.commit and not pending.doubt and not pending.named
    return may_be_lifted(error) and not undone


async def back_off(retry: Retry, error: TrikafkaError) -> None:
    """Wait before another attempt.

    The wait is short while the markers of the last transaction are being written, because that
    takes only a moment. It takes longer while a partition of that transaction has no leader.
    """
    delay = retry.delay()
    if error.code == ErrorCode.CONCURRENT_TRANSACTIONS and retry.failures <= QUICK_ATTEMPTS:
        delay = min(delay, MARKERS)
    await trio.sleep(delay)
