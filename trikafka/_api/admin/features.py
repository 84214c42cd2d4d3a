"""The feature levels of a cluster (KIP-584, KIP-778): values, requests and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from kafka.protocol.admin import UpdateFeaturesRequest
from kafka.protocol.metadata import ApiVersionsRequest

from ..._version import VERSION
from ...config.text import plain_text
from ...config.whole import is_whole, whole
from ...errors import ConfigurationError, from_code
from ..client.option_parsing import is_name
from .messages import named
from .routing import Parts

Downgrade: TypeAlias = Literal["safe", "unsafe"]
#: Kafka's numbers; ``None`` is an upgrade.
_KINDS: dict[Downgrade | None, int] = {None: 1, "safe": 2, "unsafe": 3}
#: The first versions with features at all (KIP-584), and with kinds of updates (KIP-778).
_SINCE_FEATURES, _SINCE_KINDS = 3, 1
#: The version of UpdateFeatures whose response is about all features together.
_SINCE_ONE_RESULT = 2


@dataclass(frozen=True, slots=True)
class FeatureLevels:
    """The level of a feature, such as ``metadata.version`` or ``share.version``.

    Attributes:
        name: Its name.
        level: The level of the cluster; 0 if the feature is off.
        lowest: The lowest level that the broker that was asked supports; ``None`` if it does not
            know the feature.
        highest: The highest.
    """

    name: str
    level: int
    lowest: int | None
    highest: int | None


@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """The features of a cluster.

    Attributes:
        epoch: Grows with each change; ``None`` if the broker does not know it.
        features: Every feature by its name, in their order.
    """

    epoch: int | None
    features: Mapping[str, FeatureLevels]


def describe_request() -> ApiVersionsRequest:
    """Return an ApiVersions request, whose response names the features."""
    return ApiVersionsRequest(
        min_version=_SINCE_FEATURES,
        client_software_name="trikafka",
        client_software_version=VERSION,
    )


def read_described(response: Any) -> ClusterFeatures:
    """Return the features in an ApiVersions response. Raises its error."""
    if response.error_code:
        raise from_code(response.error_code, "the features of the cluster")
    supported = {each.name: each for each in response.supported_features or ()}
    levels = {each.name: each.max_version_level for each in response.finalized_features or ()}
    features = {}
    for name in sorted({*supported, *levels}):
        own = supported.get(name)
        features[name] = FeatureLevels(
            name,
            levels.get(name, 0),
            None if own is None else own.min_version,
            None if own is None else own.max_version,
        )
    epoch = response.finalized_features_epoch
    return ClusterFeatures(epoch if epoch is not None and epoch >= 0 else None, features)


def checked_levels(levels: Mapping[str, int], downgrade: Downgrade | None) -> dict[str, int]:
    """Return the checked levels. Raises :exc:`ConfigurationError`."""
    if not isinstance(levels, Mapping):
        raise ConfigurationError(f"levels must be a mapping of features to levels, not {levels!r}")
    if not isinstance(downgrade, str | None) or downgrade not in _KINDS:
        raise ConfigurationError(
            f"downgrade is 'safe', 'unsafe' or None for an upgrade, not {downgrade!r}"
        )
    least = 1 if downgrade is None else 0
    for name, given in levels.items():
        if not is_name(name):
            raise ConfigurationError(f"the name of a feature is a text, not {name!r}")
        level = whole(given)
        if not is_whole(level, least, (1 << 15) - 1):
            off = "; downgrade= allows 0, which turns it off" if level == 0 and least else ""
            raise ConfigurationError(
                f"the level of {name} must be a whole number from {least}, not {level!r}{off}"
            )
    return {plain_text(name): whole(level) for name, level in levels.items()}


def update_request(
    levels: Mapping[str, int],
    names: Sequence[str],
    downgrade: Downgrade | None,
    timeout_ms: int,
    *,
    validate_only: bool,
) -> UpdateFeaturesRequest:
    """Return an UpdateFeatures request about these features."""
    return UpdateFeaturesRequest(
        min_version=_SINCE_KINDS,
        timeout_ms=timeout_ms,
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=levels[name], upgrade_type=_KINDS[downgrade]
            )
            for name in names
        ],
        validate_only=validate_only,
    )


def read_updated(response: Any, asked: Sequence[str], parts: Parts[str, None]) -> None:
    """Record in ``parts`` the results in an UpdateFeatures response. Raises its error.

    From version 2 on a response has no results: all is done, or nothing.
    """
    if response.error_code:
        what = named("feature", ", ".join(asked), response.error_message)
        raise from_code(response.error_code, what, operation="Alter")
    if response.version >= _SINCE_ONE_RESULT:
        for name in asked:
            parts.done(name, None)
        return
    for result in response.results:
        if result.error_code:
            what = named("feature", result.feature, result.error_message)
            parts.failed(result.feature, from_code(result.error_code, what, operation="Alter"))
        else:
            parts.done(result.feature, None)
