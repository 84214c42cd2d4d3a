"""How a transaction ends, and what the next one begins with: EndTxn until the coordinator has said how it is, the next epoch.

A part of the transaction manager, run by tasks of the client: whoever has asked for it may give up.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from .._net import reasons
from .._net.retry import Retry
from .._state.sequences import Identity
from .._state.transaction import ProducerTransaction, TransactionState
from ..config import ProducerConfig
from ..error_codes import ErrorCode
from ..errors import (
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionUndecidedError,
    TrikafkaError,
)
from ..interfaces import ProduceManager
from .offsets_under_way import OffsetsUnderWay
from .transaction_coordinator import TransactionCoordinator
from .transaction_failures import TransactionFailures

T = TypeVar("T")
#: How long (seconds) to wait for the markers of the last transaction before a look at whether they are written.
_MARKERS = 0.02
#: The coordinator knows the transactional id by another producer id, or has forgotten it (transactional.id.expiration.ms).
FORGOTTEN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
#: After these a request has changed nothing at the coordinator; after others that are retriable it may have.
_NOTHING_DONE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_log = logging.getLogger("trikafka.transactions")


class Ending:
    """The end of one transaction, and how it came out."""

    __slots__ = ("commit", "done", "error", "failures", "forgotten", "named", "number", "reason", "told")

    def __init__(self, number: int, commit: bool, named: bool) -> None:
        self.number, self.commit = number, commit
        self.named = named  # others may end it, also late, and without a new epoch would end the next one
        self.failures = 0  # attempts of which nobody knows whether they have ended it
        self.forgotten = False  # the coordinator knows this producer id no more
        self.done = trio.Event()
        self.error: Exception | None = None  # why it did not end as was wanted
        self.told = True  # whoever asked for it will learn how it came out
        self.reason = reasons.Reason()

    def will_be_told(self) -> None:
        """Whoever asked for it, or the next one who begins, learns how it came out."""
        self.told = True

    def will_not_be_told(self) -> None:
        """The call that asked for it was cut off."""
        self.told = False

    async def settled(self) -> None:
        """Wait for it."""
        with reasons.waiting_behind(self.reason):
            await self.done.wait()


class TransactionEnds:
    """See the module."""

    def __init__(
        self,
        config: ProducerConfig,
        coordinator: TransactionCoordinator,
        produce: ProduceManager,
        transaction: ProducerTransaction,
        failures: TransactionFailures,
        offsets: OffsetsUnderWay,
    ) -> None:
        self._config, self._coordinator, self._produce = config, coordinator, produce
        self._transaction, self._failures, self._offsets = transaction, failures, offsets

    async def carry_out(self, ending: Ending) -> None:
        """End the transaction, and get what the next one begins with."""
        reasons.adopt(ending.reason)
        ending.error = TransactionUndecidedError("the producer was closed before the outcome of the transaction was known")
        transaction, version = self._transaction, self._transaction.version
        try:
            if not ending.commit:
                await self._failures.abort_all()
            if not transaction.started:
                transaction.ended()
                ending.error = None
                return
            if not ending.commit and version < 2:
                await self._produce.landed()  # what comes after the abort would begin a transaction that nobody ends
                await self._offsets.ended()
            following = await self._persist(lambda: self._end_once(ending, version))
            upgraded = self._coordinator.version > version
            renew = following is None and (upgraded or not ending.commit or ending.named)
            transaction.ended(following, renew=renew)
            ending.error = None
            if following is not None:
                self._produce.identify(following)
            if renew:
                await self._renew(forgotten=ending.forgotten)
        except TrikafkaError as error:
            self._not_ended(ending, error)
        finally:
            ending.done.set()

    async def _end_once(self, ending: Ending, version: int) -> Identity | None:
        try:
            return await self._coordinator.end(self._transaction.given, version, commit=ending.commit)
        except TrikafkaError as error:
            ending.failures += error.retriable and error.code not in _NOTHING_DONE
            ending.forgotten = error.code == FORGOTTEN
            if ending.commit or error.code not in (ErrorCode.INVALID_TXN_STATE, FORGOTTEN):
                raise
            return None  # the coordinator has none open: nothing had been added. Whether it is still ours, the next epoch tells

    def _not_ended(self, ending: Ending, error: TrikafkaError) -> None:
        transaction = self._transaction
        in_doubt = ending.commit and (ending.failures > 0 or ending.named)
        if transaction.state is TransactionState.INITIALIZING:  # it has ended, and there is no next one
            transaction.ruined(error)
            _log.error("no next transaction is possible: %s", error)
        elif ending.commit and not error.fatal and not (in_doubt and ending.forgotten):
            transaction.not_committed(error)
            late = "; was it open for longer than transaction_timeout_ms?" if error.code == ErrorCode.INVALID_TXN_STATE else ""
            ending.error = TransactionAbortableError(f"the transaction was not committed: {error}{late}")
            ending.error.__cause__ = error
        else:
            transaction.ruined(error)
            ending.error = transaction.error
            if ending.error is not None and in_doubt and (ending.forgotten or isinstance(error, ProducerFencedError)):
                others = "an earlier attempt got no response" if ending.failures else "its name was given away"
                ending.error.add_note(f"Whether the transaction was committed cannot be told: {others}.")

    async def _renew(self, *, forgotten: bool) -> None:
        """Ask for the next epoch (KIP-360): what is still on its way with this one is nothing to any broker then.

        ``forgotten``: or for a new producer id, which cannot be asked for twice: a coordinator that has given one and was not heard
        knows the old one no more, and says what it says to a producer that another has fenced.
        """
        failures = 0

        async def initialize() -> Identity:
            nonlocal failures
            try:
                return await self._coordinator.initialize(self._transaction.given)
            except ProducerFencedError as error:
                if not (forgotten and failures):
                    raise
                raise TransactionFatalError(
                    "the coordinator had forgotten the transactional id, and its response to the request for a new producer id was"
                    " lost; now the id has one, and whether that is meant for this producer or for another's cannot be told"
                    f" ({error.name}): close this one, and open it anew if no other is at work"
                ) from error
            except TrikafkaError as error:
                failures += error.code not in _NOTHING_DONE
                raise

        identity = await self._persist(initialize)
        self._transaction.initialized(identity)
        self._produce.identify(identity)

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until it works or is refused for good."""
        retry = Retry(self._config)
        while True:
            try:
                return await attempt()
            except TrikafkaError as error:
                if not error.retriable:
                    raise
                reasons.failed(error)
                _log.debug("%s (%d failures before)", error, retry.failures)
                await back_off(retry, error)


async def back_off(retry: Retry, error: TrikafkaError) -> None:
    """Wait before another attempt: not long while the last transaction's markers are being written, which takes a moment."""
    delay = retry.delay()
    await trio.sleep(min(delay, _MARKERS) if error.code == ErrorCode.CONCURRENT_TRANSACTIONS else delay)
