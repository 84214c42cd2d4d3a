"""Writers of transactions, some of which they abort, and the check of what readers of committed records see of them.

Each has a producer of its own, for a producer has one transaction at a time. What became of each transaction is in its
:class:`Register`: all of its records are to be seen once, or none of them.
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

#: The topic that they write to.
TOPIC = "chaos-transactions"
#: The part of the transactions that their own program wants aborted, and records in one at most.
_ABORTED, _MOST = 0.3, 40
_SETTINGS: dict[str, Any] = {"request_timeout_ms": 4_000, "transaction_timeout_ms": 30_000, "linger_ms": 2}
#: States of a transaction that a coordinator has still to do something about.
_UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort")
#: How long (seconds) a producer's last transaction may take to end once the producer is closed.
_SETTLES = 10.0


class Verdicts(Enum):
    """What a transaction came to. ``UNKNOWN``: its producer was lost before it could tell."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class _Unwanted(Exception):
    """The program does not want the transaction any more."""


@dataclass
class Register:
    """All transactions: how many records each has, and what it came to."""

    partitions: int
    transactions: dict[tuple[str, int], tuple[int, Verdicts]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)

    def count(self) -> Counter[str]:
        """How many came to what."""
        return Counter(verdict.value for _, verdict in self.transactions.values())


class TransactionWriter:
    """One transaction after the other, until told to end. Its producer is opened anew when it is of no use any more."""

    def __init__(self, name: str, register: Register, rng: random.Random) -> None:
        self._name, self._register, self._rng = name, register, rng
        self._number = 0

    async def run(self, bootstrap: str, dial: Any, until: float) -> None:
        """Write until that time (Trio's clock), and finish what is under way."""
        while trio.current_time() < until:
            try:
                settings = _SETTINGS | {"bootstrap_servers": bootstrap, "dial": dial, "client_id": self._name}
                async with open_producer(**settings, transactional_id=self._name) as producer:
                    while trio.current_time() < until:
                        await self._transact(producer)
                        await trio.sleep(self._rng.uniform(0, 0.02))
            except TrikafkaError as error:
                self._register.errors[type(error).__name__] += 1
                await trio.sleep(0.2)

    async def _transact(self, producer: Producer) -> None:
        number, count = self._number, self._rng.randint(1, _MOST)
        self._number += 1
        place = (self._name, number)
        self._register.transactions[place] = count, Verdicts.UNKNOWN
        wanted = self._rng.random() >= _ABORTED
        verdict = Verdicts.ABORTED
        try:
            async with producer.transaction() as txn:
                await self._write(producer, number, count)
                if not wanted:
                    raise _Unwanted
                verdict = Verdicts.UNKNOWN
                await _commit(txn)
                verdict = Verdicts.COMMITTED
        except _Unwanted:
            pass
        except (TransactionAbortableError, KafkaTimeoutError) as error:  # surely not committed, says the documentation
            verdict = Verdicts.ABORTED
            self._register.errors[f"{type(error).__name__} in a transaction"] += 1
        finally:
            self._register.transactions[place] = count, verdict

    async def _write(self, producer: Producer, number: int, count: int) -> None:
        for index in range(count):
            value = b"%s %d %d " % (self._name.encode(), number, index) + b"." * 60
            await producer.enqueue(TOPIC, value, partition=self._rng.randrange(self._register.partitions))


async def _commit(txn: Transaction) -> None:
    """Commit, and ask as often as it takes how that came out."""
    while True:
        with suppress(TransactionUndecidedError):
            return await txn.commit(timeout=10)


async def left_open(bootstrap: str) -> list[str]:
    """What brokers have open though all producers are closed, some seconds after that: nobody but a time-out would end it."""
    async with open_admin(bootstrap_servers=bootstrap) as admin:
        latest = trio.current_time() + _SETTLES
        while True:
            open_ones = [f"{each.transactional_id}: {each.state}" for each in await admin.list_transactions(states=_UNDER_WAY)]
            if not open_ones or trio.current_time() >= latest:
                break
            await trio.sleep(0.2)
        return open_ones + [f"hanging: {each}" for each in await admin.find_hanging_transactions([TOPIC], longer_than=0)]


def check_transactions(register: Register, found: Iterable[Found]) -> Verdict:
    """What was committed is there once, what was aborted is not, what is unknown is there as a whole or not at all; in order."""
    verdict = Verdict()
    seen: dict[tuple[str, int], Counter[int]] = {}
    latest: dict[tuple[str, int], tuple[int, int]] = {}
    for partition, offset, value in found:
        verdict.records += 1
        name, number, index = value.split(b" ", 3)[:3]
        place = (name.decode(), int(number))
        seen.setdefault(place, Counter())[int(index)] += 1
        key, order = (name.decode(), partition), (int(number), int(index))
        if order <= latest.get(key, (-1, -1)):
            verdict.violation("transactions: out of order", f"{place}, record {int(index)} after {latest[key]}, at {offset}")
        latest[key] = max(order, latest.get(key, (-1, -1)))
    for place, (count, came_to) in register.transactions.items():
        there = seen.pop(place, Counter())
        if any(times > 1 for times in there.values()):
            verdict.violation("transactions: doubled", f"{place}, {came_to.value}")
        if there and came_to is Verdicts.ABORTED:
            verdict.violation("transactions: aborted, and there", f"{place}, {len(there)} of {count} records")
        elif len(there) != count and (there or came_to is Verdicts.COMMITTED):
            verdict.violation("transactions: a part of it is there", f"{place}, {came_to.value}: {len(there)} of {count} records")
    for place in seen:
        verdict.violation("transactions: never written", str(place))
    return verdict
