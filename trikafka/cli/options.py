"""The options that every command has, and how they become settings of a client."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

ENVIRONMENT = "TRIKAFKA_BOOTSTRAP_SERVERS"
DEFAULT_SERVERS = "localhost:9092"
COMMON_HELP = (
    "-b, -X, -F and --debug may stand before or after the command. "
    f"Without -b the brokers are those of {ENVIRONMENT}, or else {DEFAULT_SERVERS}."
)
_SETTING_HELP = "A setting of the client by Java's name or ours, such as fetch.min.bytes=1000; repeatable."
#: Settings that are Python objects.
_NOT_TEXT = ("dial", "plugins")


@dataclass(frozen=True, slots=True)
class Common:
    """What was given for every command."""

    bootstrap_servers: str | None = None
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # passwords, too
    debug: bool = False
    from_file: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def settings(self, client: type, **more: Any) -> dict[str, Any]:
        """Settings of a client: of a file those that ``client``, its class of settings, has, for others may share it; then those of
        ``-X``, then ``more``. Raises :exc:`~trikafka.errors.ConfigurationError`.
        """
        from ..config import settings_of

        protocol = tuple(pair for pair in self.properties if pair[0].replace("_", ".") == "security.protocol")  # says what is used
        shared = {name: value for name, value in _read(self.from_file + protocol).items() if name in settings_of(client)}
        found = {**shared, **_read(self.properties)}
        if self.bootstrap_servers is not None:
            found["bootstrap_servers"] = self.bootstrap_servers
        elif "bootstrap_servers" not in found:
            found["bootstrap_servers"] = os.environ.get(ENVIRONMENT) or DEFAULT_SERVERS
        return {**found, **more}


def _read(pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    from ..config import from_properties
    from ..config.unused import SERIALIZATION
    from ..errors import ConfigurationError

    given = {name.replace("_", "."): value for name, value in pairs}  # the last one counts
    given = {name: value for name, value in given.items() if name not in SERIALIZATION}  # of programs; here records are bytes
    for name in _NOT_TEXT:
        if name in given:
            raise ConfigurationError(f"the setting {name!r} cannot be given as text")
    return from_properties(given)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``-b``, ``-X`` and ``--debug``; it gets them as a :class:`Common`, together with those of its parents."""

    @click.option("-b", "--bootstrap-servers", "--bootstrap-server", metavar="HOST:PORT[,...]", help="Brokers to begin with.")
    @click.option(
        "-F",
        "--config-file",
        "from_file",
        type=click.Path(dir_okay=False),
        callback=_file_pairs,
        help="A file of settings, NAME=VALUE a line, named as by -X, Java or librdkafka.",
    )
    @click.option("-X", "properties", multiple=True, metavar="NAME=VALUE", callback=_pairs, help=_SETTING_HELP)
    @click.option("--debug", is_flag=True, help="Log what happens; show tracebacks.")
    @functools.wraps(command)
    def wrapped(
        bootstrap_servers: str | None,
        properties: tuple[tuple[str, str], ...],
        from_file: tuple[tuple[str, str], ...],
        debug: bool,
        **others: Any,
    ) -> Any:
        ctx = click.get_current_context()
        before = ctx.obj if isinstance(ctx.obj, Common) else Common()
        servers = before.bootstrap_servers if bootstrap_servers is None else bootstrap_servers
        common = Common(servers, before.properties + properties, before.debug or debug, before.from_file + from_file)
        ctx.obj = common
        if debug:
            _log_everything()
        return ctx.invoke(command, common, **others)

    return wrapped


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--output``: tables for people, JSON for scripts (``--json`` for short)."""

    @click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print.")
    @click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
    @functools.wraps(command)
    def wrapped(output: str, as_json: bool, **others: Any) -> Any:
        return command(output="json" if as_json else output, **others)

    return wrapped


def _pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(pair(text) for text in given)


def _file_pairs(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[tuple[str, str], ...]:
    from ..config.properties import read_properties

    if given is None:
        return ()
    try:
        with open(given, encoding="utf-8") as file:
            return tuple(read_properties(file.read()).items())
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {given!r}: {getattr(error, 'strerror', None) or 'it is no text in UTF-8'}") from None
    except ValueError as error:
        raise click.BadParameter(f"{given!r}, {error}") from None


def pair(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``. The value may be a secret, so it is never part of an error."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter("it has to be NAME=VALUE")
    return name.strip(), value


def _log_everything() -> None:
    """Ours alone: what other libraries log may hold secrets."""
    import logging

    logging.basicConfig(format="%(relativeCreated)7d ms %(name)s: %(message)s")
    for name in ("trikafka", "trikafka_spark"):
        logging.getLogger(name).setLevel(logging.DEBUG)
