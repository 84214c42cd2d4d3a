"""The quotas of users, client ids and addresses: values, requests and responses."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeAlias

from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest

from ...config.text import PlainTexts, plain_text
from ...config.whole import is_number, plain_number
from ...errors import ConfigurationError, from_code
from ..client.option_parsing import is_name
from .messages import words
from .routing import Parts


class QuotaName(Enum):
    """The names of quota entities that are not text."""

    #: Those that have no quota of their own.
    DEFAULT = "default"
    #: In a filter: every name, and the default.
    ANY = "any"

    def __repr__(self) -> str:
        return f"QuotaName.{self.name}"


#: A name, or the default.
EntityName: TypeAlias = str | Literal[QuotaName.DEFAULT]
# Kafka's names of the kinds.
_KINDS = {"user": "user", "client_id": "client-id", "ip": "ip"}
_FIELDS = {kind: field for field, kind in _KINDS.items()}
_EXACT, _DEFAULT, _ANY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class QuotaEntity(PlainTexts):
    """The clients that a quota is about: a user, a client id, both together, or an address.

    Attributes:
        user: The user; ``QuotaName.DEFAULT`` for users without a quota of their own.
        client_id: The client id, or ``QuotaName.DEFAULT``.
        ip: The address or host name, or ``QuotaName.DEFAULT``. It stands alone.
        others: Kinds of a later release and their names, as brokers describe them. Such a quota can
            be seen and not altered.
    """

    user: EntityName | None = None
    client_id: EntityName | None = None
    ip: EntityName | None = None
    others: tuple[tuple[str, EntityName], ...] = ()

    def __post_init__(self) -> None:
        self._make_plain()
        given = dict(_given(self))
        for field, value in given.items():
            _check_name(field, value, "QuotaName.DEFAULT")
            if value is QuotaName.ANY:
                raise ConfigurationError(
                    f"{field}: QuotaName.ANY is for filters; a quota has a name, or "
                    "QuotaName.DEFAULT"
                )
        if self.others:
            return
        if not given or ("ip" in given and len(given) > 1):
            raise ConfigurationError(
                "a quota is about a user, a client_id, both, or an ip alone, not "
                f"{', '.join(given) or 'nothing'}"
            )

    def __str__(self) -> str:
        named = [*((_KINDS[field], value) for field, value in _given(self)), *self.others]
        return ", ".join(
            f"{kind} {'default' if value is QuotaName.DEFAULT else repr(value)}"
            for kind, value in named
        )


@dataclass(frozen=True, slots=True)
class QuotaFilter(PlainTexts):
    """A filter of quotas.

    Attributes:
        user: A user, ``QuotaName.DEFAULT``, or ``QuotaName.ANY``; ``None`` does not look at users.
        client_id: The same for client ids.
        ip: The same for addresses.
        strict: True leaves out quotas that are also about something the filter does not name: those
            of a user and a client id, if only ``user`` is given.
    """

    user: str | QuotaName | None = None
    client_id: str | QuotaName | None = None
    ip: str | QuotaName | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        self._make_plain()
        for field, value in _given(self):
            _check_name(field, value, "QuotaName.DEFAULT or QuotaName.ANY")


def _given(of: QuotaEntity | QuotaFilter) -> Iterator[tuple[str, Any]]:
    """Yield the fields with a value, in Kafka's order."""
    return ((name, value) for name in _KINDS if (value := getattr(of, name)) is not None)


def _check_name(field: str, value: object, other: str) -> None:
    if not isinstance(value, QuotaName) and not is_name(value):
        raise ConfigurationError(
            f"{field} must be a text that is not empty, or {other}, not {value!r}"
        )


#: The quotas by name of each entity; ``None`` removes one.
QuotaChanges: TypeAlias = dict[QuotaEntity, dict[str, float | None]]


def checked_changes(changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> QuotaChanges:
    """Return the checked changes. Raises :exc:`ConfigurationError`."""
    if not isinstance(changes, Mapping):
        raise ConfigurationError(
            "changes must be a mapping of QuotaEntity to a mapping of names and numbers, not "
            f"{changes!r}"
        )
    for entity, values in changes.items():
        if not isinstance(entity, QuotaEntity):
            raise ConfigurationError(f"changes must be for a QuotaEntity, not {entity!r}")
        if entity.others:
            raise ConfigurationError(
                f"this release cannot alter quotas of the kind {entity.others[0][0]!r}"
            )
        if not isinstance(values, Mapping) or not values:
            raise ConfigurationError(
                f"the quotas of {entity} must be a mapping of names and numbers that is not "
                f"empty, not {values!r}"
            )
        for name, value in values.items():
            if not is_name(name):
                raise ConfigurationError(f"the name of a quota is a text, not {name!r}")
            number = plain_number(value)
            # Above the largest float, a whole number is still less than infinity.
            if value is not None and not (is_number(number) and 0 < number <= sys.float_info.max):
                raise ConfigurationError(
                    f"the quota {name} of {entity} must be a number above 0, or None to remove "
                    f"it, not {value!r}"
                )
    return {
        entity: {plain_text(name): plain_number(value) for name, value in values.items()}
        for entity, values in changes.items()
    }


def checked_filter(given: QuotaFilter | None) -> QuotaFilter:
    """Return the filter; ``None`` stands for all quotas. Raises :exc:`ConfigurationError`."""
    if given is not None and not isinstance(given, QuotaFilter):
        raise ConfigurationError(
            f"describe_client_quotas wants a QuotaFilter or None, not {given!r}"
        )
    return given or QuotaFilter()


def describe_request(wanted: QuotaFilter) -> DescribeClientQuotasRequest:
    """Return a DescribeClientQuotas request."""
    matches = {QuotaName.DEFAULT: _DEFAULT, QuotaName.ANY: _ANY}
    return DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequest.ComponentData(
                entity_type=_KINDS[field],
                match_type=matches[value] if isinstance(value, QuotaName) else _EXACT,
                match=None if isinstance(value, QuotaName) else value,
            )
            for field, value in _given(wanted)
        ],
        strict=wanted.strict,
    )


def alter_request(changes: QuotaChanges, *, validate_only: bool) -> AlterClientQuotasRequest:
    """Return an AlterClientQuotas request."""
    entry = AlterClientQuotasRequest.EntryData
    return AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[
                    entry.EntityData(
                        entity_type=_KINDS[field],
                        entity_name=None if value is QuotaName.DEFAULT else value,
                    )
                    for field, value in _given(entity)
                ],
                ops=[
                    entry.OpData(key=name, value=float(value or 0), remove=value is None)
                    for name, value in values.items()
                ],
            )
            for entity, values in changes.items()
        ],
        validate_only=validate_only,
    )


def read_described(response: Any) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas in a DescribeClientQuotas response. Raises its error."""
    if response.error_code:
        what = "the quotas" + words(response.error_message)
        raise from_code(response.error_code, what, operation="DescribeConfigs")
    found = {}
    for entry in response.entries or ():
        entity = _entity(entry.entity)
        if entity is not None:
            found[entity] = {each.key: each.value for each in sorted_by_key(entry.values)}
    return dict(sorted(found.items(), key=lambda item: str(item[0])))


def sorted_by_key(values: Sequence[Any]) -> list[Any]:
    """Return the quotas of one entity by their names."""
    return sorted(values, key=lambda each: each.key)


def read_altered(response: Any, parts: Parts[QuotaEntity, None]) -> None:
    """Record in ``parts`` the results in an AlterClientQuotas response."""
    for entry in response.entries:
        entity = _entity(entry.entity)
        if entity is None:
            continue
        if entry.error_code:
            what = f"the quotas of {entity}" + words(entry.error_message)
            parts.failed(entity, from_code(entry.error_code, what, operation="AlterConfigs"))
        else:
            parts.done(entity, None)


def _entity(named: Sequence[Any]) -> QuotaEntity | None:
    """Return the entity that the broker names; ``None`` if there is no such entity."""
    names: dict[str, EntityName] = {
        each.entity_type: QuotaName.DEFAULT if each.entity_name is None else each.entity_name
        for each in named
    }
    known: dict[str, Any] = {_FIELDS[kind]: name for kind, name in names.items() if kind in _FIELDS}
    others = tuple(sorted((kind, name) for kind, name in names.items() if kind not in _FIELDS))
    try:
        return QuotaEntity(**known, others=others)
    except (TypeError, ConfigurationError):
        return None
