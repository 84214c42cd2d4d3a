"""The access rules (ACLs) of a cluster: values, requests and responses."""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from typing import Any, Literal, TypeAlias, get_args

from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from ...config.text import PlainTexts, is_utf8
from ...errors import ConfigurationError, DamagedResponseError, TrikafkaError, from_code
from ..client.option_parsing import is_name
from .messages import collection_of, words
from .routing import Parts

_log = logging.getLogger("trikafka.admin")

AclResourceType: TypeAlias = Literal[
    "topic", "group", "cluster", "transactional_id", "delegation_token", "user"
]
AclOperation: TypeAlias = Literal[
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
    "create_tokens",
    "describe_tokens",
    "two_phase_commit",
]
AclPattern: TypeAlias = Literal["literal", "prefixed"]
AclPermission: TypeAlias = Literal["allow", "deny"]
#: Stands for a kind or an operation that a later release of Kafka has added.
Unknown: TypeAlias = Literal["unknown"]
_UNKNOWN: Unknown = "unknown"
#: The only name of a resource of the type "cluster".
CLUSTER_NAME = "kafka-cluster"
# Kafka's numbers of these names. In a filter, 1 stands for "any".
_ANY = 1
_RESOURCES = {name: number for number, name in enumerate(get_args(AclResourceType), 2)}
_OPERATIONS = {name: number for number, name in enumerate(get_args(AclOperation), 2)}
_PATTERNS = {"match": 2, "literal": 3, "prefixed": 4}
_PERMISSIONS = {"deny": 2, "allow": 3}
#: The fields of a rule that have one of a few values.
_KINDS: dict[str, Collection[str]] = {
    "operation": _OPERATIONS,
    "resource_type": _RESOURCES,
    "pattern": get_args(AclPattern),
    "permission": _PERMISSIONS,
}


@dataclass(frozen=True, slots=True, order=True)
class AclBinding(PlainTexts):
    """An access rule: a principal may, or may not, do an operation on a resource.

    Attributes:
        principal: The user, such as ``"User:alice"``; ``"User:*"`` stands for every user.
        operation: The operation, such as ``"read"``.
        resource_type: The kind of resource, such as ``"topic"``.
        resource_name: The name of the resource; ``"*"`` stands for all resources of the kind. The
            only name of the kind ``"cluster"`` is ``"kafka-cluster"``.
        pattern: ``"literal"``, or ``"prefixed"``: the rule holds for all resources whose names
            begin with ``resource_name``.
        permission: ``"allow"`` or ``"deny"``.
        host: The client's address, as brokers write it; ``"*"`` stands for every address. Brokers
            write ``"0:0:0:0:0:0:0:1"`` for ``"::1"``, compare texts, and look up no names. So a
            rule with ``"::1"`` never applies; ``create_acls`` logs a warning.

    A broker of a later release may describe rules with an operation, a kind, a pattern or a
    permission that this release does not know. Such a value is ``"unknown"``, and ``create_acls``
    refuses the rule.
    """

    principal: str
    operation: AclOperation | Unknown
    resource_type: AclResourceType | Unknown
    resource_name: str = CLUSTER_NAME
    pattern: AclPattern | Unknown = "literal"
    permission: AclPermission | Unknown = "allow"
    host: str = "*"

    def __post_init__(self) -> None:
        self._make_plain()
        check_principal("principal", self.principal)
        for name, allowed in _KINDS.items():
            if (value := getattr(self, name)) != _UNKNOWN:
                _check_one_of(name, value, allowed)
        _check_text("resource_name", self.resource_name)
        _check_text("host", self.host)
        if self.resource_type == _UNKNOWN:
            return
        if (self.resource_type == "cluster") is not (self.resource_name == CLUSTER_NAME):
            raise ConfigurationError(
                f"the resource_type 'cluster' has only the resource_name {CLUSTER_NAME!r}, and no "
                f"other type has it: got {self.resource_name!r} with {self.resource_type!r}"
            )

    def __str__(self) -> str:
        kind = self.resource_type.replace("_", " ")
        names = f"every {kind} that begins with" if self.pattern == "prefixed" else kind
        return (
            f"{self.permission} {self.principal} {self.operation} on {names} "
            f"{self.resource_name!r} from {self.host}"
        )


@dataclass(frozen=True, slots=True)
class AclFilter(PlainTexts):
    """A filter of access rules. ``None`` matches everything.

    Attributes:
        principal: The principal of the rules.
        operation: Their operation.
        resource_type: The kind of their resource.
        resource_name: The name in the rules; with the pattern ``"match"``, the name of a resource.
        pattern: ``"literal"``, ``"prefixed"`` or ``"match"``. The last one finds every rule that
            holds for the resource of that name: by the name itself, by a prefix, or by ``"*"``.
        permission: ``"allow"`` or ``"deny"``.
        host: The host in the rules.
    """

    principal: str | None = None
    operation: AclOperation | None = None
    resource_type: AclResourceType | None = None
    resource_name: str | None = None
    pattern: AclPattern | Literal["match"] | None = None
    permission: AclPermission | None = None
    host: str | None = None

    def __post_init__(self) -> None:
        self._make_plain()
        for name, allowed in {**_KINDS, "pattern": _PATTERNS}.items():
            if (value := getattr(self, name)) is not None:
                _check_one_of(name, value, allowed)
        if self.principal is not None:
            check_principal("principal", self.principal)
        for name in ("resource_name", "host"):
            if (value := getattr(self, name)) is not None:
                _check_text(name, value)

    def __str__(self) -> str:
        given = ", ".join(
            f"{name}={value!r}"
            for name in self.__dataclass_fields__
            if (value := getattr(self, name)) is not None
        )
        return f"the filter {given}" if given else "the filter of all rules"


def check_principal(what: str, value: object) -> None:
    """Raise :exc:`ConfigurationError` unless the value is a principal such as ``User:alice``."""
    kind, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (kind and colon and is_name(name) and is_utf8(kind)):
        raise ConfigurationError(f"{what} must be like 'User:alice', not {value!r}")


def _check_one_of(what: str, value: object, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{what} is one of {', '.join(allowed)}, not {value!r}")


def _check_text(what: str, value: object) -> None:
    if not is_name(value):
        raise ConfigurationError(f"{what} must be a text that is not empty, not {value!r}")


def checked_bindings(bindings: Iterable[AclBinding]) -> list[AclBinding]:
    """Return the rules without duplicates. Raises :exc:`ConfigurationError`."""
    # A rule that a broker described may hold "unknown", which has no number to send.
    found = collection_of(AclBinding, "bindings", bindings, bytes, Mapping)
    for one in found:
        for name, allowed in _KINDS.items():
            _check_one_of(name, getattr(one, name), allowed)
    return found


def warn_of_hosts(bindings: Iterable[AclBinding]) -> None:
    """Log a warning of each rule that never applies, because brokers write its host otherwise.

    The rule is not refused: brokers accept it, and a program that copies the rules of a cluster
    must be able to copy this one, too.
    """
    for one in bindings:
        if (address := _as_address(one.host)) != one.host:
            _log.warning(
                "the access rule %r never applies: brokers write the address %s as %s, and compare "
                "texts; create the rule with host=%r",
                str(one),
                one.host,
                address,
                address,
            )


def _as_address(host: str) -> str:
    try:
        return broker_address(host)
    except ValueError:
        return host


def broker_address(host: str) -> str:
    """Return an address as brokers write a client's. Raises :exc:`ValueError` for any other text.

    Java writes all eight groups of an IPv6 address, and the part of IPv4 in place of a mapped one.
    """
    address = ip_address(host)
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    groups = struct.unpack(">8H", address.packed)
    scope = "" if address.scope_id is None else f"%{address.scope_id}"
    return ":".join(f"{group:x}" for group in groups) + scope


def checked_filter(given: AclFilter | None) -> AclFilter:
    """Return the filter; ``None`` stands for all rules. Raises :exc:`ConfigurationError`."""
    if given is not None and not isinstance(given, AclFilter):
        raise ConfigurationError(f"describe_acls takes an AclFilter or None, not {given!r}")
    return given or AclFilter()


def describe_request(wanted: AclFilter) -> DescribeAclsRequest:
    """Return the request for the rules that a filter matches."""
    return DescribeAclsRequest(**_filter_fields(wanted))


def create_request(bindings: Sequence[AclBinding]) -> CreateAclsRequest:
    """Return the request that creates these rules."""
    return CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=_RESOURCES[one.resource_type],
                resource_name=one.resource_name,
                resource_pattern_type=_PATTERNS[one.pattern],
                principal=one.principal,
                host=one.host,
                operation=_OPERATIONS[one.operation],
                permission_type=_PERMISSIONS[one.permission],
            )
            for one in bindings
        ]
    )


def delete_request(filters: Sequence[AclFilter]) -> DeleteAclsRequest:
    """Return the request that deletes all rules that the filters match."""
    return DeleteAclsRequest(
        filters=[DeleteAclsRequest.DeleteAclsFilter(**_filter_fields(one)) for one in filters]
    )


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": _RESOURCES.get(wanted.resource_type or "", _ANY),
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": _PATTERNS.get(wanted.pattern or "", _ANY),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": _OPERATIONS.get(wanted.operation or "", _ANY),
        "permission_type": _PERMISSIONS.get(wanted.permission or "", _ANY),
    }


def read_described(response: Any) -> list[AclBinding]:
    """Return the rules in a DescribeAcls response, sorted. Raises the error of the response."""
    if response.error_code:
        raise _error(response, "the access rules", "Describe")
    return sorted(
        _binding(resource, acl) for resource in response.resources for acl in resource.acls
    )


def read_created(
    response: Any, asked: Sequence[AclBinding], parts: Parts[AclBinding, None]
) -> None:
    """Pass each result of a CreateAcls response to ``parts``.

    The results are in the order of the request.
    """
    _check_count("CreateAcls", response.results, asked)
    for one, result in zip(asked, response.results, strict=True):
        if result.error_code:
            parts.failed(one, _error(result, str(one), "Alter"))
        else:
            parts.done(one, None)


def read_deleted(
    response: Any, asked: Sequence[AclFilter], parts: Parts[AclFilter, tuple[AclBinding, ...]]
) -> None:
    """Pass each result of a DeleteAcls response to ``parts``.

    The results are in the order of the request. A filter fails if one of its rules could not be
    deleted.
    """
    _check_count("DeleteAcls", response.filter_results, asked)
    for one, result in zip(asked, response.filter_results, strict=True):
        refused = [acl for acl in result.matching_acls or () if acl.error_code]
        if result.error_code:
            parts.failed(one, _error(result, str(one), "Alter"))
        elif refused:
            gone = len(result.matching_acls) - len(refused)
            what = str(_binding(refused[0], refused[0])) + (
                f" (of {len(result.matching_acls)} rules that {one} matches, {gone} were deleted)"
                if gone
                else ""
            )
            parts.failed(one, _error(refused[0], what, "Alter"))
        else:
            parts.done(one, tuple(sorted(_binding(acl, acl) for acl in result.matching_acls)))


def _check_count(name: str, results: Sequence[Any], asked: Sequence[Any]) -> None:
    if len(results) != len(asked):
        raise DamagedResponseError(
            f"the response to {name} has {len(results)} results, but {len(asked)} were requested"
        )


def _error(result: Any, what: str, operation: str) -> TrikafkaError:
    return from_code(result.error_code, what + words(result.error_message), operation=operation)


def _binding(resource: Any, acl: Any) -> AclBinding:
    """Return a rule as the broker describes it.

    Kinds and operations that a later release of Kafka has added become "unknown".
    """
    try:
        return AclBinding(
            acl.principal,
            _name_of(acl.operation, _OPERATIONS),  # type: ignore[arg-type]
            _name_of(resource.resource_type, _RESOURCES),  # type: ignore[arg-type]
            resource.resource_name,
            _name_of(resource.pattern_type, _PATTERNS),  # type: ignore[arg-type]
            _name_of(acl.permission_type, _PERMISSIONS),  # type: ignore[arg-type]
            acl.host,
        )
    except ConfigurationError as error:
        raise DamagedResponseError(f"the broker lists an invalid rule: {error}") from error


def _name_of(number: int, numbers: Mapping[str, int]) -> str:
    return next((name for name, own in numbers.items() if own == number), _UNKNOWN)
