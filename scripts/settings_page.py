"""The text of ``docs/settings.md``, from the declarations of the settings."""

from __future__ import annotations

from collections.abc import Iterator

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

CLIENTS = {
    "Every client": ClientConfig,
    "Consumer": ConsumerConfig,
    "Producer": ProducerConfig,
    "Share consumer": ShareConsumerConfig,
    "Admin": AdminConfig,
}
_HEAD = ("setting", "default", "meaning")


def page(made: str) -> str:
    """Return the whole page."""
    parts = [
        "# Settings",
        f"<!-- {made} -->",
        "Keywords of `open_consumer`, `open_producer`, `open_share_consumer` and `open_admin`. A wrong one raises "
        "`ConfigurationError` before any I/O. For annotations: `**settings: Unpack[ConsumerSettings]`.",
        "`from_properties` ([properties.md](properties.md)) takes Java's names: with dots instead "
        "of underscores, unless the table gives another. Times (`_ms`) are in milliseconds. "
        "Kafka's own limit of 2**31 - 1 is not repeated.",
        *_settings(),
    ]
    return "\n\n".join(parts) + "\n"


def _settings() -> Iterator[str]:
    for title, config in CLIENTS.items():
        common = {} if config is ClientConfig else settings_of(ClientConfig)
        own = [one for name, one in settings_of(config).items() if name not in common]
        yield f"## {title}"
        if own:
            rows = [f"| {' | '.join(_HEAD)} |", "|---" * len(_HEAD) + "|", *map(_row, own)]
            yield "\n".join(rows)
        else:
            yield "Those of every client."


def _row(one: Setting) -> str:
    usual = ("milliseconds", "at most 2**31 - 1")
    limits = [part for part in unit_and_limits(one).split(", ") if part and part not in usual]
    java = one.java and one.java != one.name.replace("_", ".")
    rest = [f"`{one.annotation}`", *limits, *([f"Java: `{one.java}`"] if java else [])]
    cells = [f"`{one.name}`", f"`{default(one)}`", f"{sentence(one)}<br>{', '.join(rest)}"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
