"""A search for secrets in everything that a client reveals.

That is its log, its errors with the locals of their frames, and its reports about itself.
"""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus


class Search:
    """A search for secrets, with its findings.

    ``marks`` are the secrets. A mark is found in every encoding in which it may appear.
    """

    def __init__(self, *marks: str) -> None:
        self._forms: dict[str, str] = {}
        for mark in marks:
            raw = mark.encode("utf-8", "surrogatepass")
            forms = [
                mark,
                repr(mark)[1:-1],
                quote(raw),
                quote_plus(raw),
                repr(raw)[2:-1],
                raw.hex(),
            ]
            # Inside a longer text, base64 has one of three forms.
            for before in (b"", b"x", b"xx"):
                text = base64.b64encode(before + raw).decode()
                forms.append(text[4 * bool(before) : len(text) - 4])
            self._forms |= dict.fromkeys(forms, mark)
        self.found: list[str] = []
        self.looked_at = 0

    def text(self, where: str, text: str) -> None:
        """Search ``text``."""
        self.looked_at += 1
        for form in self._forms:
            if form and form in text:
                at = text.index(form)
                self.found.append(f"{where}: {text[max(0, at - 120) : at + len(form) + 40]!r}")
                return

    def log(self, records: list[logging.LogRecord], only: str = "") -> None:
        """Search the log of loggers whose names begin with ``only``, with arguments and tracebacks."""
        for record in records:
            if not record.name.startswith(only):
                continue
            self.text(f"log {record.name}", record.getMessage() + repr(record.args))
            if record.exc_info is not None and record.exc_info[1] is not None:
                self.error(record.exc_info[1])

    def error(self, error: BaseException) -> None:
        """Search an error and all related errors.

        The search covers messages, attributes, notes, and the locals of frames outside of tests.
        """
        for each in _all_of(error):
            name = type(each).__name__
            self.text(
                f"{name} in words",
                f"{each!s} {each!r} {each.args!r} {vars(each)!r} "
                f"{getattr(each, '__notes__', ())!r}",
            )
            trace = traceback.TracebackException.from_exception(
                each, capture_locals=True, compact=True
            )
            for frame in trace.stack:
                if frame.locals and "/tests/" not in frame.filename:
                    for local, value in frame.locals.items():
                        self.text(
                            f"{name}: {local} in {frame.name} "
                            f"({Path(frame.filename).name}:{frame.lineno})",
                            value,
                        )

    def client(self, client: Any) -> None:
        """Search the reports of a client about itself."""
        for name in ("statistics", "health", "metrics"):
            if hasattr(client, name):
                self.text(name, repr(getattr(client, name)()))
        self.text("repr", repr(client))

    def verify(self) -> None:
        """Check that something was searched and that no secret was found."""
        assert self.looked_at, "nothing came out"
        assert not self.found, "\n".join(self.found)


def _all_of(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
