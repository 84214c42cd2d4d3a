"""The options of a Spark job: names in any case, values by kind. Pure.

An error names the option.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trikafka import ConfigurationError, TopicPartition
from trikafka.config.secrets import secret
from trikafka.config.whole import is_whole

#: The property by which Spark marks the options of a ``CREATE TABLE``.
_OF_TABLE = "provider"
_NO_TABLES = (
    "Spark does not pass the options of a table (CREATE TABLE) to a Python source: use CREATE "
    "TEMPORARY VIEW ... USING trikafka OPTIONS (...) or a frame"
)
_MOST = 2**63 - 1
_UNITS = {
    "us": 1e-3,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class QueryOptions:
    """The options of one query.

    Spark passes names in lower case; errors show them as they are documented.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """Return the option as the job has given it."""
        return self._values.get(name.lower())

    @property
    def kafka(self) -> dict[str, str]:
        """The options ``kafka.*`` without that prefix, with their values hidden."""
        found = {
            name[len("kafka.") :]: value
            for name, value in self._values.items()
            if name.startswith("kafka.")
        }
        return {name: secret(value) for name, value in found.items()}

    def refuse_unknown(self, known: Iterable[str], advice: Mapping[str, str]) -> None:
        """Raise :exc:`ConfigurationError` for a name that is not known and not ``kafka.*``.

        Options of a table are refused, too.

        Args:
            known: The names that the query may have.
            advice: What to do about names that a query of another kind has.
        """
        # Such a table could be made, but each query of it would have no options.
        if _OF_TABLE in self:
            raise ConfigurationError(_NO_TABLES)
        if not self._values:
            raise ConfigurationError(f"the query has no options. {_NO_TABLES}")
        names = {name.lower(): name for name in (*known, "kafka.bootstrap.servers")}
        foreign = {name.lower(): (name, text) for name, text in advice.items()}
        for name in self._values:
            if name in names or name.startswith("kafka."):
                continue
            if name in foreign:
                written, text = foreign[name]
                raise ConfigurationError(f"the option {written!r} is {text}")
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {names[near[0]]!r}?" if near else ""
            raise ConfigurationError(f"unknown option {name!r} of the data source 'trikafka'{hint}")

    def whole(self, name: str, least: int = 1, unit: str = "") -> int | None:
        """Return a whole number; ``None`` without the option. An error names the ``unit``."""
        text = self.text(name)
        if text is None:
            return None
        stripped = text.strip()
        if (
            not (stripped.isascii() and stripped.isdigit())
            or len(stripped) > 100
            or not least <= int(stripped) <= _MOST
        ):
            raise ConfigurationError(
                f"{name} must be a whole number of at least {least}, below 2^63"
                f"{unit and f' ({unit})'}, not {text[:100]!r}"
            )
        return int(stripped)

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        if name not in self:
            return default
        text = (self.text(name) or "").strip().lower()
        if text not in ("true", "false"):
            raise ConfigurationError(f"{name} must be true or false, not {text!r}")
        return text == "true"

    def milliseconds(self, name: str, default: float) -> float:
        """Return a time (ms) in Spark's form: ``15m``, ``10s``, ``200ms``, or a number of ms."""
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"([0-9]{1,18})\s*(us|ms|s|min|m|h|d)?", text.strip().lower())
        if match is None:
            raise ConfigurationError(
                f"{name} must be a time such as 15m, 10s or 200ms, not {text!r}"
            )
        return float(int(match[1]) * _UNITS[match[2] or "ms"])

    def by_partition(self, name: str, least: int) -> dict[TopicPartition, int]:
        """Return offsets or times from JSON, ``{"topic": {"0": 23}}``; at least one."""
        text = self.text(name) or ""
        example = (
            '{"topic": {"0": 23, "1": -2}}' if least < 0 else '{"topic": {"0": 1700000000000}}'
        )
        found: dict[TopicPartition, int] = {}
        with _of_the_form(example, name, text):
            for topic, partitions in _from_json(text).items():
                for partition, number in partitions.items():
                    if not (partition.isascii() and partition.isdigit()):
                        raise ValueError(f"{partition!r} is not a partition number")
                    tp = TopicPartition(topic, int(partition))
                    if tp in found:
                        raise ValueError(f"{tp} occurs twice")
                    found[tp] = number
        words = " (-2 is the beginning, -1 the end)" if least < 0 else " (milliseconds since 1970)"
        for tp, number in found.items():
            if not is_whole(number, least, _MOST):
                raise ConfigurationError(
                    f"{name} has {number!r} for {tp}, which is not a whole number of at least "
                    f"{least}{words}"
                )
        if not found:
            raise ConfigurationError(f"{name} names no partition: {text}")
        return found


def lists_of_partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Read ``{"topic": [0, 1]}``. Raises :exc:`ConfigurationError`."""
    found = []
    with _of_the_form('{"topic": [0, 1]}', name, text):
        for topic, numbers in _from_json(text).items():
            for number in numbers:
                if not is_whole(number):
                    raise ValueError(f"{number!r} is not a partition number")
                found.append(TopicPartition(topic, number))
    if not found:
        raise ConfigurationError(f"{name} names no partition: {text}")
    return tuple(dict.fromkeys(found))


@contextmanager
def _of_the_form(example: str, name: str, text: str) -> Iterator[None]:
    """Raise :exc:`ConfigurationError` with the example for an error of reading ``text``."""
    try:
        yield
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        # Only a ValueError says in other words than Python's what is wrong.
        why = f": {error}" if isinstance(error, ValueError) else ""
        raise ConfigurationError(
            f"{name} must be JSON like {example}, not {text!r}{why}"
        ) from error


def _from_json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name occurs twice")
        return found

    return json.loads(text, object_pairs_hook=once)
