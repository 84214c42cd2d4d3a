"""Tracebacks of a handler's errors: how often one is logged, and its text for a dead letter."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator

from ..errors.groups import members
from ..toolkit import Reminder

#: The most kinds of a handler's errors whose tracebacks are remembered.
_MOST_KINDS = 100
#: The most frames of one exception, and the most characters of a text. The last ones count: they
#: are nearest to the error.
_MOST_FRAMES = 20
_MOST_TEXT = 4_000
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


# Each failed record has a line of its own. A dependency that is down fails all of them at one place,
# and a traceback each would fill the disk with one message.
class Tracebacks:
    """The kinds of a handler's errors, and when the traceback of each was logged last."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def others_until_due(self, error: Exception, now: float) -> int | None:
        """Count a failure; return the number of those without a traceback since the last one.

        ``None``: no traceback is due. One is due for the first failure of a kind, and again after
        five minutes.
        """
        key = tuple((type(each), _place(each)) for each in members(error))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind()
        if not kind.reminder.is_due(now):
            kind.others += 1
            return None
        kind.reminder.logged(now)
        others = kind.others
        kind.others = 0
        return others


class _Kind:
    """The errors of one class that one line of the program raises."""

    def __init__(self) -> None:
        self.reminder = Reminder()
        self.others = 0  # since the last traceback


def _place(error: BaseException) -> tuple[str, int] | None:
    """Return the line that raised an error."""
    place = None
    step = error.__traceback__
    while step is not None:
        place = (step.tb_frame.f_code.co_filename, step.tb_lineno)
        step = step.tb_next
    return place


def traceback_text(error: BaseException) -> str:
    """Return where an error was raised, and its causes before it; empty if it was not raised.

    The text has files, lines and functions. It has no source lines and no texts of exceptions,
    which may hold secrets that are not meant for the readers of a topic.
    """
    text = ""
    for line in _lines_from_the_end(error):
        longer = f"{line}\n{text}" if text else line
        if len(longer) > _MOST_TEXT:
            break
        text = longer
    return text


def _lines_from_the_end(error: BaseException) -> Iterator[str]:
    """Yield the lines of an error and of its causes, the last line first."""
    for each in _chain(error):
        if frames := _frames(each):
            kind = type(each)
            yield f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            yield from reversed(frames)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and then what a standard traceback shows before it.

    In place of a group its members come, the last one first, and then the group's own cause.
    """
    seen: set[int] = set()
    rest = [error]
    while rest:
        each = rest.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        # Compared with None, because the class of a program's exception may define its truth.
        before = each.__cause__
        if before is None and not each.__suppress_context__:
            before = each.__context__
        if before is not None:
            rest.append(before)
        if isinstance(each, BaseExceptionGroup):
            rest += each.exceptions
        else:
            yield each


def _frames(error: BaseException) -> list[str]:
    """Return the last frames of an error, without those of the worker that called the handler."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    first = next(
        (at for at, (code, _) in enumerate(frames) if not code.co_filename.startswith(_OURS)), 0
    )
    return [
        f"File {code.co_filename}, line {line}, in {code.co_name}"
        for code, line in frames[first:][-_MOST_FRAMES:]
    ]
