"""The licences of everything that a package needs at run time, from installed metadata.

Without arguments the script prints ``docs/licences.md``. ``--sbom trikafka`` prints a bill of
materials of one package instead, in CycloneDX's JSON, with the versions of this environment.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGES = ("trikafka", "trikafka-broker", "trikafka-export", "trikafka-spark")
#: Licences that ask for no more than their text and the authors' names. Anything else needs a
#: decision by a person, so a package with another licence fails.
PERMISSIVE = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "PSF-2.0",
        "Zlib",
    }
)
#: Older metadata has free text or classifiers instead of an SPDX expression.
_SPDX = {
    "apache": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "http://www.apache.org/licenses/license-2.0": "Apache-2.0",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "python software foundation license": "PSF-2.0",
}


class Needed(NamedTuple):
    """A package that another one needs at run time.

    Attributes:
        name: The normalized name.
        version: The installed version.
        licence: An SPDX expression, or the metadata's own words.
        by: The packages that require it.
    """

    name: str
    version: str
    licence: str
    by: list[str]


def licence_of(found: Distribution) -> str:
    """Return a distribution's licence: its SPDX expression, or what its older fields mean.

    Several classifiers count as licences that all apply, which is the strict reading.
    """
    metadata = found.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    text = (metadata.get("License") or "").strip()
    text = _SPDX.get(text.lower(), text)
    if is_permissive(text):
        return text
    classified = {
        _SPDX.get(name.lower(), name)
        for line in metadata.get_all("Classifier") or []
        if line.startswith("License ::") and (name := line.rpartition(" :: ")[2]) != "OSI Approved"
    }
    return " AND ".join(sorted(classified)) or text[:100] or "unknown"


def needed(package: str) -> list[Needed]:
    """Return the packages that an installation of ``package`` without extras brings, by name."""
    requirers: dict[str, list[str]] = {}
    pending = [(package, frozenset[str]())]
    seen = set(pending)
    while pending:
        name, extras = pending.pop()
        for requirement in _requirements(name, extras):
            other = str(canonicalize_name(requirement.name))
            if name not in (by := requirers.setdefault(other, [])):
                by.append(name)
            step = (other, frozenset(requirement.extras))
            if step not in seen:
                seen.add(step)
                pending.append(step)
    return [
        Needed(name, (found := distribution(name)).version, licence_of(found), sorted(by))
        for name, by in sorted(requirers.items())
    ]


def _requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield requirement


def is_permissive(licence: str) -> bool:
    """Return whether every part of an SPDX expression is a permissive licence.

    Of alternatives one is enough.
    """
    return any(
        all(part in PERMISSIVE for part in re.split(r" AND ", choice.strip("() ")))
        for choice in licence.split(" OR ")
    )


def page() -> str:
    """Return the text of ``docs/licences.md``."""
    rows: dict[str, tuple[str, list[str]]] = {}
    for package in PACKAGES:
        for one in needed(package):
            if one.name not in PACKAGES:
                rows.setdefault(one.name, (one.licence, []))[1].append(package)
    lines = [
        "# Licences",
        "",
        "trikafka and its three packages have the licence Apache-2.0. The table lists what they "
        "need at run",
        "time, without extras. Each licence is permissive. A release also has a",
        "[bill of materials](../CONTRIBUTING.md#release).",
        "",
        "| package | licence | part of an installation of |",
        "|---|---|---|",
        *(
            f"| {name} | {licence} | {'each' if len(parts) == len(PACKAGES) else ', '.join(parts)} |"
            for name, (licence, parts) in sorted(rows.items())
        ),
        "",
        "On Windows, Trio also needs cffi and pycparser, and click needs colorama.",
    ]
    return "\n".join(lines) + "\n"


def bill_of_materials(package: str) -> dict[str, Any]:
    """Return a package's components with versions and licences, in CycloneDX's format."""

    def component(name: str, version: str, licence: str) -> dict[str, Any]:
        reference = f"pkg:pypi/{name}@{version}"
        return {
            "type": "library",
            "bom-ref": reference,
            "name": name,
            "version": version,
            "purl": reference,
            "licenses": [{"expression": licence}],
        }

    root = distribution(package)
    parts = {one.name: one for one in needed(package)}
    reference = {name: f"pkg:pypi/{name}@{one.version}" for name, one in parts.items()}
    reference[package] = f"pkg:pypi/{package}@{root.version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(package, root.version, licence_of(root))},
        "components": [component(*one[:3]) for one in parts.values()],
        "dependencies": [
            {
                "ref": each,
                "dependsOn": [reference[one.name] for one in parts.values() if name in one.by],
            }
            for name, each in reference.items()
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sbom", metavar="PACKAGE", choices=PACKAGES)
    asked = parser.parse_args().sbom
    print(page() if asked is None else json.dumps(bill_of_materials(asked), indent=2), end="")


if __name__ == "__main__":
    main()
