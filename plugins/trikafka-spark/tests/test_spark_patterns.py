"""Java's regular expressions over names of topics, as ``find`` uses them. Pure."""

from __future__ import annotations

import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trikafka_spark.patterns import java_pattern

from trikafka import ConfigurationError

LEGAL = string.ascii_letters + string.digits + "._-"


@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("orders", ["orders", "new-orders", "orders.v2"], ["order", "Orders"]),
        ("^orders$", ["orders"], ["orders.v2", "new-orders"]),
        ("orders-[0-9]+", ["orders-1", "x-orders-12-y"], ["orders-"]),
        (r"^\p{Lu}", ["Orders"], ["orders", "1Orders"]),
        (r"^\P{Lu}+$", ["orders-1"], ["ordersX"]),
        (r"^\pL+$", ["abcXYZ"], ["a1"]),
        (r"^\p{Lower}+\p{Digit}$", ["abc1"], ["Abc1", "abc"]),
        (r"^\p{IsAlphabetic}+$", ["abc"], ["a-b"]),
        (r"^\p{javaLowerCase}+$", ["abc"], ["aB"]),
        (r"^\p{IsLatin}+$", ["abC"], ["a1"]),
        (r"^[\p{IsGreek}x]$", ["x"], ["a"]),
        (r"^\p{Punct}$", [".", "_", "-"], ["a"]),
        (r"^\p{InBasicLatin}+$", ["a.B-9"], []),
        (r"^\p{general_category=Nd}$", ["5"], ["x"]),
        ("^[a-z&&[^bc]]$", ["a", "d"], ["b", "c", "A"]),
        ("^[a-c[x-z]]$", ["a", "y"], ["d"]),
        ("^[^a-c]$", ["d", "9"], ["b"]),
        ("^[a-z&&[def]&&[^e]]$", ["d", "f"], ["e", "a"]),
        (r"^[\w&&[^\d]]+$", ["a_b"], ["a1", "a-b"]),
        (r"^[.\-_]$", [".", "-", "_"], ["a"]),
        (r"^\Qa.b\E$", ["a.b"], ["axb"]),
        (r"^[\Q.-\E]$", [".", "-"], ["a"]),
        (r"^(?<year>[0-9]{4})-\k<year>$", ["2024-2024"], ["2024-2025"]),
        (r"^(a|b)\1$", ["aa", "bb"], ["ab"]),
        (r"(?i)^ORDERS$", ["orders"], ["order"]),
        (r"^(?:a|b)++c$", ["abc"], ["ab"]),
        (r"(?<=new-)orders", ["new-orders"], ["old-orders"]),
        (r"\Aorders\z", ["orders"], ["orders2"]),
        (r"^\x61\u0062\x{63}\0144$", ["abcd"], ["abcx"]),
        (r"a\.b", ["a.b"], ["axb"]),
        ("a.b", ["a.b", "axb"], ["ab"]),
        (r"^\s*a\h*$", ["a"], [" a"]),
    ],
)
def test_pattern_matches_as_in_java(pattern: str, found: list[str], not_found: list[str]) -> None:
    compiled = java_pattern(pattern)
    assert [name for name in found if not compiled.search(name)] == []
    assert [name for name in not_found if compiled.search(name)] == []


WRONG = [
    "(",
    "[a",
    "a{2,1}",
    r"\p{Nonsense1}",
    r"\p{L",
    "*",
    "\\",
    r"\y",
    "(?<n>a)(?<n>b)",
    "[z-a]",
    "a)",
]


@pytest.mark.parametrize("pattern", WRONG)
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"subscribePattern .* is not a regular expression"
    ):
        java_pattern(pattern)


@given(st.text())
def test_any_text_is_a_pattern_or_an_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        java_pattern(text)


@given(st.text(LEGAL, min_size=1, max_size=20))
def test_quoted_name_matches_itself(name: str) -> None:
    assert java_pattern(rf"^\Q{name}\E$").search(name)
