"""The texts of ``docs/settings.md`` and ``docs/settings-security.md``, from the declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trikafka.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    Setting,
    ShareConsumerConfig,
    settings_of,
)
from trikafka.config.describe import default, sentence, unit_and_limits
from trikafka.config.security import SecurityConfig

CLIENTS = {
    "Every client": ClientConfig,
    "Consumer": ConsumerConfig,
    "Producer": ProducerConfig,
    "Share consumer": ShareConsumerConfig,
    "Admin": AdminConfig,
}
_HEAD = ("setting", "default", "meaning")


def page(made: str) -> str:
    """Return the page of all settings but those of connections' security."""
    parts = [
        "# Settings",
        f"<!-- {made} -->",
        "Keywords of `open_consumer`, `open_producer`, `open_share_consumer` and `open_admin`. A wrong one raises "
        "`ConfigurationError` before any I/O. [settings-security.md](settings-security.md) has those of TLS "
        "and SASL. For annotations: `**settings: Unpack[ConsumerSettings]`.",
        "`from_properties` ([properties.md](properties.md)) takes Java's names: with dots instead of "
        "underscores, unless the table gives another. Times (`_ms`) are in milliseconds. Kafka's own limit of "
        "2**31 - 1 is not repeated.",
    ]
    for title, config in CLIENTS.items():
        common = settings_of(SecurityConfig if config is ClientConfig else ClientConfig)
        own = [one for name, one in settings_of(config).items() if name not in common]
        parts += [f"## {title}", "\n".join(_table(own)) if own else "Those of every client."]
    return "\n\n".join(parts) + "\n"


def security_page(made: str) -> str:
    """Return the page of the settings for TLS and SASL."""
    parts = [
        "# Settings: TLS and SASL",
        f"<!-- {made} -->",
        "Settings of every client, beside those of [settings.md](settings.md). [security.md](security.md) shows which "
        "belong together.",
        "\n".join(_table(settings_of(SecurityConfig).values())),
    ]
    return "\n\n".join(parts) + "\n"


def _table(settings: Iterable[Setting]) -> Iterator[str]:
    yield f"| {' | '.join(_HEAD)} |"
    yield "|---" * len(_HEAD) + "|"
    yield from map(_row, settings)


def _row(one: Setting) -> str:
    usual = ("milliseconds", "at most 2**31 - 1")
    limits = [part for part in unit_and_limits(one).split(", ") if part and part not in usual]
    java = one.java and one.java != one.name.replace("_", ".")
    rest = [f"`{one.annotation}`", *limits, *([f"Java: `{one.java}`"] if java else [])]
    cells = [f"`{one.name}`", f"`{default(one)}`", f"{sentence(one)}<br>{', '.join(rest)}"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
