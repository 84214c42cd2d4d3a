r"""Java's regular expressions over the names of topics, translated to Python's. Pure.

The name of a topic has 65 possible characters (letters, digits, ``.``, ``_``, ``-``). So every
class of characters, with all that Java knows of them (``\p{...}``, unions, ``&&``), is a set of
these, and becomes a plain class in Python.
"""

from __future__ import annotations

import re
import string
import unicodedata

from trikafka import ConfigurationError

_LEGAL = frozenset(string.ascii_letters + string.digits + "._-")
_DIGITS, _LETTERS = frozenset(string.digits), frozenset(string.ascii_letters)
_LOWER, _UPPER = frozenset(string.ascii_lowercase), frozenset(string.ascii_uppercase)
_PUNCTUATION = frozenset("._-")
#: Sets of characters by the property's name, in lower case and without ``Is``: Java's names of
#: POSIX classes, of Unicode's binary properties and of the methods of ``Character``.
_NAMED = {
    "lower": _LOWER,
    "upper": _UPPER,
    "alpha": _LETTERS,
    "digit": _DIGITS,
    "alnum": _LETTERS | _DIGITS,
    "punct": _PUNCTUATION,
    "ascii": _LEGAL,
    "graph": _LEGAL,
    "print": _LEGAL,
    "blank": frozenset[str](),
    "cntrl": frozenset[str](),
    "space": frozenset[str](),
    "xdigit": frozenset(string.hexdigits),
    "alphabetic": _LETTERS,
    "lowercase": _LOWER,
    "uppercase": _UPPER,
    "titlecase": frozenset[str](),
    "letter": _LETTERS,
    "ideographic": frozenset[str](),
    "white_space": frozenset[str](),
    "whitespace": frozenset[str](),
    "punctuation": _PUNCTUATION,
    "control": frozenset[str](),
    "hex_digit": frozenset(string.hexdigits),
    "assigned": _LEGAL,
    "noncharacter_code_point": frozenset[str](),
    "join_control": frozenset[str](),
    "emoji": _DIGITS,
    "javalowercase": _LOWER,
    "javauppercase": _UPPER,
    "javaalphabetic": _LETTERS,
    "javaletter": _LETTERS,
    "javadigit": _DIGITS,
    "javaletterordigit": _LETTERS | _DIGITS,
    "javawhitespace": frozenset[str](),
    "javaspacechar": frozenset[str](),
    "javaisocontrol": frozenset[str](),
    "javadefined": _LEGAL,
    "javatitlecase": frozenset[str](),
    "javamirrored": frozenset[str](),
    "javajavaidentifierstart": _LETTERS | {"_"},
    "javajavaidentifierpart": _LETTERS | _DIGITS | {"_"},
    "l1": _LEGAL,
    "ld": _LETTERS | _DIGITS,
    "lc": _LETTERS,
    "all": _LEGAL,
    "latin": _LETTERS,
    "latn": _LETTERS,
    "common": _LEGAL - _LETTERS,
    "zyyy": _LEGAL - _LETTERS,
    "basiclatin": _LEGAL,
}
_SHORT = {
    "d": _DIGITS,
    "w": _LETTERS | _DIGITS | {"_"},
    "s": frozenset[str](),
    "h": frozenset[str](),
    "v": frozenset[str](),
}
_CATEGORY = re.compile(r"(?:C[cfnos]?|L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?)$")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}


def java_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern of Java's; use its ``search``, as Spark's connector uses ``find``.

    Raises :exc:`ConfigurationError`.
    """
    try:
        return re.compile(_Translator(text).run())
    except (re.error, IndexError, ValueError, OverflowError) as error:
        reason = "it ends too early" if isinstance(error, IndexError) else error
        raise ConfigurationError(
            f"subscribePattern {text!r} is not a regular expression that is understood: {reason}"
        ) from error


class _Translator:
    """A translator, which reads the pattern once, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def run(self) -> str:
        out: list[str] = []
        while self._at < len(self._text):
            character = self._take()
            if character == "\\":
                out.append(self._escape())
            elif character == "[":
                out.append(_as_class(self._class()))
            elif character == "(" and self._follows("?<") and self._text[self._at + 2] not in "=!":
                self._at += 2
                out.append("(?P<")
            else:
                out.append(character)
        return "".join(out)

    def _take(self) -> str:
        character = self._text[self._at]
        self._at += 1
        return character

    def _follows(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _escape(self) -> str:
        """Return the translation of an escape outside of a class."""
        if self._follows("Q"):
            return re.escape(self._quoted())
        if self._text[self._at] in "bBAzZG123456789":
            character = self._take()
            return {"z": r"\Z", "Z": r"\Z", "G": r"\A"}.get(character, "\\" + character)
        if self._follows("k<"):
            name, self._at = self._braced(self._at + 2, ">")
            return f"(?P={name})"
        if self._follows("R"):
            self._take()
            return _as_class(frozenset())
        found = self._escaped()
        return _as_class(found) if isinstance(found, frozenset) else re.escape(found)

    def _escaped(self) -> frozenset[str] | str:
        """Return the meaning of an escape that may stand in a class, too.

        It is a set of characters, or one character.
        """
        character = self._take()
        if character in "pP":
            found = self._property()
            return found if character == "p" else _LEGAL - found
        if character.lower() in _SHORT:
            found = _SHORT[character.lower()]
            return found if character.islower() else _LEGAL - found
        if character in _CONTROL:
            return _CONTROL[character]
        if character == "x" and self._follows("{"):
            digits, self._at = self._braced(self._at + 1, "}")
            return chr(int(digits, 16))
        if character in "xu":
            width = 2 if character == "x" else 4
            digits = self._text[self._at : self._at + width]
            self._at += width
            return chr(int(digits, 16))
        if character == "0":
            octal = re.match(r"[0-3]?[0-7]{1,2}", self._text[self._at :])
            if octal is None:
                raise ValueError(r"\0 needs an octal number")
            self._at += octal.end()
            return chr(int(octal[0], 8))
        if character == "c":
            return chr(ord(self._take()) ^ 64)
        if character.isalnum():
            raise ValueError(f"the escape \\{character}")
        return character

    def _property(self) -> frozenset[str]:
        if not self._follows("{"):
            return _property(self._take())
        name, self._at = self._braced(self._at + 1, "}")
        return _property(name)

    def _braced(self, start: int, end: str) -> tuple[str, int]:
        stop = self._text.index(end, start)
        return self._text[start:stop], stop + 1

    def _quoted(self) -> str:
        start = self._at + 1
        stop = self._text.find("\\E", start)
        self._at = len(self._text) if stop < 0 else stop + 2
        return self._text[start:] if stop < 0 else self._text[start:stop]

    def _class(self) -> frozenset[str]:
        """Return the characters of a class; its ``[`` has been read."""
        negated = self._follows("^")
        self._at += negated
        found, parts, first = frozenset[str](), list[frozenset[str]](), True
        while first or not self._follows("]"):
            if self._follows("&&"):
                self._at += 2
                parts.append(found)
                found = frozenset()
                continue
            found |= self._element()
            first = False
        self._at += 1
        for part in parts:
            found &= part
        return _LEGAL - found if negated else found

    def _element(self) -> frozenset[str]:
        """Return one element of a class: another class, an escape, a range or a character."""
        if self._follows("["):
            self._at += 1
            return self._class()
        if self._follows("\\Q"):
            self._at += 1
            return frozenset(self._quoted()) & _LEGAL
        low = self._single()
        if isinstance(low, frozenset):
            return low & _LEGAL
        if self._follows("-") and not self._follows("-]") and not self._follows("-["):
            self._at += 1
            high = self._single()
            if isinstance(high, frozenset) or high < low:
                raise ValueError(f"a range that begins with {low!r}")
            return frozenset(character for character in _LEGAL if low <= character <= high)
        return frozenset(low) & _LEGAL

    def _single(self) -> frozenset[str] | str:
        character = self._take()
        return self._escaped() if character == "\\" else character


def _property(name: str) -> frozenset[str]:
    """Return the characters of topic names with one of Unicode's or Java's properties."""
    key, equals, value = name.partition("=")
    if equals and key.lower() in ("script", "sc", "block", "blk"):
        return (
            _NAMED.get(value.lower().replace(" ", "").replace("_", ""), frozenset())
            if value
            else frozenset()
        )
    wanted = value if equals else name
    if _CATEGORY.match(wanted) or _CATEGORY.match(wanted.removeprefix("Is")):
        return frozenset(
            c for c in _LEGAL if unicodedata.category(c).startswith(wanted.removeprefix("Is"))
        )
    lowered = wanted.lower()
    for known in (lowered, lowered.removeprefix("is")):
        if known in _NAMED:
            return _NAMED[known]
    if lowered.startswith("in"):  # a block; only the first block has characters of topic names
        return _NAMED.get(lowered[2:].replace(" ", "").replace("_", ""), frozenset())
    if (
        lowered.startswith("is") and lowered[2:].replace("_", "").isalpha()
    ):  # a script other than Latin
        return frozenset()
    raise ValueError(f"\\p{{{name}}} is no property")


def _as_class(characters: frozenset[str]) -> str:
    """Return a class for Python; an empty class matches nothing."""
    return f"[{re.escape(''.join(sorted(characters)))}]" if characters else "(?!)"
