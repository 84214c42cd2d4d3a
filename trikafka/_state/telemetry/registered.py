"""The application's own metrics, which are pushed to the brokers with the client's (KIP-1076)."""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Callable, Mapping
from typing import Literal, get_args

from ...config.whole import is_number, plain_number
from ...errors import ConfigurationError
from ...interfaces.metrics import AttributeValue

_log = logging.getLogger("trikafka.telemetry")
MetricKind = Literal["gauge", "total"]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,254}\Z")
#: Names of Kafka's own metrics.
_RESERVED = "org.apache.kafka."


class RegisteredMetric:
    """A metric of the application, whose value a function of the application returns.

    Args:
        name: The name of the metric.
        read: Returns the current value.
        kind: ``"gauge"``, or ``"total"`` for a value that only grows.
        attributes: The attributes that are pushed with the value.

    Raises:
        ConfigurationError: An argument is not valid.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], int | float],
        kind: MetricKind,
        attributes: Mapping[str, AttributeValue] | None,
    ) -> None:
        check_name(name)
        if not callable(read) or inspect.iscoroutinefunction(read):
            raise ConfigurationError(
                f"metric {name!r}: read must be a plain function without arguments, not {read!r}"
            )
        if kind not in get_args(MetricKind):
            raise ConfigurationError(f"metric {name!r}: kind is 'gauge' or 'total', not {kind!r}")
        self.name = name
        self.total = kind == "total"
        self.attributes = _checked_attributes(name, attributes)
        self._read = read
        self._failed = False
        # The values of a total at the last collection, and at the last one that a broker confirmed.
        self._collected: int | float = 0
        self._confirmed: int | float = 0

    def read(self) -> int | float | None:
        """Return the current value; ``None`` if the function fails, which is logged once.

        An infinite value, or one that is not a number, is a failure, too, because a receiver cannot
        add it to others.
        """
        try:
            value = plain_number(self._read())
            if not is_number(value):
                raise TypeError(f"{value!r} is not a number")
            if not _is_finite(value):
                raise ValueError("its value is infinite or not a number (NaN)")
        # An error in a metric of the application must not end the client.
        except Exception as error:
            if not self._failed:
                self._failed = True
                _log.warning(
                    "metric %r is left out: its function failed: %r",
                    self.name,
                    error,
                    exc_info=error,
                )
            # The collection before may be unconfirmed. This one, which lacks the metric, must not
            # confirm it.
            self._collected = self._confirmed
            return None
        return value

    def added(self, value: int | float) -> int | float:
        """Return the growth of a total since the last confirmed collection.

        A total that is lower than before counts as started again from 0.
        """
        self._collected = value
        return value - self._confirmed if value >= self._confirmed else value

    def confirm(self) -> None:
        """Record that the broker has the last collection."""
        self._confirmed = self._collected


def check_name(name: object) -> None:
    """Raise :exc:`ConfigurationError` unless ``name`` may be the name of a metric."""
    if not isinstance(name, str) or _NAME.match(name) is None:
        raise ConfigurationError(
            "the name of a metric begins with a letter and has at most 255 letters, digits, dots, "
            f"hyphens and underscores, not {name!r}"
        )
    if name.startswith(_RESERVED):
        raise ConfigurationError(
            f"metric {name!r}: names that begin with {_RESERVED!r} are Kafka's own; begin with the "
            "name of the application"
        )


def _is_finite(value: int | float) -> bool:
    """Return whether the value fits into a finite double."""
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest double
        return False


def _checked_attributes(
    name: str, attributes: Mapping[str, AttributeValue] | None
) -> dict[str, AttributeValue]:
    if attributes is None:
        return {}
    found: dict[str, AttributeValue] | None = None
    if isinstance(attributes, Mapping):
        found = {key: plain_number(value) for key, value in attributes.items()}
    if found is None or not all(
        isinstance(key, str)
        and (isinstance(value, str) or (isinstance(value, int | float) and _is_finite(value)))
        for key, value in found.items()
    ):
        raise ConfigurationError(
            f"metric {name!r}: attributes map texts to texts, finite numbers or booleans, not "
            f"{attributes!r}"
        )
    return found
