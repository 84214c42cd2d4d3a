"""The texts of ``docs/settings.md`` and ``docs/settings-security.md``, from the declarations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
#: Limits that the page does not repeat.
_USUAL = (
    "milliseconds",
    "bytes",
    "at least 0",
    "at least 1",
    "at most 2**31 - 1",
    "at most 2**63 - 1",
    "at most 32767 bytes",
)


def page(made: str) -> str:
    """Return the page of all settings but those of connections' security."""
    parts = [
        "# Settings",
        f"<!-- {made} -->",
        "Keywords of `open_consumer`, `open_producer`, `open_share_consumer` and `open_admin`. A wrong one raises "
        "`ConfigurationError` before any I/O. [TLS and SASL](settings-security.md) have a page of their own. "
        "For annotations: `**settings: Unpack[ConsumerSettings]`.",
        "In parentheses are the default, and the type and limits where they are not obvious. Times (`_ms`) are in "
        "milliseconds, sizes in bytes. Java's names have dots instead of underscores, unless another is given.",
    ]
    for title, config in CLIENTS.items():
        common = settings_of(SecurityConfig if config is ClientConfig else ClientConfig)
        own = [one for name, one in settings_of(config).items() if name not in common]
        if config is ShareConsumerConfig:  # it repeats no item of the consumer's list
            others = settings_of(ConsumerConfig)
            same = [
                one.name
                for one in own
                if one.name in others and _row(one) == _row(others[one.name])
            ]
            own = [one for one in own if one.name not in same]
            parts += [f"## {title}", f"As of a consumer: {_list(same)}."]
            parts += [_text(own)]
        else:
            parts += [f"## {title}", _text(own)]
    return "\n\n".join(parts) + "\n"


def security_page(made: str) -> str:
    """Return the page of the settings for TLS and SASL."""
    parts = [
        "# Settings: TLS and SASL",
        f"<!-- {made} -->",
        "[Settings](settings.md) of every client; [security](security.md) shows which belong together. "
        "In Java's names `sasl_oauth_` is `sasl.oauthbearer.`.",
        _text(settings_of(SecurityConfig).values()),
    ]
    return "\n\n".join(parts) + "\n"


def _text(settings: Iterable[Setting]) -> str:
    return "\n".join(map(_row, settings))


def _row(one: Setting) -> str:
    """Return an item of a list: a table's last column would be too narrow for the meanings."""
    limits = [part for part in unit_and_limits(one).split(", ") if part and part not in _USUAL]
    shown = isinstance(one.default, bool | int | float) and one.choices is None  # by the default
    named = one.choices is not None and all(repr(each) in one.doc for each in one.choices)
    # The text describes the function, so its type is left out.
    function = "Callable" in _type(one) and "Literal" not in _type(one)
    plain = _type(one) in ("str", "str | Sequence[str]", "int") or named or function
    usual = (one.name.replace("_", "."), one.name.replace("sasl_oauth_", "sasl.oauthbearer."))
    java = one.java and one.java not in (usual[0], usual[1].replace("_", "."))
    first = [
        f"`{default(one)}`",
        *([] if shown or plain else [f"`{_type(one)}`"]),
        *limits,
        *([f"Java: `{one.java}`"] if java else []),
    ]
    return f"* `{one.name}` ({', '.join(first)}): {sentence(one)}"


def _type(one: Setting) -> str:
    """Return the annotation; ``None`` is left out where the default shows it."""
    return one.annotation.removesuffix(" | None") if one.default is None else one.annotation


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:-1]) + f" and `{names[-1]}`"
