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
        "`ConfigurationError` before any I/O. `from_properties` takes Java's names. For "
        "annotations: `**settings: Unpack[ConsumerSettings]`.",
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
    limits = unit_and_limits(one)
    rest = [
        f"`{one.annotation}`",
        *([limits] if limits else []),
        *([f"Java: `{one.java}`"] if one.java else []),
    ]
    cells = [f"`{one.name}`", f"`{default(one)}`", f"{sentence(one)}<br>{'; '.join(rest)}"]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
