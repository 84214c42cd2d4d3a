"""Helpers for exception groups and for chains of causes.

User code that opens a nursery raises its errors in a group. A group is judged by all its members,
including those of nested groups. The user sees all of them: a log line or a header names every
member, and only a group of one may be replaced by its member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


def members(error: BaseException) -> list[BaseException]:
    """Return the members of a group at any depth; a plain exception is its own member."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [member for inner in error.exceptions for member in members(inner)]


def every(
    error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]
) -> bool:
    """Return whether the exception, or every member of the group, is one of ``kinds``."""
    return all(isinstance(member, kinds) for member in members(error))


def unwrapped(error: BaseException) -> BaseException:
    """Return the member of a group of one, at any depth; a group of several as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and then each cause or context that a standard traceback shows before it.

    A cyclic chain ends where it would begin again.
    """
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        hidden = each.__cause__ is not None or each.__suppress_context__
        each = each.__cause__ if hidden else each.__context__


def decisive(errors: Sequence[Error]) -> Error:
    """Return the first of several errors that no retry can fix, or else the first."""
    return next((error for error in errors if not getattr(error, "retriable", False)), errors[0])


def with_others(error: Error, errors: Iterable[BaseException]) -> Error:
    """Return ``error`` with a note about each of the other ``errors``.

    For several failures at once of which one can be raised: the note keeps the others. One note
    stands for all that have the same class and text.
    """
    said = {_noted(error), *getattr(error, "__notes__", ())}
    for other in errors:
        note = _noted(other)
        if note not in said:
            said.add(note)
            error.add_note(note)
    return error


def _noted(error: BaseException) -> str:
    return f"also failed: {type(error).__name__}: {outlined(error)}"


def outlined(error: BaseException, text: Callable[[BaseException], str] = str) -> str:
    """Return the text of an exception; for a group, the class and text of every member.

    The text of a group itself only gives the number of its members.
    """
    error = unwrapped(error)
    if not isinstance(error, BaseExceptionGroup):
        return text_by(text, error)
    return f"{len(members(error))} errors: " + "; ".join(
        f"{type(each).__name__}: {text_by(text, each)}" for each in members(error)
    )


def text_by(text: Callable[[BaseException], str], error: BaseException) -> str:
    """Return ``text(error)``; a substitute if the exception's own method fails in that."""
    try:
        return text(error)
    except Exception:  # of the program's own ``__str__`` or ``__repr__``
        return "<its __str__ failed>"
