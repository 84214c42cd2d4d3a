r"""The format of Java's ``.properties`` files.

The rules are those of ``java.util.Properties.load``. Kafka's programs load such files from a stream
of bytes. Java reads each byte as one character (ISO-8859-1). Characters beyond Latin-1 must be
written as ``\uXXXX``, as ``Properties.store`` does. trikafka follows these rules: a password must
not depend on the program that reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import ConfigurationError
from .secrets import secret

_BLANKS = " \t\f"
# Java ends a line at these and at no other character, unlike str.splitlines().
_LINE_ENDS = re.compile("\r\n|\r|\n")
# A name ends at the first separator without a backslash. Blanks may stand around the one "=" or ":"
# that follows it.
_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*)([ \t\f]*(?:[=:][ \t\f]*)?)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# UTF-8's byte order mark, each byte read as one character.
_BYTE_ORDER_MARK = "\xef\xbb\xbf"


# Users share one file between Java programs and trikafka, so each line must mean the same in both.
# A reader that was written for "NAME=VALUE" lines differs from Java in cases that corrupt passwords
# silently:
#
# * A backslash escapes the next character, also in values. "pa\ss" is the password "pass".
# * ":" and blanks separate name and value, not only "=".
# * "#" and "!" begin a comment only at the start of a line. In "password=a#b" the "#" belongs to
#   the value, and trailing blanks do, too. from_properties() later trims values as Kafka's
#   ConfigDef does, except passwords.
# * Only CR, LF and CRLF end a line. str.splitlines() would also split at U+0085, which is one byte
#   in ISO-8859-1.
# * Bytes are characters. A file that was saved as UTF-8 gives other characters than its author saw.
#   Java accepts this in silence; here a warning names the line.
#
# A UTF-8 byte order mark becomes part of the first name in Java, and that setting is lost. Such a
# file is refused.
#
# Everything that may hold a value is wrapped by secret() at once: see secrets.py.
class Entry(NamedTuple):
    """One entry of a file.

    ``line`` is the number of its first line. ``lone`` is True if nothing follows the name, not even
    a separator.
    """

    line: int
    name: str
    value: str
    lone: bool


def entries(text: str) -> Iterator[Entry]:
    r"""Yield the entries of a file's text in order.

    Raises:
        ConfigurationError: A ``\u`` is not followed by four hexadecimal digits. The error names the
            line and shows nothing of its content.
    """
    for line, logical in _logical_lines(secret(text)):
        match = _ENTRY.fullmatch(logical)
        assert match is not None  # no logical line ends in an odd number of backslashes
        name, separator, value = match.groups()
        yield Entry(
            line, _unescape(name, line), secret(_unescape(value, line)), not separator and not value
        )


def decode(content: bytes) -> tuple[str, int | None]:
    """Return a file's bytes as text, and the number of the first line that is not ASCII.

    Lines of comments are not considered.

    Raises:
        ConfigurationError: The file begins with UTF-8's byte order mark, which Java would read as
            part of a name.
    """
    text = secret(content.decode("latin-1"))
    if text.startswith(_BYTE_ORDER_MARK):
        raise ConfigurationError(
            "line 1: the file begins with a byte order mark (BOM), which Java takes for a part of "
            "the first name; remove it"
        )
    strange = (line for line, logical in _logical_lines(text) if not logical.isascii())
    return text, next(strange, None)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line with the number of its first line.

    A line continues on the next one if it ends in an odd number of backslashes. Leading blanks of
    the next line are dropped, and nothing else. A "#" there begins no comment, and an empty line
    ends the entry.
    """
    logical, first = "", 0
    for number, line in enumerate(_LINE_ENDS.split(text), 1):
        part = line.lstrip(_BLANKS)
        if not logical:
            if not part or part[0] in "#!":
                continue
            first = number
        if (len(part) - len(part.rstrip("\\"))) % 2:
            logical += part[:-1]
        else:
            yield first, secret(logical + part)
            logical = ""
    if logical:
        yield first, secret(logical)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    if any(match[2] == "u" for match in _ESCAPE.finditer(text)):
        raise ConfigurationError(
            f"line {line}: \\u must be followed by four hexadecimal digits; a backslash itself is "
            "\\\\"
        )
    units = _ESCAPE.sub(_unescaped, text)
    # Java's characters are units of UTF-16. A surrogate pair becomes one character here.
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _LETTERS.get(escape[2], escape[2])
