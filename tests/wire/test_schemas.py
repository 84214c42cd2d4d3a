"""Own schemas beside those of Kafka's clients: every field, its type, versions, tag and default."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trikafka_broker import fetch_jars

from trikafka._wire import schemas

FOLDER = Path(schemas.__file__).parent
#: What a schema of Kafka says that neither an encoder nor a decoder needs.
_PROSE = {"about", "ignorable", "entityType", "mapKey", "listeners", "latestVersionUnstable"}
#: The default of each type that has no other.
_PLAIN = {"string": "", "bytes": "", "records": None, "bool": "false"}


@pytest.fixture(scope="module")
def released() -> dict[str, Any]:
    """Return the schemas in the jar of Kafka's clients, by name."""
    (jar,) = fetch_jars().glob("kafka-clients-*.jar")
    with zipfile.ZipFile(jar) as content:
        texts = {
            Path(name).stem: content.read(name).decode()
            for name in content.namelist()
            if name.startswith("common/message/") and name.endswith(".json")
        }
    return {
        name: json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        for name, text in texts.items()
    }


def versions(text: str | None, newest: int) -> set[int]:
    """Return the versions that a schema's text names, up to the newest."""
    if not text or text == "none":
        return set()
    low, dash, high = text.rstrip("+").partition("-")
    last = newest if text.endswith("+") else int(high if dash else low)
    return set(range(int(low), min(last, newest) + 1))


def flat(
    fields: list[dict[str, Any]], structs: dict[str, Any], newest: int, oldest: int, path: str = ""
) -> Iterator[tuple[Any, ...]]:
    """Yield what the bytes depend on, field by field, in order."""
    for field in fields:
        known = set(range(oldest, newest + 1))
        own = versions(field["versions"], newest) & known
        kind = field["type"].removeprefix("[]")
        array = field["type"].startswith("[]")
        default = field.get("default", None if array else _PLAIN.get(kind, "0"))
        if own:
            yield (
                f"{path}{field['name']}",
                "[]" * array + (kind if kind[0].islower() else "struct"),
                own,
                field.get("tag"),
                versions(field.get("taggedVersions"), newest) & own,
                versions(field.get("nullableVersions"), newest) & own,
                str(default).lower(),
            )
            inside = field.get("fields") or structs.get(kind) or []
            yield from flat(inside, structs, newest, oldest, f"{path}{field['name']}.")


def described(schema: dict[str, Any], newest: int, oldest: int) -> list[tuple[Any, ...]]:
    structs = {each["name"]: each["fields"] for each in schema.get("commonStructs", [])}
    return list(flat(schema.get("fields", []), structs, newest, oldest))


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_schema_is_that_of_kafka(name: str, released: dict[str, Any]) -> None:
    own, theirs = json.loads((FOLDER / f"{name}.json").read_text()), released[name]
    for key in ("apiKey", "type", "name"):
        assert own[key] == theirs[key]
    numbers = versions(own["validVersions"], 99)
    newest = max(numbers)
    # Kafka removes old versions; a schema of ours may keep them, and may leave out new ones.
    oldest = min(versions(theirs["validVersions"], 99))
    assert newest in versions(theirs["validVersions"], 99)
    span = (newest, max(oldest, min(numbers)))
    assert versions(own["flexibleVersions"], newest) == versions(theirs["flexibleVersions"], newest)
    assert described(own, *span) == described(theirs, *span)


def test_fields_of_own_schemas_say_no_more() -> None:
    """A copied description would be Kafka's text, and an unknown key would change nothing."""
    for path in FOLDER.glob("*.json"):
        assert not re.findall(rf'"({"|".join(_PROSE - {"ignorable"})})":', path.read_text()), path


def test_changed_schema_is_seen(released: dict[str, Any]) -> None:
    theirs = released["ConsumerGroupHeartbeatRequest"]
    changed = json.loads(json.dumps(theirs))
    changed["fields"][-1]["fields"][0]["type"] = "string"
    assert described(changed, 1, 0) != described(theirs, 1, 0)
