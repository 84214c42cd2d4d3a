"""Generated files are up to date; the documentation site has every public name."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trikafka_broker

import trikafka
import trikafka.aio
import trikafka.testing
import trikafka.toolkit
from trikafka.config import ConsumerConfig, ProducerConfig, settings_of

ROOT = Path(__file__).parent.parent
FILES = [
    "trikafka/config/typed.py",
    "trikafka/__init__.pyi",
    "docs/settings.md",
    "docs/settings-security.md",
    "docs/licences.md",
]


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
        f"{name} is not what the code says now: run `make generated` (python scripts/generate.py) and "
        "commit it"
    )
    assert (ROOT / name).read_text() == made[name], message


@pytest.mark.parametrize("page", ["settings.md", "settings-security.md"])
def test_settings_have_no_addresses_or_markup(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert not re.search(r"0x[0-9a-f]{6}|ForwardRef|:exc:|:class:|:meth:|:func:|<class ", text)


def _documented(page: Path) -> Counter[str]:
    """Return the names that a page of the API reference documents, each with its module."""
    names: Counter[str] = Counter()
    module = ""
    for line in page.read_text().splitlines():
        if found := re.match(
            r"\.\. (?:py:)?(currentmodule|auto\w+|data|function):: ([\w.]+)", line
        ):
            kind, name = found.groups()
            if kind == "currentmodule":
                module = name
            else:
                names[name if name.startswith("trikafka.") else f"{module}.{name}"] += 1
    return names


@pytest.mark.parametrize(
    "package",
    [trikafka, trikafka.aio, trikafka.testing, trikafka.toolkit, trikafka_broker],
    ids=lambda package: package.__name__,
)
def test_api_pages_have_each_public_name_once(package: Any) -> None:
    pages = sum(map(_documented, (ROOT / "docs/api").glob("*.rst")), Counter())
    wanted = {f"{package.__name__}.{name}" for name in set(package.__all__) - {"__version__"}}
    assert {name: pages[name] for name in wanted} == dict.fromkeys(wanted, 1)


def test_each_error_says_what_to_do() -> None:
    """The page of errors in the API reference shows the docstrings, in the order of the names."""
    page = (ROOT / "docs/api/errors.rst").read_text()
    root, *listed = re.findall(r"^\.\. autoexception:: (\w+)$", page, re.MULTILINE)
    errors = {
        name: thing
        for name in trikafka.__all__
        if isinstance(thing := getattr(trikafka, name), type) and issubclass(thing, BaseException)
    }
    assert root == "TrikafkaError"
    assert listed == sorted(errors.keys() - {root})
    for name, error in errors.items():
        cures = re.findall(r"^What to do: .+", inspect.cleandoc(error.__doc__ or ""), re.MULTILINE)
        assert len(cures) == 1, name


def test_site_has_no_warning(tmp_path: Path) -> None:
    """Sphinx finds the target of each link, and each name of the API reference.

    The builder resolves the pages and writes none: `make docs` writes them, and needs twice the
    time. The garbage collector would take half of the time: it visits a growing tree of pages. The
    debug lines, which nothing shows, would take a tenth.
    """
    program = (
        "import gc, logging, runpy; gc.disable(); logging.disable(logging.DEBUG); "
        "runpy.run_module('sphinx', run_name='__main__')"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, "-q", "-W", "--keep-going", "-b", "dummy"),
            *("-D", "smartquotes=0"),  # they are a tenth of the work, and no warning comes of them
            *("-d", str(tmp_path / "read"), "docs", str(tmp_path / "site")),
        ],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    read = pickle.loads((tmp_path / "read" / "environment.pickle").read_bytes())
    assert read.domaindata["py"]["objects"]["trikafka.Consumer.commit"].docname == "api/consumer"


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
