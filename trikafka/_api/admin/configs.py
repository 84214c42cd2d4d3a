"""The settings of topics, brokers, groups and metrics subscriptions: values and calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

from ..._net.deadlines import RunningCall
from ...config.text import PlainTexts, plain_text
from ...errors import (
    ConfigurationError,
    DamagedResponseError,
    ErrorCode,
    TrikafkaError,
    UnsupportedVersionError,
    from_code,
    topic_error,
)
from .messages import collection_of, words
from .routing import Parts, Place, Routing
from .types import SettingValue, checked_value, config_text

ResourceType: TypeAlias = Literal["topic", "broker", "broker_logger", "client_metrics", "group"]
Operation: TypeAlias = Literal["set", "delete", "append", "subtract"]
#: Kafka's numbers.
_TYPES: dict[str, int] = {
    "topic": 2,
    "broker": 4,
    "broker_logger": 8,
    "client_metrics": 16,
    "group": 32,
}
_TYPE_NAMES: dict[int, Any] = {number: name for name, number in _TYPES.items()}
_UNKNOWN = "unknown"
#: The kinds that older brokers do not know, with the release that does.
_SINCE = {"client_metrics": "3.7", "group": "4.0"}
#: How an older broker answers about them, both in Kafka's own words: to a change and to a look-up.
_NOT_KNOWN = ("Unknown resource type", "incompatible broker")
_OPERATIONS: dict[Operation, int] = {"set": 0, "delete": 1, "append": 2, "subtract": 3}
_SOURCES = {
    1: "topic",
    2: "broker",
    3: "brokers",
    4: "file",
    5: "default",
    6: "broker_logger",
    7: "client_metrics",
    8: "group",
}
_VALUE_TYPES = {
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}


@dataclass(frozen=True, slots=True, order=True)
class ConfigResource(PlainTexts):
    """A thing that has settings.

    Attributes:
        type: ``"topic"``, ``"broker"``, ``"broker_logger"``, ``"client_metrics"`` or ``"group"``.
        name: The topic, the broker's number as text, the subscription or the group. An empty name
            of a broker stands for the settings that all brokers share.

    In a list by brokers of a later release the type may be ``"unknown"``.
    """

    type: ResourceType | Literal["unknown"]
    name: str

    def __post_init__(self) -> None:
        self._make_plain()
        if self.type not in (*get_args(ResourceType), _UNKNOWN):
            raise ConfigurationError(
                f"the type of a ConfigResource is one of {', '.join(get_args(ResourceType))}, not "
                f"{self.type!r}"
            )
        if not isinstance(self.name, str) or (not self.name and self.type != "broker"):
            raise ConfigurationError(
                f"the name of a {self.type} must be a text that is not empty, not {self.name!r}"
            )
        if self.type in ("broker", "broker_logger") and self.name and not self.name.isdecimal():
            raise ConfigurationError(f"a broker is named by its number, not {self.name!r}")

    def __str__(self) -> str:
        return f"{self.type.replace('_', ' ')} {self.name!r}" if self.name else "all brokers"

    @property
    def node_id(self) -> int | None:
        """The broker that alone knows these settings; ``None``: any broker does."""
        own = self.type in ("broker", "broker_logger") and self.name
        return int(self.name) if own else None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a resource.

    Attributes:
        name: Its name.
        value: Its value as text; ``None`` if it has none, or is secret.
        source: Where the value comes from: ``"topic"``, ``"broker"`` (that broker's dynamic
            setting), ``"brokers"`` (that of all brokers), ``"file"`` (the broker's properties),
            ``"group"``, ``"client_metrics"``, ``"broker_logger"`` or ``"default"``.
        read_only: True if it cannot be changed while the broker runs.
        sensitive: True if the value is secret.
        type: The kind of value: ``"int"``, ``"list"`` ...; ``None`` if the broker does not say.
        documentation: The broker's text about the setting; ``None`` unless it was asked for.
        synonyms: All values that apply, as ``(name, value, source)``; the first one counts.
    """

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    type: str | None = None
    documentation: str | None = None
    synonyms: tuple[tuple[str, str | None, str], ...] = ()

    @property
    def is_default(self) -> bool:
        """True if nothing sets it: the value is Kafka's own default."""
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one setting.

    Attributes:
        operation: ``"set"``; ``"delete"``: back to what applies without it; ``"append"`` and
            ``"subtract"``: items of a list.
        value: The new value, or the items separated by commas; ``None`` for ``"delete"``. It may be
            a password, so ``repr`` does not show it.
    """

    operation: Operation
    value: str | int | float | bool | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.operation not in get_args(Operation):
            raise ConfigurationError(
                f"the operation of a ConfigChange is one of {', '.join(get_args(Operation))}, not "
                f"{self.operation!r}"
            )
        if (self.value is None) is not (self.operation == "delete"):
            needs = "takes no value" if self.operation == "delete" else "needs a value"
            raise ConfigurationError(f"the operation {self.operation!r} {needs}")
        if self.value is not None:
            what = f"the value to {self.operation}"
            object.__setattr__(self, "value", checked_value(what, self.value))


#: A value to set, ``None`` to delete the setting, or a change by name.
ConfigValue: TypeAlias = SettingValue | ConfigChange | None
Changes: TypeAlias = dict[ConfigResource, dict[str, ConfigChange]]


def checked_resources(resources: Iterable[ConfigResource]) -> list[ConfigResource]:
    """Return the resources, each once. Raises :exc:`ConfigurationError`."""
    found = collection_of(ConfigResource, "resources", resources)
    for one in found:
        if one.type == _UNKNOWN:
            raise ConfigurationError(f"this release does not know what {one.name!r} is")
    return found


def checked_changes(changes: Mapping[ConfigResource, Mapping[str, ConfigValue]]) -> Changes:
    """Return the changes in full. Raises :exc:`ConfigurationError`."""
    if not isinstance(changes, Mapping):
        raise ConfigurationError(
            "changes must be a mapping of ConfigResource to a mapping of names and values, not a "
            f"{type(changes).__name__}"  # a value may be a password
        )
    checked_resources(changes)
    found: Changes = {}
    for resource, entries in changes.items():
        if not isinstance(entries, Mapping) or not entries:
            raise ConfigurationError(
                f"the changes of {resource} must be a mapping of names and values that is not "
                f"empty, not {entries if entries == {} else type(entries).__name__}"
            )
        found[resource] = {
            plain_text(name): _change(name, value) for name, value in entries.items()
        }
    return found


def _change(name: object, value: ConfigValue) -> ConfigChange:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"the name of a setting is a text, not {name!r}")
    if isinstance(value, ConfigChange):
        return value
    if value is None:
        return ConfigChange("delete")
    return ConfigChange("set", checked_value(f"the value of {name}", value))


def text_of(value: object) -> str | None:
    """Return a value in the brokers' notation; ``None`` stays ``None``."""
    return None if value is None else config_text(value)


def describe_request(
    resources: Sequence[ConfigResource], *, documentation: bool
) -> DescribeConfigsRequest:
    """Return a DescribeConfigs request."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            resource(
                resource_type=_TYPES[one.type], resource_name=one.name, configuration_keys=None
            )
            for one in resources
        ],
        include_synonyms=True,
        include_documentation=documentation,
    )


def alter_request(changes: Changes, *, validate_only: bool) -> IncrementalAlterConfigsRequest:
    """Return an IncrementalAlterConfigs request."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    return IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=_TYPES[one.type],
                resource_name=one.name,
                configs=[
                    resource.AlterableConfig(
                        name=name,
                        config_operation=_OPERATIONS[change.operation],
                        value=text_of(change.value),
                    )
                    for name, change in entries.items()
                ],
            )
            for one, entries in changes.items()
        ],
        validate_only=validate_only,
    )


def checked_types(types: Iterable[ResourceType] | None) -> list[ResourceType] | None:
    """Return the checked types of resources, each once. Raises :exc:`ConfigurationError`."""
    if types is None:
        return None
    if isinstance(types, str) or not isinstance(types, Iterable):
        raise ConfigurationError(f"types must be a collection of types of resources, not {types!r}")
    found = list(types)
    for one in found:
        if not isinstance(one, str) or one not in _TYPES:
            raise ConfigurationError(
                f"the type of a ConfigResource is one of {', '.join(_TYPES)}, not {one!r}"
            )
    return list(dict.fromkeys(found))


def list_request(types: Sequence[ResourceType] | None) -> ListConfigResourcesRequest:
    """Return a ListConfigResources request; ``None`` stands for all types."""
    return ListConfigResourcesRequest(
        # Version 0 lists metrics subscriptions only.
        min_version=0 if types == ["client_metrics"] else 1,
        resource_types=[_TYPES[one] for one in types or ()],
    )


def read_listed(response: Any) -> list[ConfigResource]:
    """Return the resources in a ListConfigResources response. Raises its error."""
    if response.error_code:
        raise from_code(
            response.error_code, "the resources with settings", operation="DescribeConfigs"
        )
    found: dict[ConfigResource, None] = {}
    for one in response.config_resources:
        number = _TYPES["client_metrics"] if one.resource_type is None else one.resource_type
        found[_resource(number, one.resource_name)] = None
    return sorted(found)


def _resource(number: int, name: str) -> ConfigResource:
    try:
        return ConfigResource(_TYPE_NAMES.get(number, _UNKNOWN), name)
    except ConfigurationError as error:
        raise DamagedResponseError(f"the broker names an invalid resource: {error}") from error


def resource_of(result: Any) -> ConfigResource:
    """Return the resource that a part of a response is about."""
    return _resource(result.resource_type, result.resource_name)


def error_of(result: Any, operation: str) -> TrikafkaError | None:
    """Return the error in a part of a response; ``None`` if there is none."""
    if not result.error_code:
        return None
    resource = resource_of(result)
    if resource.type == "topic" and result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return topic_error(result.error_code, resource.name, make=False)
    message = result.error_message or ""
    if (
        result.error_code == ErrorCode.INVALID_REQUEST
        and resource.type in _SINCE
        and any(text in message for text in _NOT_KNOWN)
    ):
        return UnsupportedVersionError(
            f"the broker does not know settings of {resource}: they need Kafka "
            f"{_SINCE[resource.type]} or newer"
        )
    what = f"{resource}{words(message)}"
    return from_code(result.error_code, what, operation=operation)


def entries_of(result: Any) -> dict[str, ConfigEntry]:
    """Return the settings in a part of a DescribeConfigs response."""
    return {
        entry.name: ConfigEntry(
            entry.name,
            None if entry.is_sensitive else entry.value,
            _SOURCES.get(entry.config_source, "unknown"),
            entry.read_only,
            entry.is_sensitive,
            _VALUE_TYPES.get(getattr(entry, "config_type", 0)),
            getattr(entry, "documentation", None),
            tuple(
                (
                    other.name,
                    None if entry.is_sensitive else other.value,
                    _SOURCES.get(other.source, "unknown"),
                )
                for other in entry.synonyms or ()
            ),
        )
        for entry in result.configs
    }


# Only a broker itself knows its own settings and log levels, so a request about them must be sent
# to this broker. All other settings are in the cluster's metadata: any broker returns them, and
# forwards a change to the controller. One request to a broker has all of its resources.
#
# Repeating a change does no harm. "set" and "delete" name the outcome, a broker does not append an
# item that is there already, and it does not mind if an item to subtract is missing. So a request
# that has failed for a passing reason is simply sent again.
def _by_place(resources: Iterable[ConfigResource]) -> dict[Place, list[ConfigResource]]:
    places: dict[Place, list[ConfigResource]] = defaultdict(list)
    for one in resources:
        places["any" if one.node_id is None else one.node_id].append(one)
    return places


async def describe(
    routing: Routing,
    call: RunningCall,
    parts: Parts[ConfigResource, dict[str, ConfigEntry]],
    *,
    documentation: bool,
) -> None:
    """Read the settings of the resources that are left."""

    def read(response: Any, resources: list[ConfigResource]) -> None:
        for result in response.results:
            if (error := error_of(result, "DescribeConfigs")) is not None:
                parts.failed(resource_of(result), error)
            else:
                parts.done(resource_of(result), entries_of(result))

    await routing.each_broker(
        call,
        _by_place(parts.left),
        parts,
        partial(describe_request, documentation=documentation),
        read,
    )
    parts.check(parts.left, call.name)


async def alter(
    routing: Routing,
    call: RunningCall,
    parts: Parts[ConfigResource, None],
    changes: Changes,
    *,
    validate_only: bool,
) -> None:
    """Make the changes that are left."""

    def build(resources: list[ConfigResource]) -> Any:
        return alter_request({one: changes[one] for one in resources}, validate_only=validate_only)

    def read(response: Any, resources: list[ConfigResource]) -> None:
        for result in response.responses:
            if (error := error_of(result, "AlterConfigs")) is not None:
                parts.failed(resource_of(result), error)
            else:
                parts.done(resource_of(result), None)

    await routing.each_broker(call, _by_place(parts.left), parts, build, read)
    parts.check(parts.left, call.name)
