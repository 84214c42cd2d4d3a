"""The regular expressions of ``subscribePattern``. Pure."""

from __future__ import annotations

import contextlib
import re
import string
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trikafka_spark.read_options import read_options
from trikafka_spark.topic_patterns import topic_pattern

from trikafka import ConfigurationError

LEGAL = string.ascii_letters + string.digits + "._-"


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("orders", ["orders", "new-orders", "orders.v2"], ["order", "Orders"]),
        ("^orders$", ["orders"], ["orders.v2", "new-orders"]),
        ("orders-[0-9]+", ["orders-1", "x-orders-12-y"], ["orders-"]),
        ("^[^a-c]$", ["d", "9"], ["b"]),
        ("^[]a]$", ["a"], ["b"]),
        (r"^[\w.]+$", ["a_b", "a.1"], ["a-b"]),
        (r"^[.\-_]$", [".", "-", "_"], ["a"]),
        (r"^[\[a]$", ["a"], ["b"]),
        (r"^(a|b)\1$", ["aa", "bb"], ["ab"]),
        (r"(?i)^ORDERS$", ["orders"], ["order"]),
        (r"^(?:a|b)++c$", ["abc"], ["ab"]),
        (r"(?<=new-)orders", ["new-orders"], ["old-orders"]),
        (r"(?<!new-)orders", ["old-orders"], ["new-orders"]),
        (r"\Aorders\Z", ["orders"], ["orders2"]),
        (r"^\x61\u0062$", ["ab"], ["ac"]),
        (r"a\.b", ["a.b"], ["axb"]),
        ("a.b", ["a.b", "axb"], ["ab"]),
        (r"\bb{1}", ["a-b"], ["ab"]),
        ("a&&b|c", ["c"], ["ab"]),
    ],
)
def test_pattern_is_found_anywhere(pattern: str, found: list[str], not_found: list[str]) -> None:
    compiled = topic_pattern(pattern)
    assert [name for name in found if not compiled.search(name)] == []
    assert [name for name in not_found if compiled.search(name)] == []


JAVA = {
    r"\p{Lu}": r"\p{Lu}",
    r"\PL+": r"\PL",
    r"[\p{Lower}x]": r"\p{Lower}",
    "[a-z&&[^bc]]": "&&",
    "[a-c[x-z]]": "[",
    "[[a]]": "[",
    r"a\\\Qb\E": r"\Q",
    r"(?<year>[0-9]{4})": "(?<year>",
    r"(a)\k<year>": r"\k<year>",
    r"orders\z": r"\z",
    r"\Gorders": r"\G",
    r"\0101": r"\0101",
    r"(a)\1010": r"\1010",
    r"\x{61}": r"\x{61}",
    r"\b{g}a": r"\b{g}",
    r"\h*a": r"\h",
    r"\cA": r"\cA",
    r"\e": r"\e",
    "(?d)a": "(?d",
    "(?iU:a)": "(?iU",
}


@pytest.mark.parametrize("pattern", JAVA)
def test_syntax_of_java_is_refused_by_name(pattern: str) -> None:
    """The error names the syntax, before any I/O."""
    said = re.escape(f"has {JAVA[pattern]!r} at position")
    with pytest.raises(ConfigurationError, match=said):
        read_options({"kafka.bootstrap.servers": "h:1", "subscribePattern": pattern})


WRONG = ["(", "[a", "a{2,1}", "*", "\\", r"\y", "(?P<n>a)(?P<n>b)", "[z-a]", "a)", "a{99999999999}"]


@pytest.mark.parametrize("pattern", WRONG)
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"subscribePattern .* is not a regular expression of Python's re"
    ):
        topic_pattern(pattern)


@given(st.text() | st.text("\\[]^&()?<>pPQEk{}0189aUd-"))
def test_any_text_is_a_pattern_or_an_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        topic_pattern(text)


@given(st.text(LEGAL, min_size=1, max_size=20))
def test_escaped_name_matches_itself(name: str) -> None:
    assert topic_pattern(rf"^{re.escape(name)}$").search(name)
