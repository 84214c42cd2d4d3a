"""Writers of transactions, and the check of what readers of committed records see.

Each writer has its own producer, since a producer has one transaction at a time. Some transactions
are aborted on purpose. The :class:`Register` has the outcome of each transaction: readers must see
all of its records once, or none of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import trio

from trikafka import (
    KafkaTimeoutError,
    Producer,
    Transaction,
    TransactionAbortableError,
    TransactionUndecidedError,
    TrikafkaError,
    open_admin,
    open_producer,
)

from .check import Found, Verdict

#: The topic of the transactions.
TOPIC = "chaos-transactions"
#: The share of transactions that their own program aborts, and the most records in one.
_ABORTED, _MOST = 0.3, 40
_SETTINGS: dict[str, Any] = {
    "request_timeout_ms": 4_000,
    "transaction_timeout_ms": 900_000,
    "linger_ms": 2,
}
#: States of a transaction that its coordinator has not finished.
_UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort")
#: Seconds within which a closed producer's last transaction must end: fewer than the transaction's
#: own timeout. A coordinator that sent the markers to a frozen broker sends them again after 30 s.
_SETTLES = 200.0


class Verdicts(Enum):
    """The outcome of a transaction.

    ``UNKNOWN``: its producer failed before the outcome was known.
    """

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class _Unwanted(Exception):
    """The program aborts its transaction."""


@dataclass
class Register:
    """All transactions, each with its number of records and its outcome."""

    partitions: int
    transactions: dict[tuple[str, int], tuple[int, Verdicts]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)

    def count(self) -> Counter[str]:
        """Return the numbers of transactions by outcome."""
        return Counter(verdict.value for _, verdict in self.transactions.values())


class TransactionWriter:
    """A writer of one transaction after another, until a given time.

    After a fatal error of its producer it opens another.
    """

    def __init__(self, name: str, register: Register, rng: random.Random) -> None:
        self._name = name
        self._register = register
        self._rng = rng
        self._number = 0
        self._committed = False

    async def run(self, bootstrap: str, dial: Any, until: float) -> None:
        """Write until that time (Trio's clock), and finish the transaction in progress.

        A writer without a committed transaction goes on until it has one. In a short run on a slow
        machine the faults may fill the whole time, and the check of committed records would then
        have nothing to look at. The caller bounds that.
        """
        while self._goes_on(until):
            try:
                settings = _SETTINGS | {
                    "bootstrap_servers": bootstrap,
                    "dial": dial,
                    "client_id": self._name,
                }
                async with open_producer(**settings, transactional_id=self._name) as producer:
                    while self._goes_on(until):
                        await self._transact(producer)
                        await trio.sleep(self._rng.uniform(0, 0.02))
            except TrikafkaError as error:
                self._register.errors[type(error).__name__] += 1
                await trio.sleep(0.2)

    def _goes_on(self, until: float) -> bool:
        return trio.current_time() < until or not self._committed

    async def _transact(self, producer: Producer) -> None:
        number = self._number
        count = self._rng.randint(1, _MOST)
        self._number += 1
        place = (self._name, number)
        self._register.transactions[place] = count, Verdicts.UNKNOWN
        # The first transaction is always aborted. A short run has few, and the check needs one of
        # each kind.
        wanted = self._rng.random() >= _ABORTED and number > 0
        verdict = Verdicts.ABORTED
        try:
            async with producer.transaction() as txn:
                await self._write(producer, number, count)
                if not wanted:
                    raise _Unwanted
                verdict = Verdicts.UNKNOWN
                await _commit(txn)
                verdict = Verdicts.COMMITTED
                self._committed = True
        except _Unwanted:
            pass
        except (TransactionAbortableError, KafkaTimeoutError) as error:
            # The documentation says that these errors rule out a commit.
            verdict = Verdicts.ABORTED
            self._register.errors[f"{type(error).__name__} in a transaction"] += 1
        finally:
            self._register.transactions[place] = count, verdict

    async def _write(self, producer: Producer, number: int, count: int) -> None:
        for index in range(count):
            value = b"%s %d %d " % (self._name.encode(), number, index) + b"." * 60
            await producer.enqueue(
                TOPIC, value, partition=self._rng.randrange(self._register.partitions)
            )


async def _commit(txn: Transaction) -> None:
    """Commit, and repeat until the outcome is known."""
    while True:
        with suppress(TransactionUndecidedError):
            return await txn.commit(timeout=10)


async def left_open(bootstrap: str) -> list[str]:
    """Return the transactions that are still open some seconds after all producers were closed.

    Only a timeout would end them.
    """
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        latest = trio.current_time() + _SETTLES
        while True:
            open_ones = [
                f"{each.transactional_id}: {each.state}"
                for each in await admin.list_transactions(states=_UNDER_WAY)
            ]
            if not open_ones or trio.current_time() >= latest:
                break
            await trio.sleep(0.2)
        return open_ones + [
            f"hanging: {each}"
            for each in await admin.find_hanging_transactions([TOPIC], longer_than=0)
        ]


def check_transactions(register: Register, found: Iterable[Found]) -> Verdict:
    """Check that readers of committed records see each transaction as a whole, in order.

    Records of a committed transaction must be there once, those of an aborted one not at all. If
    the outcome is unknown, all or none of the records must be there.
    """
    verdict = Verdict()
    seen: dict[tuple[str, int], Counter[int]] = {}
    latest: dict[tuple[str, int], tuple[int, int]] = {}
    for partition, offset, value in found:
        verdict.records += 1
        name, number, index = value.split(b" ", 3)[:3]
        place = (name.decode(), int(number))
        seen.setdefault(place, Counter())[int(index)] += 1
        key = (name.decode(), partition)
        order = (int(number), int(index))
        if order <= latest.get(key, (-1, -1)):
            verdict.violation(
                "transactions: out of order",
                f"{place}, record {int(index)} after {latest[key]}, at {offset}",
            )
        latest[key] = max(order, latest.get(key, (-1, -1)))
    for place, (count, came_to) in register.transactions.items():
        there = seen.pop(place, Counter())
        if any(times > 1 for times in there.values()):
            verdict.violation("transactions: doubled", f"{place}, {came_to.value}")
        if there and came_to is Verdicts.ABORTED:
            verdict.violation(
                "transactions: aborted, and there", f"{place}, {len(there)} of {count} records"
            )
        elif len(there) != count and (there or came_to is Verdicts.COMMITTED):
            verdict.violation(
                "transactions: a part of it is there",
                f"{place}, {came_to.value}: {len(there)} of {count} records",
            )
    for place in seen:
        verdict.violation("transactions: never written", str(place))
    return verdict
