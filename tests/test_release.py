"""What a release is made of: licences, bill of materials, wheels, and the workflow that publishes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import licences  # noqa: E402
import wheels  # noqa: E402

sys.path.pop(0)
FOLDERS = {"trikafka": ROOT} | {path.name: path for path in (ROOT / "plugins").iterdir()}


def project(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_trikafka_needs_four_packages() -> None:
    direct = {one.name for one in licences.needed("trikafka") if "trikafka" in one.by}
    assert direct == {"trio", "pluggy", "kafka-python", "cramjam"}


@pytest.mark.parametrize("package", licences.PACKAGES)
def test_nothing_needed_is_copyleft(package: str) -> None:
    found = licences.needed(package)
    assert len(found) >= 7
    assert [one for one in found if not licences.is_permissive(one.licence)] == []


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License-Expression": "MIT"}, "MIT"),
        ({"License": "Apache License 2.0"}, "Apache-2.0"),
        ({"License": "a text\nof many lines", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"Classifier": "License :: OSI Approved :: GNU General Public License (GPL)"}, "GNU General Public License (GPL)"),
        ({}, "unknown"),
    ],
)  # fmt: skip
def test_licence_is_read_from_each_field(fields: dict[str, str], licence: str) -> None:
    metadata = Message()
    for name, value in fields.items():
        metadata[name] = value
    found: Any = SimpleNamespace(metadata=metadata)
    assert licences.licence_of(found) == licence


@pytest.mark.parametrize("licence", ["GPL-3.0-only", "MIT AND LGPL-2.1-only", "MPL-2.0", "unknown"])
def test_copyleft_is_refused(licence: str) -> None:
    assert not licences.is_permissive(licence)
    assert licences.is_permissive(f"{licence} OR MIT")


def test_bill_of_materials_has_each_package() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/licences.py", "--sbom", "trikafka-spark"],
        capture_output=True,
        text=True,
        check=True,
    )
    bill = json.loads(done.stdout)
    names = {part["name"] for part in bill["components"]}
    assert names == {one.name for one in licences.needed("trikafka-spark")}
    references = {part["bom-ref"] for part in bill["components"]}
    (direct,) = [
        entry["dependsOn"]
        for entry in bill["dependencies"]
        if entry["ref"] == bill["metadata"]["component"]["bom-ref"]
    ]
    assert set(direct) <= references
    assert any(one.startswith("pkg:pypi/pyspark@") for one in direct)


def test_classifiers_are_alike() -> None:
    for name, folder in FOLDERS.items():
        found = project(folder)
        assert found["name"] == name
        assert found["license"] == "Apache-2.0"
        assert found["classifiers"] == sorted(set(found["classifiers"])), name
        assert {"Programming Language :: Python :: 3.11", "Typing :: Typed"} <= set(
            found["classifiers"]
        ), name


def test_wheel_of_the_same_version_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One folder gets the wheels of a Python without a GIL and of the same version with one."""

    def said(python: str, *command: str, more: Any = None) -> str:
        into = Path(command[command.index("--wheel-dir") + 1])
        into.mkdir(exist_ok=True)
        name = f"trikafka-1.0-cp314-{python}-linux_x86_64.whl"
        if "repair" in command:
            name = Path(command[-1]).name.replace("linux", "manylinux_2_17")
        (into / name).touch()
        return ""

    monkeypatch.setattr(wheels, "said", said)
    made = [
        wheels.wheel(python, tmp_path, tmp_path / "others", tmp_path / python)
        for python in ("cp314t", "cp314")
    ]
    assert [path.name.split("-")[3] for path in made] == ["cp314t", "cp314"]


def test_workflow_builds_each_configured_wheel() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    rows = workflow["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    systems = {"ubuntu": "linux", "macos": "macos", "windows": "windows"}
    built = {(systems[row["runner"].partition("-")[0]], row["archs"]) for row in rows}
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "cibuildwheel"
    ]
    assert built == {
        (system, arch) for system in systems.values() for arch in tables[system]["archs"]
    }
    assert set(workflow["jobs"]["publish"]["needs"]) == set(workflow["jobs"]) - {"publish"}
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
