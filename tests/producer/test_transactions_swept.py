"""Every pair of commit, abort, refusal, fencing and expiry at every step.

The calls' results must agree with the coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
from seated import Records, Seated
from transacting import producer_of
from trio.testing import MockClock as Clock

from trikafka import Producer, Transaction
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    IllegalStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionUndecidedError,
)
from trikafka.testing import ScriptedCluster, respond
from trikafka.testing.batches import inspect
from trikafka.testing.steps import Moment, moments, two_at_once
from trikafka.testing.transactions import CoordinatorTransactionState, Identity, Target
from trikafka.testing.transactions import TransactionCoordinatorState as Coordinator

EVENTS = ("commit", "abort", "refuse", "fence", "expire")
#: Other steps of the program, or its end: a call is cut off, another task begins, the producer
#: closes.
CALLS = ("commit", "abort", "refuse", "prepare", "cancel", "begin", "close")
#: Happen once to a transaction.
ONCE = ("refuse", "fence", "expire", "cancel", "close")
#: A transaction with one record is over after so many steps of all tasks, if nothing comes between.
STEPS = {1: 56, 2: 40}
SEATED_STEPS = {1: 40, 2: 25}
#: After so many steps all tasks of a seated transaction wait.
WAITING = {1: 20, 2: 11}
#: After these nothing was committed.
NOT_COMMITTED = (TransactionAbortableError, IllegalStateError)
#: After these the producer is of no use any more.
ENDED = (ProducerFencedError, TransactionFatalError)


@dataclass
class Trial:
    """One transaction, two events, and what is known of it afterwards.

    ``markers``: what the coordinator wrote.
    """

    coordinator: Coordinator
    moment: Moment
    markers: list[bool]
    seated: Seated | None = None
    fenced: bool = False
    calls: list[trio.CancelScope] = field(default_factory=list)
    refusable: trio.Event = field(default_factory=trio.Event)
    results: list[tuple[str, Exception | None]] = field(default_factory=list)

    @property
    def events(self) -> tuple[str, str]:
        return self.moment.first, self.moment.second

    @property
    def refused(self) -> bool:
        return "refuse" in self.events

    async def run(
        self, transaction: Transaction, send: Callable[[trio.Nursery], Awaitable[object]]
    ) -> None:
        """Let both events happen to ``transaction`` once ``send`` has put a record into it, and
        leave its block.
        """
        before = trio.current_time()
        try:
            async with transaction as txn, trio.open_nursery() as nursery:
                assert trio.current_time() - before < 1, (
                    "the transaction did not begin within a second"
                )
                self.markers.clear()
                await send(nursery)
                first, second = (partial(self._happen, name, nursery, txn) for name in self.events)
                await two_at_once(first, second, self.moment)
            self.results.append(("leave", None))
        except* Exception as group:
            (error,) = group.exceptions
            self.results.append(("leave", error))

    def _happen(self, name: str, nursery: trio.Nursery, txn: Transaction) -> None:
        transactions = self.coordinator
        if name in ("commit", "abort"):
            nursery.start_soon(self._call, name, getattr(txn, name))
        elif name == "refuse":
            self.refusable.set()
        elif name == "cancel":
            for scope in self.calls:
                scope.cancel()
        elif name == "fence":
            self.fenced = True
            while transactions.initialize("x", 60_000, None, two_phase=False, keep=False).error:
                pass
        elif name != "expire":
            assert self.seated is not None
            manager, number = self.seated.manager, txn._number
            others = {
                "prepare": lambda: manager.prepare(number),
                "begin": self._begin,
                "close": manager.finish,
            }
            nursery.start_soon(self._call, name, others[name])
        elif (found := transactions.by_id["x"]).state is CoordinatorTransactionState.ONGOING:
            self.fenced = self.fenced or transactions.version == 1
            found.deadline = trio.current_time()
            transactions.settle(found.deadline)

    async def _call(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            with trio.CancelScope() as scope:
                self.calls.append(scope)
                await call()
        except Exception as error:
            self.results.append((name, error))
        else:
            if not scope.cancelled_caught:
                self.results.append((name, None))

    async def _begin(self) -> None:
        assert self.seated is not None
        async with self.seated.transaction():
            pass

    async def refuse(self, request: Any, default: object) -> Any:
        """Answer a Produce request, once it is time, that its record is too large."""
        await self.refusable.wait()
        topic = request.topic_data[0]
        batch = inspect(bytes(topic.partition_data[0].records))
        # As a broker does: the partition joins the transaction before the log looks at the records.
        producer = Identity(batch.producer_id, batch.producer_epoch)
        self.coordinator.add("x", producer, [("t", 0)])
        part = {"index": 0, "error_code": ErrorCode.MESSAGE_TOO_LARGE, "base_offset": -1}
        answer = {"name": topic.name, "topic_id": topic.topic_id, "partition_responses": [part]}
        return respond(request, responses=[answer], node_endpoints=[])

    def check(self) -> bool:
        """Compare what the calls said with what the cluster did.

        Return whether the producer can go on.
        """
        committed = True in self.markers
        by_hand = not {"commit", "abort"}.isdisjoint(self.events)
        for name, error in self.results:
            if error is None and (name == "commit" or (name == "leave" and not by_hand)):
                assert committed, f"{name} returned, and nothing was committed"
            if error is None and name == "abort":
                assert not committed, "abort returned, and the transaction was committed"
            if error is not None:
                closed = isinstance(error, trio.ClosedResourceError) and "close" in self.events
                cut = isinstance(error, TransactionUndecidedError) and "cancel" in self.events
                assert closed or cut or isinstance(error, (*NOT_COMMITTED, *ENDED)), (
                    f"{name} raised {error!r}"
                )
                assert self.fenced or not isinstance(error, ENDED), f"{name} raised {error!r}"
                not_committed = name == "commit" and not cut and not getattr(error, "__notes__", [])
                assert not (not_committed and committed), (
                    f"commit raised {error!r}, and it was committed"
                )
        return not self.fenced


@contextmanager
def explained(trial: Trial) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"{trial.moment}: {trial.results}, markers {trial.markers}")
        raise


async def check_next(transaction: Transaction, trial: Trial) -> None:
    """Check that the next transaction begins within a second, or raises the fencing at once."""
    before = trio.current_time()
    try:
        async with transaction:
            pass
    except ENDED:
        assert trial.fenced
    except trio.ClosedResourceError:
        assert "close" in trial.events
    assert trio.current_time() - before < 1


def senseless(first: str, second: str) -> bool:
    return first == second and first in ONCE


def distinct(todo: Iterable[Moment], version: int) -> Iterator[Moment]:
    """Yield each moment once.

    A first event that is due while all tasks wait happens then. The second happens ``at + gap``
    steps after the beginning.
    """
    seen: set[tuple[object, ...]] = set()
    for moment in todo:
        effect = (*moment[:2], min(moment.at, WAITING[version]), moment.at + moment.gap)
        if effect not in seen:
            seen.add(effect)
            yield moment


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("events", "total"), [(EVENTS, 2_400), (CALLS, 600)], ids=["events", "calls"]
)
async def test_two_events_at_every_step_agree(
    events: Sequence[str], total: int, version: int, autojump_clock: Clock
) -> None:
    todo = moments(events, steps=SEATED_STEPS[version], total=total, leave_out=senseless)
    for moment in distinct(todo, version):
        async with trio.open_nursery() as tasks:
            hold = trio.Event()
            seated = Seated(version, tasks, hold if "refuse" in moment[:2] else None)
            trial = Trial(
                seated.direct.coordinator, moment, seated.direct.markers, seated, refusable=hold
            )
            with explained(trial), trio.fail_after(300):
                await seated.manager.initialize()
                tasks.start_soon(seated.manager.run)

                async def send(nursery: trio.Nursery, records: Records = seated.records) -> None:
                    nursery.start_soon(records.send)

                await trial.run(seated.transaction(), send)
                trial.check()
                await check_next(seated.transaction(), trial)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("version", [1, 2])
async def test_two_events_in_a_whole_producer_agree(version: int, autojump_clock: Clock) -> None:
    """Each moment uses the next transaction of a producer until the producer is fenced."""
    todo = moments(EVENTS, steps=STEPS[version], total=STEPS[version] * 5, leave_out=senseless)
    markers: list[bool] = []
    async with ScriptedCluster(nodes=1, topics={"t": 1}, transaction_version=version) as cluster:
        cluster.move_coordinator(0)
        write = cluster.transactions.write_marker

        def noted(target: Target, producer: Identity, commit: bool) -> bool:
            markers.append(commit)
            return write(target, producer, commit)

        cluster.transactions.write_marker = noted
        fenced = True
        while fenced:
            fenced = False
            async with producer_of(cluster) as producer:

                async def send(nursery: trio.Nursery, producer: Producer = producer) -> None:
                    await producer.enqueue("t", b"x", partition=0)

                await producer.partitions_for("t")
                for moment in todo:
                    trial = Trial(cluster.transactions, moment, markers)
                    rule = cluster.on("Produce", trial.refuse, times=1) if trial.refused else None
                    with explained(trial), trio.fail_after(300):
                        await trial.run(producer.transaction(), send)
                        trial.check()
                    if rule is not None:
                        rule.remove()
                    if fenced := trial.fenced:
                        await check_next(producer.transaction(), trial)
                        break
