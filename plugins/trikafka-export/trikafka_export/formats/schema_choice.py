"""The choice of a registry's schema for a topic: the newest of the topic's subject in use.

Values name their schemas. A topic may contain values of other subjects, by mistake or because it
has records of several types, and their schemas may be newer.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trikafka import ExportError

from .errors import UnreadableError
from .options import RegistrySettings
from .registry import Registered, RegistryClient, client_of

#: The most schema ids that are looked up.
_MOST_IDS = 20
#: The most bytes that are kept after an id: enough for message indexes.
_MOST_REST = 64
_HEAD = 5


@dataclass(frozen=True, slots=True)
class Named:
    """A schema's id, and the first bytes behind it in the values that name it."""

    id: int
    rests: tuple[bytes, ...]


def named(values: Iterable[bytes | None]) -> list[Named]:
    """Return the ids that values name.

    If there are too many, the most frequent ones are kept: stray values must not hide the others.
    """
    rests: dict[int, list[bytes]] = {}
    for value in values:
        if value is not None and len(value) >= _HEAD and value[0] == 0:
            rests.setdefault(int.from_bytes(value[1:_HEAD], "big"), []).append(
                value[_HEAD : _HEAD + _MOST_REST]
            )
    most = sorted(rests.items(), key=lambda each: len(each[1]), reverse=True)[:_MOST_IDS]
    return [Named(id, tuple(found)) for id, found in most]


def choose(
    kind: str,
    found: Iterable[Named],
    topic: str,
    column: str,
    registry: RegistrySettings,
    wait: Callable[[float], None],
) -> Mapping[str, Any]:
    """Return the schema in the form of a plan.

    Raises:
        ExportError: No schema was found.
        SchemaError: The schema cannot be used.
        SchemaRegistryError: The registry refused.
        SchemaRegistryTimeoutError: The registry did not respond.
    """
    client = client_of(registry)
    known = _known(kind.upper(), found, client, wait)
    if len(known) == 1:
        return _PINNED[kind](*known[0])
    subjects = {schema.id: client.subjects(schema.id, wait=wait) for schema, _ in known}
    subject = _subject(subjects, {one.id: len(one.rests) for _, one in known}, f"{topic}-{column}")

    def age(schema: Registered) -> tuple[int, int]:
        # One schema may be registered in several subjects, with one id. Ids therefore do not order
        # the versions of this subject.
        return _versions(subjects[schema.id]).get(subject, 0), schema.id

    return _PINNED[kind](*max(known, key=lambda each: age(each[0])))


def _known(
    type: str, found: Iterable[Named], client: RegistryClient, wait: Callable[[float], None]
) -> list[tuple[Registered, Named]]:
    """Return the known schemas of this type.

    A value that names any other schema is reported later, with its record.
    """
    known, why = [], ""
    for one in found:
        try:
            schema = client.schema(one.id, serialized=type == "PROTOBUF", wait=wait)
        except UnreadableError as error:
            why = why or str(error)
            continue
        if schema.type == type:
            known.append((schema, one))
        else:
            why = why or (
                f"schema {one.id} of the registry {client.url} is one of {schema.type}, not of "
                f"{type}"
            )
    if not known:
        raise ExportError(f"no schema could be found: {why}")
    return known


def _subject(subjects: Mapping[int, Mapping[str, int]], counts: Mapping[int, int], own: str) -> str:
    """Return the topic's own subject, or else the subject of most values.

    Values have other subjects where a subject is named after the type of its records.
    """
    found: Counter[str] = Counter()
    for id, versions in subjects.items():
        for subject in _versions(versions):
            found[subject] += counts[id]
    if own in found or not found:
        return own
    return max(found, key=lambda subject: (found[subject], subject))


def _versions(subjects: Mapping[str, int]) -> dict[str, int]:
    """Return the versions by subject, without a subject's context (``:.context:subject``)."""
    return {subject.rpartition(":")[2]: version for subject, version in subjects.items()}


def _avro(found: Registered, one: Named) -> Mapping[str, Any]:
    from .avro_types import AvroSchema

    texts = [text for _, text in found.references]
    return (
        AvroSchema.of_texts(found.text, texts, f"schema {found.id} of the registry")
        .checked()
        .pinned()
    )


def _protobuf(found: Registered, one: Named) -> Mapping[str, Any]:
    from .protobuf_format import indexes_of
    from .protobuf_registry import schema_of

    indexes: Counter[tuple[int, ...]] = Counter()
    for rest in one.rests:
        with contextlib.suppress(UnreadableError):
            indexes[tuple(indexes_of(rest)[0])] += 1
    if not indexes:
        raise ExportError(
            f"no schema could be found: no message indexes follow the schema's id {found.id}"
        )
    return schema_of(found, list(indexes.most_common(1)[0][0])).checked().pinned()


_PINNED: dict[str, Callable[[Registered, Named], Mapping[str, Any]]] = {
    "avro": _avro,
    "protobuf": _protobuf,
}
