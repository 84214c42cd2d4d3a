"""The settings of docs/clouds.md are valid configurations of every client."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from trikafka.config import AdminConfig, ConsumerConfig, ProducerConfig

PAGE = (Path(__file__).parent.parent / "docs" / "clouds.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- cloud: ([\w-]+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


def test_each_service_has_settings() -> None:
    assert {name.partition("-")[0] for name in BLOCKS} == {"confluent", "msk", "event", "redpanda"}
    assert PAGE.count("```python") == len(BLOCKS)


@pytest.mark.parametrize("config", [AdminConfig, ConsumerConfig, ProducerConfig])
@pytest.mark.parametrize("name", BLOCKS)
def test_settings_are_accepted(name: str, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in re.findall(r'os\.environ\["(\w+)"\]', BLOCKS[name]):
        monkeypatch.setenv(variable, "a secret")
    names: dict[str, Any] = {"os": os, "trio": trio}
    exec(BLOCKS[name], names)
    made = config(**names["settings"])
    assert made.security_protocol == "SASL_SSL"
