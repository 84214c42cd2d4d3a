"""docs/from-aiokafka.md names every public method of aiokafka's clients."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

PAGE = Path(__file__).parent.parent / "docs/from-aiokafka.md"


@pytest.mark.parametrize("client", [AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient])
def test_page_names_each_method(client: type) -> None:
    rows = re.findall(r"^\| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"\w+", " ".join(rows)))
    methods = {name for name in dir(client) if not name.startswith("_")}
    assert len(methods) > 10
    assert methods <= named, sorted(methods - named)
