"""The regular expressions of ``subscribePattern``, which choose topics by name. Pure."""

# Why some of Java's syntax is refused
# ------------------------------------
#
# Spark's connector takes a pattern of Java, and this source compiles it with ``re``. Topic names
# have only letters, digits, ``.``, ``_`` and ``-``, so every pattern of Java can be written for
# ``re`` too. Most of what ``re`` lacks it refuses by itself. Some of it, such as ``[a-z&&[^b]]`` or
# an octal escape, means something else there, and the query would silently read other topics. So
# both kinds are found first, and the error names them.

from __future__ import annotations

import re

from trikafka import ConfigurationError

#: One element of a pattern. The group ``java`` is what only Java reads in Java's way.
_ELEMENT = re.compile(
    r"(?P<java>\\[pP](?:\{[^}]*\}?|.)|\\b\{\w*\}|\\x\{[^}]*\}?|\\k<[^>]*>?|\\c.|\\0\d*|\\\d{3,}"
    r"|\\[QEGHRVXhez])"
    r"|\(\?<(?![=!])[^>)]*>?"
    r"|\(\?[a-zA-Z]*-?[dU]"
    r"|\\.|\[\^?\]?|&&|.",
    re.DOTALL,
)


def topic_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern; use its ``search``, as Spark's connector uses ``find``.

    Raises:
        ConfigurationError: The pattern is not valid, or has syntax of Java that ``re`` lacks.
    """
    _refuse_java(text)
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigurationError(
            f"subscribePattern {text!r} is not a regular expression of Python's re: {error}"
        ) from error


def _refuse_java(text: str) -> None:
    in_class = False
    for element in _ELEMENT.finditer(text):
        found = element[0]
        if in_class:
            only_java = element["java"] or found[0] == "[" or found == "&&"
        else:
            only_java = element["java"] or (found[:2] == "(?" and len(found) > 2)
        if only_java:
            raise ConfigurationError(
                f"subscribePattern {text!r} has {found!r} at position {element.start()}, which is "
                "Java's syntax and not that of Python's re: write a class such as [a-z0-9], \\Z "
                "for the end, (?P<name>...) for a named group; topics have only letters, digits, "
                "'.', '_' and '-'"
            )
        if not in_class and found[0] == "[":
            in_class = True
        elif found == "]":
            in_class = False
