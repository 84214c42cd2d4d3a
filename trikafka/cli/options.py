"""The options of every command, and their translation into client settings."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import click

from .partly import noted_failures, with_noted

ENVIRONMENT = "TRIKAFKA_BOOTSTRAP_SERVERS"
DEFAULT_SERVERS = "localhost:9092"
COMMON_HELP = (
    "-b, -X, -F and --debug may stand before or after the command. Without -b the brokers are "
    f"those of {ENVIRONMENT}, or else {DEFAULT_SERVERS}."
)
_SETTING_HELP = (
    "A setting of the client by Java's name or ours, such as fetch.min.bytes=1000; repeatable."
)
#: Settings whose values are Python objects.
_NOT_TEXT = ("dial", "plugins")


def is_terminal() -> bool:
    """Return whether the standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


@dataclass(frozen=True, slots=True)
class Common:
    """The options given to every command."""

    bootstrap_servers: str | None = None
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # passwords, too
    debug: bool = False
    from_file: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def settings(self, client: type, **more: Any) -> dict[str, Any]:
        """Return the settings of a client.

        A file may be shared with other programs, so only the entries that ``client`` has are taken
        from it. Settings of ``-X`` override the file, and ``more`` overrides both.

        Raises:
            ConfigurationError: A setting is wrong.
        """
        from ..config import ProducerConfig, settings_of
        from ..config.properties import behave_as_librdkafka

        # The protocol decides which of the file's security settings apply.
        protocol = tuple(
            pair for pair in self.properties if pair[0].replace("_", ".") == "security.protocol"
        )
        shared = {
            name: value
            for name, value in _read(self.from_file + protocol, strict=False).items()
            if name in settings_of(client)
        }
        found = {**shared, **_read(self.properties, strict=True)}
        if client is ProducerConfig:
            # Once for both: what an option of -X adds must not override a choice of the file.
            behave_as_librdkafka(found, dict(self.from_file + self.properties), client)
        if self.bootstrap_servers is not None:
            found["bootstrap_servers"] = self.bootstrap_servers
        # An empty value is an error, as Java's is: it is often a variable that is not set, and the
        # command would reach another cluster.
        elif found.keys().isdisjoint(("bootstrap_servers", "bootstrap_controllers")):
            found["bootstrap_servers"] = _servers_of_environment()
        return {**found, **more}


def _servers_of_environment() -> str:
    """Return the brokers that the environment names, or those without it.

    Raises:
        ConfigurationError: The value is wrong. The error names the variable.
    """
    from .._net.addresses import parse_bootstrap
    from ..config import AdminConfig
    from ..errors import ConfigurationError

    value = os.environ.get(ENVIRONMENT)
    if not value:
        return DEFAULT_SERVERS
    try:
        AdminConfig.build({"bootstrap_servers": value})  # first: it does not show a password
        parse_bootstrap(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{ENVIRONMENT}: {error}") from error
    return value


def _read(pairs: tuple[tuple[str, str], ...], *, strict: bool) -> dict[str, Any]:
    from ..config.properties import read_settings
    from ..config.unused import SERIALIZATION
    from ..errors import ConfigurationError

    given = {name.replace("_", "."): value for name, value in pairs}  # the last one counts
    # Serializers concern programs; the commands use bytes.
    given = {name: value for name, value in given.items() if name not in SERIALIZATION}
    for name in _NOT_TEXT:
        if name in given:
            raise ConfigurationError(f"the setting {name!r} cannot be given as text")
    return read_settings(given, None, strict=strict, complete=False)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-b``, ``-F``, ``-X`` and ``--debug`` to a command.

    The command receives them as a :class:`Common`, merged with those of its parents.
    """

    @click.option(
        "-b",
        "--bootstrap-servers",
        "--bootstrap-server",
        metavar="HOST:PORT[,...]",
        help="Brokers to begin with.",
    )
    @click.option(
        "--bootstrap-controller",
        "--bootstrap-controllers",
        "controllers",
        metavar="HOST:PORT[,...]",
        help="KRaft controllers to ask instead of brokers.",
    )
    @click.option(
        "-F",
        "--config-file",
        "from_file",
        type=click.Path(dir_okay=False),
        callback=file_pairs,
        help="A file of settings, NAME=VALUE a line, named as by -X, Java or librdkafka.",
    )
    @click.option(
        "-X", "properties", multiple=True, metavar="NAME=VALUE", callback=pairs, help=_SETTING_HELP
    )
    @click.option("--debug", is_flag=True, help="Log what happens; show tracebacks.")
    @functools.wraps(command)
    def wrapped(
        bootstrap_servers: str | None,
        controllers: str | None,
        properties: tuple[tuple[str, str], ...],
        from_file: tuple[tuple[str, str], ...],
        debug: bool,
        **others: Any,
    ) -> Any:
        ctx = click.get_current_context()
        before = ctx.obj if isinstance(ctx.obj, Common) else Common()
        servers = before.bootstrap_servers if bootstrap_servers is None else bootstrap_servers
        common = Common(
            servers,
            before.properties
            + properties
            + (() if controllers is None else (("bootstrap.controllers", controllers),)),
            before.debug or debug,
            before.from_file + from_file,
        )
        ctx.obj = common
        if debug:
            _log_everything()
        from ..errors import TrikafkaError

        try:
            result = ctx.invoke(command, common, **others)
        except (TrikafkaError, click.ClickException) as error:
            if (both := with_noted(error)) is not error:
                raise both from error
            raise
        if (failed := noted_failures()) is not None:
            raise failed
        return result

    return wrapped


more_topics_option = click.option(
    "-t",
    "--topic",
    "more",
    multiple=True,
    metavar="NAME",
    help="A topic, as the argument; repeatable.",
)


def chosen_output(output: str | None, as_json: bool) -> str:
    """Return the way to print, one of ``OUTPUTS``, by the options of a command."""
    if as_json:
        return "json"
    return output or ("table" if is_terminal() else "jsonl")


OUTPUTS = ("table", "wide", "json", "jsonl")
OUTPUT_ENVIRONMENT = "TRIKAFKA_OUTPUT"


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-o``, ``--output`` to a command, which receives ``table`` or ``json``.

    ``wide`` is a table whose cells are not cut to the terminal's width, ``jsonl`` is JSON of one
    line for each element. :mod:`.tables` finds these details in the context of the command.
    """

    @click.option(
        "-o",
        "--output",
        type=click.Choice(OUTPUTS),
        envvar=OUTPUT_ENVIRONMENT,
        help="How to print: a table, a table that is never cut, a JSON document, or a line of JSON "
        "for each row.  [default: table on a terminal, else jsonl]",
    )
    @click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
    @functools.wraps(command)
    def wrapped(output: str | None, as_json: bool, **others: Any) -> Any:
        way = chosen_output(output, as_json)
        return command(output="json" if way in ("json", "jsonl") else "table", **others)

    return wrapped


def pairs(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return the names and values of a repeatable option; a callback of click."""
    return tuple(pair(text) for text in given)


def different(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return values by name.

    The values may be secrets, so the error does not show them.

    Raises:
        click.UsageError: A name has two values.
    """
    found: dict[str, str] = {}
    for name, value in given:
        if found.setdefault(name, value) != value:
            raise click.UsageError(f"{name} is given twice, with different values: choose one")
    return found


def file_pairs(
    ctx: click.Context, param: click.Parameter, given: str | None
) -> tuple[tuple[str, str], ...]:
    """Return the names and values of a file of settings; a callback of click."""
    from ..config.properties import read_properties_file

    if given is None:
        return ()
    try:
        return tuple(read_properties_file(given).items())
    except OSError as error:
        raise click.BadParameter(f"cannot read {given!r}: {error.strerror}") from None
    except ValueError as error:
        raise click.BadParameter(f"{given!r}, {error}") from None


def pair(text: str) -> tuple[str, str]:
    """Return the name and value of ``NAME=VALUE``.

    The value may be a secret, so errors never show it.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter("write NAME=VALUE")
    return name.strip(), value


def _log_everything() -> None:
    """Log trikafka's own messages. Other libraries' messages may hold secrets."""
    import logging

    logging.basicConfig(format="%(relativeCreated)7d ms %(name)s: %(message)s")
    logging.getLogger("trikafka").setLevel(logging.DEBUG)
