"""The entries to trikafka-export: what they raise without the package, and the names that moved."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import trikafka

#: Calls the entries where an import of the package fails as if it were not installed.
WITHOUT = """
import sys
import trio

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "trikafka_export":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from trikafka import *

async def opened():
    async with open_exporter("flights", "/nowhere"):
        pass

for call in (lambda: export("flights", "/nowhere"), lambda: check_export("/nowhere"), opened):
    try:
        trio.run(call)
    except PluginError as error:
        print(error)
try:
    from trikafka import DirectoryStore
except ModuleNotFoundError as error:
    print(error)
"""
INSTALL = (
    "exports need the package trikafka-export: pip install trikafka-export (from a clone: pip "
    "install ./plugins/trikafka-export)\n"
)
MOVED = (
    "trikafka.DirectoryStore is now in the package trikafka-export: pip install trikafka-export\n"
)


def test_entries_say_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=240
    )
    assert (done.stdout, done.stderr) == (3 * INSTALL + MOVED, "")


@pytest.mark.parametrize("name", sorted(trikafka._MOVED))
def test_moved_name_warns_and_works(name: str) -> None:
    home = trikafka._MOVED[name]
    with pytest.warns(DeprecationWarning, match=f"trikafka.{name} is now {home}.{name}") as caught:
        old = getattr(trikafka, name)
    assert old is getattr(importlib.import_module(home), name)
    assert caught[0].filename == __file__
