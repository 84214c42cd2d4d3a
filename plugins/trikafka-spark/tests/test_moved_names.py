"""Names that were here before trikafka-export was a package of its own."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("sink", "SparkSink", "FileSink"),
        ("sink_options", "SinkOptions", "SinkOptions"),
        ("columns", "SCHEMA", "SCHEMA"),
        ("reading", "read_range", "read_range"),
    ],
)
def test_old_name_warns_and_works(module: str, name: str, now: str) -> None:
    old = import_module(f"trikafka_spark.{module}")
    with pytest.warns(
        DeprecationWarning,
        match=rf"trikafka_spark\.{module}\.{name} is now trikafka_export\.{module}\.{now}",
    ):
        found = getattr(old, name)
    assert found is getattr(import_module(f"trikafka_export.{module}"), now)


def test_unknown_name_is_no_attribute() -> None:
    old = import_module("trikafka_spark.sink")
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        old.nothing_of_the_kind  # noqa: B018
