"""docs/metrics.md names each class of numbers, real fields of them, and each observer.

The docstring of a class, which the API reference shows, explains each field.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import trikafka
import trikafka.interfaces

PAGE = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
#: Public classes with numbers and states of a client.
KINDS = ("Statistics", "Health", "Event", "Latency", "Throttle", "MetricsPush")
CLASSES = [getattr(trikafka, name) for name in trikafka.__all__ if name.endswith(KINDS)]


def fields(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_docstring_explains_each_field(kind: type) -> None:
    text = (inspect.getdoc(kind) or "").partition("Attributes:")[2]
    assert re.findall(r"^    (\w+): \S", text, re.MULTILINE) == fields(kind)
    assert f"`{kind.__name__}`" in PAGE


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_docstring_names_each_unit(kind: type) -> None:
    """A number that is no count has a unit, in its own text or in that of the whole class."""
    whole, _, text = (inspect.getdoc(kind) or "").partition("Attributes:")
    texts = dict(re.findall(r"^    (\w+): (\S.*(?:\n        .*)*)", text, re.MULTILINE))
    units = re.compile(r"[Ss]econds?|\bms\b|[Bb]ytes?|[Ss]hare of|Trio's clock|time\.time")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if "float" in str(field.type) or "bytes" in field.name:
            said = f"{field.name} {texts[field.name]} {whole}"
            assert units.search(said), f"{kind.__name__}.{field.name}: {texts[field.name]}"


def test_page_names_real_fields() -> None:
    questions = PAGE.partition("## Which number")[2].partition("## ")[0]
    named = set(re.findall(r"`(\w+)`", questions))
    assert len(named) > 20
    assert named <= {name for kind in CLASSES for name in fields(kind)}


def test_page_names_each_observer() -> None:
    observers = [name for name in trikafka.interfaces.__all__ if name.endswith("Observer")]
    assert len(observers) > 3
    assert set(re.findall(r"`(\w*Observer)`", PAGE)) == set(observers)


def test_docstring_explains_each_method_of_observers() -> None:
    for name in (name for name in trikafka.interfaces.__all__ if name.endswith("Observer")):
        methods = {n: m for n, m in vars(getattr(trikafka.interfaces, name)).items() if n[0] != "_"}
        assert methods
        assert all(map(inspect.getdoc, methods.values())), name
