"""Which schema of a registry is pinned for a topic: one that its own values name, the newest of the topic's own subject.

Values of other subjects may stand in a topic, by mistake or because it has records of several types; their schemas may be newer.
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

#: Ids of schemas that the registry is asked for; and of what follows them, enough for message indexes.
_MOST_IDS, _MOST_REST = 20, 64
_HEAD = 5


@dataclass(frozen=True, slots=True)
class Named:
    """A schema's id, and the beginnings of what follows it in the values that name it."""

    id: int
    rests: tuple[bytes, ...]


def named(values: Iterable[bytes | None]) -> list[Named]:
    """The ids that values name. Of too many, those that are named most often: some stray values must not hide the others'."""
    rests: dict[int, list[bytes]] = {}
    for value in values:
        if value is not None and len(value) >= _HEAD and value[0] == 0:
            rests.setdefault(int.from_bytes(value[1:_HEAD], "big"), []).append(value[_HEAD : _HEAD + _MOST_REST])
    most = sorted(rests.items(), key=lambda each: len(each[1]), reverse=True)[:_MOST_IDS]
    return [Named(id, tuple(found)) for id, found in most]


def choose(
    kind: str, found: Iterable[Named], topic: str, column: str, registry: RegistrySettings, wait: Callable[[float], None]
) -> Mapping[str, Any]:
    """What a plan says of the schema. Raises :exc:`ExportError`, :exc:`SchemaError`, and what the registry raises."""
    client = client_of(registry)
    known = _known(kind.upper(), found, client, wait)
    if len(known) == 1:
        return _PINNED[kind](*known[0])
    subjects = {schema.id: client.subjects(schema.id, wait=wait) for schema, _ in known}
    subject = _subject(subjects, {one.id: len(one.rests) for _, one in known}, f"{topic}-{column}")

    def age(schema: Registered) -> tuple[int, int]:
        # The same schema may be older, and have a lower id, in another subject: the version is this subject's own order.
        return _versions(subjects[schema.id]).get(subject, 0), schema.id

    return _PINNED[kind](*max(known, key=lambda each: age(each[0])))


def _known(
    type: str, found: Iterable[Named], client: RegistryClient, wait: Callable[[float], None]
) -> list[tuple[Registered, Named]]:
    """The schemas of this type that the registry knows; what else values seem to name will be seen record by record."""
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
            why = why or f"schema {one.id} of the registry {client.url} is one of {schema.type}, not of {type}"
    if not known:
        raise ExportError(f"no schema could be found: {why}")
    return known


def _subject(subjects: Mapping[int, Mapping[str, int]], counts: Mapping[int, int], own: str) -> str:
    """The topic's own subject; where the values are of none such, because they are named by records, that of most values."""
    found: Counter[str] = Counter()
    for id, versions in subjects.items():
        for subject in _versions(versions):
            found[subject] += counts[id]
    if own in found or not found:
        return own
    return max(found, key=lambda subject: (found[subject], subject))


def _versions(subjects: Mapping[str, int]) -> dict[str, int]:
    """Without the context that a subject may be in (``:.context:subject``)."""
    return {subject.rpartition(":")[2]: version for subject, version in subjects.items()}


def _avro(found: Registered, one: Named) -> Mapping[str, Any]:
    from .avro_types import AvroSchema

    texts = [text for _, text in found.references]
    return AvroSchema.of_texts(found.text, texts, f"schema {found.id} of the registry").checked().pinned()


def _protobuf(found: Registered, one: Named) -> Mapping[str, Any]:
    from .protobuf_format import indexes_of
    from .protobuf_registry import schema_of

    indexes: Counter[tuple[int, ...]] = Counter()
    for rest in one.rests:
        with contextlib.suppress(UnreadableError):
            indexes[tuple(indexes_of(rest)[0])] += 1
    if not indexes:
        raise ExportError(f"no schema could be found: what follows the schema's id {found.id} are no message indexes")
    return schema_of(found, list(indexes.most_common(1)[0][0])).checked().pinned()


_PINNED: dict[str, Callable[[Registered, Named], Mapping[str, Any]]] = {"avro": _avro, "protobuf": _protobuf}
