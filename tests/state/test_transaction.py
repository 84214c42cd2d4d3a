"""The states of a transactional producer: which follows which, and which call is legal when."""

from __future__ import annotations

import itertools
import re
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trikafka import TopicPartition
from trikafka._state.producer.sequences import ProducerIdentity
from trikafka._state.producer.transaction_state import Call, ProducerTransaction, TransactionState
from trikafka.error_codes import ErrorCode
from trikafka.errors import (
    IllegalStateError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionFatalError,
    TransactionUndecidedError,
    from_code,
)

S = TransactionState
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME, NEXT = ProducerIdentity(7, 0), ProducerIdentity(7, 1)
FENCED = from_code(ErrorCode.PRODUCER_FENCED)
REFUSED = from_code(ErrorCode.TRANSACTION_ABORTABLE)


def ready(version: int = 2) -> ProducerTransaction:
    transaction = ProducerTransaction()
    transaction.initializing()
    transaction.initialized(ME)
    transaction.begun(version)
    transaction.admits(T0)
    return transaction


def in_state(state: TransactionState) -> ProducerTransaction:
    """Return a producer that took the shortest way to ``state``."""
    transaction = ProducerTransaction()
    if state is S.UNINITIALIZED:
        return transaction
    transaction.initializing()
    if state is S.INITIALIZING:
        return transaction
    transaction.initialized(ME)
    if state is S.READY:
        return transaction
    transaction.begun(2)
    if state is S.ABORTABLE_ERROR:
        transaction.failed(REFUSED)
    elif state is S.PREPARED:
        transaction.prepared()
    elif state is S.ABORTING:
        transaction.aborting()
    elif state is S.FATAL_ERROR:
        transaction.ruined(FENCED)
    elif state in (S.COMMITTING, S.UNDECIDED):
        transaction.committing()
        if state is S.UNDECIDED:
            transaction.undecided(KafkaTimeoutError("commit", 1.0))
    assert transaction.state is state
    return transaction


LEGAL: dict[str, set[TransactionState]] = {
    "begin": {S.READY},
    "send": {S.IN_TRANSACTION},
    "send_offsets": {S.IN_TRANSACTION},
    "prepare": {S.IN_TRANSACTION},
    "commit": {S.IN_TRANSACTION, S.PREPARED, S.COMMITTING, S.UNDECIDED},
    "abort": {S.IN_TRANSACTION, S.PREPARED, S.ABORTABLE_ERROR, S.ABORTING},
}
RAISED: dict[TransactionState, type[Exception]] = {
    S.FATAL_ERROR: ProducerFencedError,
    S.ABORTABLE_ERROR: TransactionAbortableError,
    S.UNDECIDED: TransactionUndecidedError,
}


@pytest.mark.parametrize("call", get_args(Call))
@pytest.mark.parametrize("state", S)
def test_each_call_in_each_state(state: TransactionState, call: Call) -> None:
    transaction = in_state(state)
    assert transaction.takes_records is (state in LEGAL["send"])
    if state in LEGAL[call]:
        transaction.check(call)
        return
    with pytest.raises(RAISED.get(state, IllegalStateError)) as caught:
        transaction.check(call)
    name = "transaction" if call == "begin" else call
    assert state is S.FATAL_ERROR or name in str(caught.value)


def test_docstring_has_the_table() -> None:
    import trikafka._state.producer.transaction_state as module

    lines = (module.__doc__ or "").splitlines()

    def states_in_row(first: str) -> set[str]:
        """Return the states that a row names; its further lines begin with a blank."""
        at = next(place for place, line in enumerate(lines) if line.startswith(f"{first} "))
        more = itertools.takewhile(lambda line: line.startswith(" "), lines[at + 1 :])
        row = " ".join((lines[at].removeprefix(first), *more))
        return {state.name for state in S if re.search(rf"\b{state.name}\b", row)}

    for state, following in module._AFTER.items():
        assert states_in_row(state.name) == {other.name for other in following}, state
    for call, states in LEGAL.items():
        if call not in ("send_offsets", "prepare"):
            assert states_in_row(call) == {state.name for state in states}, call


def test_first_record_waits_for_coordinator_in_v1() -> None:
    """In version 1 of the protocol, a partition is added before its first record is sent."""
    asked: list[int] = []
    transaction = ProducerTransaction(wanted=lambda: asked.append(1))
    transaction.initializing()
    transaction.initialized(ME)
    transaction.begun(1)
    assert not transaction.admits(T0)
    assert not transaction.admits(T0)
    assert len(asked) == 1
    assert transaction.missing == [T0]
    assert not transaction.started, "no broker knows of it"
    transaction.adding()
    transaction.added([T0, T1])
    assert transaction.admits(T0)
    assert transaction.partitions == {T0}, "a partition that was not requested is not part of it"
    assert transaction.started


def test_version_2_waits_for_nothing() -> None:
    transaction = ready(2)
    assert transaction.admits(T1)
    assert transaction.partitions == {T0, T1}
    assert transaction.started
    assert not transaction.missing


def test_records_need_an_open_transaction() -> None:
    for state in S:
        assert in_state(state).admits(T0) == (state in (S.IN_TRANSACTION, S.ABORTABLE_ERROR)), state


def test_next_transaction_starts_empty() -> None:
    transaction = ready()
    transaction.group_added("g")
    number = transaction.joining()
    transaction.committing()
    transaction.ended(NEXT)
    assert transaction.identity == NEXT
    assert not transaction.partitions
    assert not transaction.knows_group("g")
    transaction.begun(2)
    with pytest.raises(IllegalStateError, match="is over"):
        transaction.still(number)
    transaction.still(transaction.number)


def test_committing_transaction_takes_no_records() -> None:
    transaction = ready()
    transaction.closing()
    assert transaction.state is S.IN_TRANSACTION
    assert not transaction.takes_records
    with pytest.raises(IllegalStateError, match="being committed"):
        transaction.check("send")
    transaction.check("commit")
    transaction.check("abort")
    transaction.reopened(transaction.number)
    transaction.check("send")


def test_first_failure_counts_unless_fatal() -> None:
    transaction = ready()
    transaction.failed(REFUSED)
    transaction.failed(from_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert transaction.error is REFUSED
    transaction.ruined(FENCED)
    transaction.ruined(from_code(ErrorCode.INVALID_TXN_STATE))
    with pytest.raises(ProducerFencedError) as caught:
        transaction.check("abort")
    assert caught.value is not FENCED, "each raise has its own traceback"


def test_fatal_error_without_fencing_has_own_type() -> None:
    transaction = ready()
    cause = from_code(ErrorCode.INVALID_TXN_STATE)
    transaction.ruined(cause)
    with pytest.raises(TransactionFatalError, match="no more transactions") as caught:
        transaction.check("commit")
    assert caught.value.__cause__ is cause


def test_failure_after_commit_changes_nothing() -> None:
    transaction = ready()
    transaction.committing()
    transaction.failed(REFUSED)
    assert transaction.state is S.COMMITTING


@pytest.mark.parametrize("state", [S.UNINITIALIZED, S.READY, S.PREPARED, S.ABORTING, S.FATAL_ERROR])
def test_illegal_step_is_a_bug(state: TransactionState) -> None:
    transaction = in_state(state)
    with pytest.raises(AssertionError):
        transaction.undecided(REFUSED) or transaction._to(S.UNDECIDED)


class Machine(RuleBasedStateMachine):
    """Random calls in any order.

    Only an open transaction accepts records, and a commit that was requested is never aborted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.t = ProducerTransaction()
        self.asked_to_commit: set[int] = set()
        self.aborted: set[int] = set()
        self.joined: dict[int, int] = {}

    def state(self, *states: TransactionState) -> bool:
        return self.t.state in states

    @precondition(lambda self: self.state(S.UNINITIALIZED))
    @rule()
    def initialize(self) -> None:
        self.t.initializing()
        self.t.initialized(ME)

    @precondition(lambda self: self.state(S.INITIALIZING))
    @rule()
    def renewed(self) -> None:
        self.t.initialized(NEXT)

    @precondition(lambda self: self.state(S.READY))
    @rule(version=st.sampled_from([1, 2]))
    def begin(self, version: int) -> None:
        self.t.check("begin")
        number = self.t.begun(version)
        assert not self.t.partitions
        assert number not in self.asked_to_commit | self.aborted

    @rule(partition=st.integers(0, 3))
    def send(self, partition: int) -> None:
        try:
            number = self.t.joining()
        except (
            IllegalStateError,
            TransactionAbortableError,
            TransactionUndecidedError,
            TransactionFatalError,
            ProducerFencedError,
        ):
            return
        assert self.t.state is S.IN_TRANSACTION
        assert number not in self.asked_to_commit | self.aborted
        if self.t.admits(TopicPartition("t", partition)):
            self.joined[number] = self.joined.get(number, 0) + 1
            assert self.t.started

    @rule()
    def add(self) -> None:
        if missing := self.t.missing:
            self.t.adding()
            self.t.added(missing)
            assert not self.t.missing

    @rule()
    def fail(self) -> None:
        self.t.failed(REFUSED)

    @precondition(lambda self: not self.state(S.UNINITIALIZED))
    @rule(chance=st.integers(0, 9))
    def ruin(self, chance: int) -> None:
        if chance == 0:
            self.t.ruined(FENCED)
            assert self.t.state is S.FATAL_ERROR

    @precondition(lambda self: self.state(S.IN_TRANSACTION))
    @rule()
    def prepare(self) -> None:
        self.t.prepared()

    @precondition(lambda self: self.state(S.IN_TRANSACTION))
    @rule(cut_off=st.booleans())
    def close(self, cut_off: bool) -> None:
        self.t.closing()
        if cut_off:
            self.t.reopened(self.t.number)

    @precondition(lambda self: self.state(S.IN_TRANSACTION, S.PREPARED, S.UNDECIDED))
    @rule()
    def commit(self) -> None:
        self.t.check("commit")
        self.asked_to_commit.add(self.t.number)
        self.t.committing()

    @precondition(lambda self: self.state(S.COMMITTING))
    @rule()
    def cut_off(self) -> None:
        self.t.undecided(REFUSED)

    @precondition(lambda self: self.state(S.COMMITTING, S.UNDECIDED))
    @rule()
    def refused(self) -> None:
        self.t.not_committed(REFUSED)
        self.asked_to_commit.discard(self.t.number)  # the coordinator reported that it is not

    @rule()
    def abort(self) -> None:
        try:
            self.t.check("abort")
        except Exception:
            return
        assert self.t.number not in self.asked_to_commit, "what may be committed is never aborted"
        self.aborted.add(self.t.number)
        self.t.aborting()

    @precondition(lambda self: self.state(S.COMMITTING, S.UNDECIDED, S.ABORTING))
    @rule(given=st.booleans(), renew=st.booleans())
    def end(self, given: bool, renew: bool) -> None:
        self.t.ended(NEXT if given else None, renew=renew)

    @invariant()
    def outside_nothing_is_open(self) -> None:
        if self.state(S.READY, S.INITIALIZING, S.UNINITIALIZED):
            assert not self.t.started
            assert not self.t.partitions
        if self.state(S.FATAL_ERROR, S.ABORTABLE_ERROR):
            assert self.t.error is not None


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
