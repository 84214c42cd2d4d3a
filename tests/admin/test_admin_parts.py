"""The parts of an admin call about several things, and the error that holds their results."""

from __future__ import annotations

import copy
import pickle

import pytest

from trikafka import (
    AdminErrors,
    ConfigurationError,
    DamagedResponseError,
    ErrorCode,
    IllegalStateError,
    KafkaTimeoutError,
)
from trikafka._api.admin.routing import Parts
from trikafka.errors import from_code

PASSING, FINAL = ErrorCode.NOT_CONTROLLER, ErrorCode.INVALID_REQUEST


def test_passing_failure_leaves_its_part() -> None:
    parts: Parts[str, int] = Parts(["a", "b", "a", "c"])
    parts.failed("a", from_code(PASSING))
    parts.failed("b", from_code(FINAL, "b"))
    parts.done("c", 3)
    with pytest.raises(type(from_code(PASSING)), match="NOT_CONTROLLER"):
        parts.check(["a", "b", "c"], "X")
    assert parts.left == ["a"]
    parts.done("a", 1)
    parts.check(["a"], "X")
    with pytest.raises(AdminErrors, match="1 of 3 failed") as caught:
        parts.finish()
    assert caught.value.results == {"a": 1, "c": 3}
    assert list(caught.value.results) == ["a", "c"]


def test_passing_failure_of_an_attempt_ends_with_it() -> None:
    """An attempt may fail by another part before it is checked; the next one may succeed."""
    parts: Parts[str, int] = Parts(["a"])
    parts.failed("a", from_code(PASSING))
    parts.done("a", 1)
    parts.check(["a"], "X")
    assert parts.finish() == {"a": 1}


def test_part_that_a_response_leaves_out_is_damage() -> None:
    parts: Parts[str, int] = Parts(["a", "b"])
    parts.done("a", 1)
    parts.done("strange", 1)
    with pytest.raises(DamagedResponseError, match="leaves out b"):
        parts.check(["a", "b"], "X")
    assert parts.results == {"a": 1}


def test_part_that_a_response_names_is_added_once() -> None:
    parts: Parts[str, int] = Parts([])
    for _ in range(2):
        parts.add("a")
    parts.failed("a", from_code(FINAL, "a"))
    parts.add("a")
    with pytest.raises(type(from_code(FINAL))):  # its own error, as there is only one
        parts.finish()


def test_only_a_doubted_change_says_so() -> None:
    code = ErrorCode.RESOURCE_NOT_FOUND
    lost = KafkaTimeoutError("x", 1, 1, None)
    for doubted in (False, True):
        parts: Parts[str, int] = Parts(["a"])
        if doubted:
            parts.doubt(["a"], lost)
        parts.failed("a", from_code(code, "a"), made_before=code)
        with pytest.raises(type(from_code(code))) as caught:
            parts.finish()
        assert ("may have done it" in str(caught.value)) is doubted
        assert caught.value.__cause__ is (lost if doubted else None)


def test_late_parts_have_their_own_reasons() -> None:
    """The last error of the call is that of one part: another one waited for something else."""
    parts: Parts[str, int] = Parts(["a", "b", "c"])
    parts.done("a", 1)
    last, other = from_code(PASSING, "of b"), from_code(PASSING, "of c")
    parts.failed("b", last)
    parts.failed("c", other)
    with pytest.raises(type(last)):
        parts.check(["a", "b", "c"], "X")
    late = KafkaTimeoutError("x", 1, 3, last)
    parts.fail_rest(late)
    with pytest.raises(AdminErrors) as caught:
        parts.finish()
    failures = caught.value.failures
    assert failures["b"] is late
    assert isinstance(failures["c"], KafkaTimeoutError)
    assert (failures["c"].last_error, failures["c"].attempts) == (other, 3)
    assert "of c" in str(failures["c"])


def test_error_of_the_whole_call_fails_what_is_left() -> None:
    error = KafkaTimeoutError("x", 1, 1, None)
    parts: Parts[str, int] = Parts(["a", "b", "c"])
    with pytest.raises(KafkaTimeoutError):
        parts.fail_rest(error)
    parts.done("a", 1)
    parts.fail_rest(error)
    with pytest.raises(AdminErrors) as caught:
        parts.finish()
    assert caught.value.exceptions == (error,)  # once, for both
    assert caught.value.failures == {"b": error, "c": error}


def test_errors_are_split_copied_and_pickled() -> None:
    first, second = ConfigurationError("x"), IllegalStateError("y")
    errors = AdminErrors.of({"a": first, "b": second}, {"c": 3})
    matching, rest = errors.split(ConfigurationError)
    assert isinstance(matching, AdminErrors)
    assert isinstance(rest, AdminErrors)
    assert (matching.failures, rest.failures) == ({"a": first}, {"b": second})
    assert matching.results == rest.results == {"c": 3}
    for twin in (copy.copy(errors), pickle.loads(pickle.dumps(errors))):
        assert isinstance(twin, AdminErrors)
        assert twin.results == {"c": 3}
        assert set(twin.failures) == {"a", "b"}
        assert str(twin) == str(errors)
