"""Generated files are up to date: the types of the settings, the package's stub, the reference."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trikafka
from trikafka.config import ConsumerConfig, ProducerConfig, settings_of

ROOT = Path(__file__).parent.parent
FILES = ["trikafka/config/typed.py", "trikafka/__init__.pyi", "docs/reference.md"]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """Return each file as the script writes it.

    The script runs in its own process, so that imports and changes of other tests do not show.
    """
    program = (
        "import generate, json, sys; json.dump({name: make() for name, make in "
        "generate.FILES.items()}, sys.stdout)"
    )
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); "
    done = subprocess.run(
        [sys.executable, "-c", path + program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    files: dict[str, str] = json.loads(done.stdout)
    return files


@pytest.mark.parametrize("name", FILES)
def test_generated_file_is_up_to_date(made: dict[str, str], name: str) -> None:
    assert set(made) == set(FILES)
    message = (
        f"{name} is not what the code says now: run `make docs` (python scripts/generate.py) and "
        "commit it"
    )
    assert (ROOT / name).read_text() == made[name], message


def test_reference_has_no_addresses_or_markup() -> None:
    text = (ROOT / "docs/reference.md").read_text()
    assert not re.search(r"0x[0-9a-f]{6}|ForwardRef|:exc:|:class:|:meth:|:func:|<class ", text)


@pytest.mark.parametrize("name", sorted(set(trikafka.__all__) - {"__version__"}))
def test_reference_has_every_public_name(name: str) -> None:
    text = (ROOT / "docs/reference.md").read_text()
    in_settings = name.endswith("Settings") or name in (
        "ClientConfig",
        "AdminConfig",
        "ConsumerConfig",
        "ProducerConfig",
    )
    assert in_settings or f"### {name}\n" in text or f"| `{name}` |" in text


@pytest.mark.parametrize(
    ("opener", "config"),
    [(trikafka.open_consumer, ConsumerConfig), (trikafka.open_producer, ProducerConfig)],
)
def test_help_explains_each_setting(opener: object, config: type) -> None:
    text = opener.__doc__ or ""
    for name, one in settings_of(config).items():
        found = re.search(rf"^    {name}: (.*) = (.*)\n        (.+)$", text, re.MULTILINE)
        assert found is not None, name
        assert found[1] == one.annotation
        assert one.doc[1:] in found[3]
        assert not one.unit or {"ms": "milliseconds"}.get(one.unit, one.unit) in found[3]
