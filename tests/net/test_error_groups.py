"""Exception groups: judged by their members, and shown with all of them."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from trikafka import (
    AdminErrors,
    ConfigurationError,
    KafkaTimeoutError,
    ProtocolError,
    RequestTimedOutError,
    TrikafkaError,
)
from trikafka._net.gather import all_of, with_background
from trikafka._net.interrupts import interrupts_unwrapped
from trikafka.cli.running import sentence
from trikafka.errors.groups import chain, every, members, outlined, unwrapped, with_others
from trikafka.tasks.timer import timeout_in

LOST, BAD = ConnectionError("lost"), ValueError("bad")
NESTED = ExceptionGroup("a", [LOST, ExceptionGroup("b", [ExceptionGroup("c", [BAD])])])


def test_members_of_nested_groups_are_found() -> None:
    assert members(NESTED) == [LOST, BAD]
    assert members(LOST) == [LOST]


def test_every_member_must_be_of_the_kind() -> None:
    assert every(NESTED, (OSError, ValueError))
    assert not every(NESTED, OSError)
    assert every(LOST, OSError)


def test_only_a_group_of_one_is_unwrapped() -> None:
    assert unwrapped(ExceptionGroup("a", [ExceptionGroup("b", [BAD])])) is BAD
    assert unwrapped(NESTED) is NESTED
    assert outlined(ExceptionGroup("a", [BAD])) == "bad"
    assert outlined(NESTED) == "2 errors: ConnectionError: lost; ValueError: bad"


def test_group_times_out_if_all_members_do() -> None:
    late = KafkaTimeoutError("send", 1.0)
    assert timeout_in(ExceptionGroup("a", [late, ExceptionGroup("b", [late])])) is late
    assert timeout_in(ExceptionGroup("a", [late, BAD])) is None


def test_command_names_all_members() -> None:
    text, code = sentence(
        ExceptionGroup("a", [KafkaTimeoutError("send", 1.0), PermissionError(13, "denied", "out")])
    )
    assert text == "send did not finish within 1 s (1 attempt); denied: out"
    assert code == 1


def test_command_has_a_line_for_each_part() -> None:
    errors = AdminErrors.of(
        {"b": ConfigurationError("wrong"), "c": KafkaTimeoutError("x", 1.0)},
        {"a": 1, "d": None},
    )
    text, code = sentence(errors)
    assert text.splitlines() == [
        "2 of 4 failed",
        "  b: wrong",
        "  c: x did not finish within 1 s (1 attempt)",
        "  done: a, d",
    ]
    assert code == 2


def test_errors_beside_an_interrupt_are_its_cause() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, interrupts_unwrapped():
        raise BaseExceptionGroup("a", [BaseExceptionGroup("b", [KeyboardInterrupt(), BAD])])
    assert members(raised.value.__cause__ or AssertionError()) == [BAD]


def test_interrupt_keeps_its_own_cause() -> None:
    interrupt = SystemExit(3)
    interrupt.__cause__ = BAD
    with pytest.raises(SystemExit) as raised, interrupts_unwrapped():
        raise BaseExceptionGroup("a", [interrupt, LOST])
    assert raised.value is interrupt
    assert raised.value.__cause__ is BAD


def test_interrupt_with_a_cause_notes_the_others() -> None:
    """No member of the group is lost, not even a second interrupt."""
    interrupt = SystemExit(3)
    interrupt.__cause__ = BAD
    with pytest.raises(SystemExit) as raised, interrupts_unwrapped():
        raise BaseExceptionGroup("a", [interrupt, BaseExceptionGroup("b", [LOST, SystemExit(4)])])
    assert raised.value.__notes__ == ["beside it: 2 errors: ConnectionError: lost; SystemExit: 4"]


async def test_one_of_several_failures_notes_the_others() -> None:
    async def fail(error: Exception) -> None:
        raise error

    errors = [RequestTimedOutError("late"), ProtocolError("odd"), ProtocolError("odd")]
    with pytest.raises(TrikafkaError) as raised:
        await all_of([partial(fail, error) for error in errors])
    others = {str(error) for error in errors} - {str(raised.value)}
    assert [note.rpartition(": ")[2] for note in raised.value.__notes__] == list(others)


async def test_failure_of_the_background_is_noted() -> None:
    async def fail(error: Exception) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise error

    async def main() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("worse")

    with pytest.raises(ValueError, match="worse") as raised:
        await with_background([partial(fail, LOST)], main)
    assert raised.value.__notes__ == ["also failed: ConnectionError: lost"]


def test_each_other_failure_is_noted_once() -> None:
    """Errors with the same text, or with none, are distinguished by their class."""
    error = with_others(
        trio.ClosedResourceError(),
        [trio.BrokenResourceError(), trio.ClosedResourceError(), ValueError("x"), ValueError("x")],
    )
    assert error.__notes__ == [
        "also failed: BrokenResourceError: ",
        "also failed: ValueError: x",
    ]


def test_chain_is_what_a_traceback_shows() -> None:
    error, cause, context = ValueError("a"), ValueError("b"), ValueError("c")
    error.__context__ = context
    assert [*chain(error)] == [error, context]
    error.__cause__ = cause
    assert [*chain(error)] == [error, cause]
    error.__cause__ = None
    assert error.__suppress_context__
    assert [*chain(error)] == [error]


def test_cyclic_chain_ends() -> None:
    error = ValueError("a")
    error.__cause__ = error
    assert [*chain(error)] == [error]
    error.__cause__ = cause = ValueError("b")
    cause.__cause__ = error
    assert [*chain(error)] == [error, cause]
