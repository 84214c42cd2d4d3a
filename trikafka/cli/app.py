"""The root of the command line: the commands and the exit codes.

Exit codes: 0 success; 1 failure; 2 wrong usage; 129, 130 and 143 ended by SIGHUP, SIGINT and
SIGTERM; 141 the reader of the output has gone. A failure prints one sentence to the standard error.
``--debug`` adds the traceback.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from ..errors import PluginError
from ..hooks import answers, load_plugins
from ..interfaces import Subcommand
from .options import COMMON_HELP, Common, common_options
from .progress import warn
from .running import ReaderGoneError, Signalled, sentence
from .suggesting import COMMAND_PLUGINS, Suggesting

#: trikafka's own commands with their short help. Each is ``trikafka.cli.<name>.command``, with "_"
#: for "-".
_OWN = {
    "acls": "List, set or delete access rules.",
    "cluster": "Show the brokers, the health, the features and the controllers.",
    "configs": "Show or change settings of topics, brokers and groups.",
    "consume": "Print records of topics.",
    "copy": "Copy the records of topics to another cluster or topic.",
    "groups": "Show or delete consumer groups: members, offsets, lag. Reset their offsets.",
    "reassign": "Move partitions to other brokers, see how far they are, or cancel.",
    "share-groups": "Show share groups and their offsets, reset or delete them.",
    "produce": "Write lines of text, of JSON or of a table to a topic.",
    "quotas": "List, set or delete quotas of users, client ids and addresses.",
    "records": "Delete the oldest records of topics.",
    "topics": "List, create, delete, describe or grow topics; find offsets; elect leaders.",
    "transactions": "List or describe transactions, find those that hang, or abort some.",
    "users": "List, set or delete passwords of SCRAM users.",
}
#: Commands of packages that may be missing: name -> (package, short help).
_PLUGINS = {
    "broker": ("trikafka-broker", "Run real Apache Kafka brokers on this machine."),
    "export": ("trikafka-export", "Write all new records of topics to a destination."),
}
BROKEN_PIPE = 141
EXIT_CODES = (
    "Exit codes: 0 success, 1 failure, 2 wrong usage, 129, 130 and 143 ended by SIGHUP, SIGINT "
    "and SIGTERM, 141 the reader of the output has gone."
)
_PLAIN = warnings.showwarning


class Commands(Suggesting):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_OWN, *_PLUGINS, *_offered()})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in _OWN:  # no plugin is loaded for it
            return click.Group.resolve_command(self, ctx, args)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _OWN:
            command: click.Command = importlib.import_module(
                f"trikafka.cli.{name.replace('-', '_')}"
            ).command
            return command
        found = _offered()
        if name in found:
            return _load(found[name])
        return _missing(name, _PLUGINS[name][0]) if name in _PLUGINS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = {name: help for name, (_, help) in _PLUGINS.items()}
        offered = _offered()
        known |= {name: offer.help for name, offer in offered.items()}
        for name in sorted(offered.keys() & _OWN.keys()):
            warn(f"a plugin's command {name!r} is never run: trikafka has one of that name")
        with formatter.section("Commands"):
            formatter.write_dl(sorted((known | _OWN).items()))


@click.group(
    cls=Commands,
    words={
        "consume": "read cat tail",
        "produce": "write send",
        "topics": "topic create delete",
        "groups": "group consumer-groups consumer-group",
        "configs": "config",
        "records": "record",
        "cluster": "brokers metadata",
        "cluster quorum": "quorum metadata-quorum controllers controller",
        "cluster features": "features",
        "cluster health": "health under-replicated",
        "topics offsets": "offsets get-offsets query",
        "topics list": "list ls",
        "topics describe": "describe partitions",
        "records delete": "delete-records trim",
        "acls": "acl",
        "quotas": "quota",
        "users": "user scram",
        "copy": "mirror cp",
        "groups lag": "lag",
        "groups reset-offsets": "reset-offsets reset seek",
        "reassign": "reassign-partitions reassignments move",
        "reassign move --off BROKER": "drain decommission evacuate",
        "share-groups": "share-group shares",
        "cluster log-dirs": "log-dirs logdirs",
        "transactions": "transaction txn txns tx",
        "transactions producers": "producers describe-producers",
        "--help": "help",
        "--version": "version",
        "topics elect": "elect elect-leaders leader-election leaders",
    },
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"{COMMON_HELP}\n\n{EXIT_CODES}",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda c, p, v: _version(c, v),
    help="Show the version.",
)
@common_options
def trikafka(common: Common) -> None:
    """Kafka from the command line, by trikafka."""


def run(args: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    debug = "--debug" in (args[: args.index("--")] if "--" in args else args)
    _hold_places()
    _use_bytes()
    warnings.showwarning = _show_warning
    stdout = sys.stdout
    try:
        result = trikafka.main(list(args), prog_name="trikafka", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
        return 2
    except (Signalled, KeyboardInterrupt, click.Abort) as error:
        return 128 + (error.number if isinstance(error, Signalled) else 2)
    except ReaderGoneError:
        _let_go_of_stdout()
        return BROKEN_PIPE
    except SystemExit:
        # If the reader of its help has gone, click replaces sys.stdout and exits.
        if sys.stdout is stdout:
            raise
        _let_go_of_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            traceback.print_exc()
        text, code = sentence(error)
        click.echo(f"Error: {text}", err=True)
        return code


def _version(ctx: click.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from .._version import VERSION
        from .._wire._implementation import missing

        click.echo(f"trikafka {VERSION}")
        click.echo(f"compiled part: no ({missing})" if missing else "compiled part: yes")
        ctx.exit()


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    *more: Any,
    **named: Any,
) -> None:
    """Print trikafka's own warnings without their place in the code."""
    if category.__module__.startswith("trikafka."):
        click.echo(f"Warning: {message}", err=True)
    else:
        _PLAIN(message, category, filename, lineno, *more, **named)


def _offered() -> dict[str, Subcommand]:
    """Return the commands of plugins (hook ``trikafka_command``), by their names."""
    found: dict[str, Subcommand] = {}
    plugins: list[tuple[EntryPoint, object]] = []
    for point in entry_points(group=COMMAND_PLUGINS):
        try:
            thing = point.load()
        except (Exception, SystemExit) as error:
            found[point.name] = _refusing(
                point, f"does not load: {type(error).__name__}: {error}", error
            )
            continue
        if isinstance(thing, click.Command):
            found[point.name] = _as_it_is(point.name, thing)
        else:
            plugins.append((point, thing))
    with suppress(PluginError):
        return found | _offers([thing for _, thing in plugins])
    # One of them is wrong. The commands of the others stay.
    try:
        found |= _offers([])
    except PluginError as error:
        warn(f"commands of plugins are missing: {error}")
        return found
    for point, thing in plugins:
        try:
            found |= _offers([thing])
        except PluginError as error:
            found[point.name] = _refusing(point, f"cannot be used: {error}", error)
    return found


def _offers(plugins: Sequence[object]) -> dict[str, Subcommand]:
    """Return the commands of these plugins and of all that clients load.

    Raises :exc:`PluginError`.
    """
    found: dict[str, tuple[str, Subcommand]] = {}
    for plugin, offer in answers(load_plugins(plugins), "trikafka_command", Subcommand):
        if (wrong := _fault_of(offer)) is not None:
            warn(f"a command of plugin {plugin} is missing: its Subcommand's {wrong}")
            continue
        if offer.name in found:
            other = found[offer.name][0]
            warn(f"the command {offer.name!r} is that of plugin {plugin}; {other} has one, too")
        found[offer.name] = (plugin, offer)
    return {name: offer for name, (_, offer) in found.items()}


def _fault_of(offer: Subcommand) -> str | None:
    """Return why the list of commands cannot have a subcommand; ``None`` if it can."""
    name: object = offer.name
    if not isinstance(name, str) or len(name.split()) != 1 or name.startswith("-"):
        return f"name is {name!r}; it must be a word, such as 'hello'"
    if not isinstance(offer.help, str):
        return f"help is {offer.help!r}; it must be a sentence"
    if not callable(offer.load):
        return f"load is {offer.load!r}; it must be a function that returns the click command"
    return None


def _refusing(point: EntryPoint, why: str, error: BaseException) -> Subcommand:
    """Return the command in place of one whose plugin is wrong; its use is the error."""
    text = f"the plugin of the command {point.name!r} ({point.value}) {why}"
    return Subcommand(point.name, text, partial(_refuse, text, error))


def _as_it_is(name: str, command: click.Command) -> Subcommand:
    return Subcommand(name, command.get_short_help_str(), lambda: command)


def _refuse(text: str, cause: BaseException) -> None:
    raise click.ClickException(text) from cause


def _load(offer: Subcommand) -> click.Command:
    try:
        command = offer.load()
    except click.ClickException:
        raise
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise click.ClickException(f"the command {offer.name!r} does not load: {why}") from error
    if not isinstance(command, click.Command):
        if inspect.iscoroutine(command):
            command.close()
        raise click.ClickException(
            f"the plugin of the command {offer.name!r} returned {type(command).__name__}, which "
            "is not a click command"
        )
    return command


def _missing(name: str, package: str) -> click.Command:
    install = f"from a clone: pip install ./plugins/{package}"

    @click.command(name, context_settings={"ignore_unknown_options": True}, add_help_option=False)
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def missing(rest: tuple[str, ...]) -> None:
        raise click.ClickException(
            f"the command {name!r} comes with the package {package}, which is not on PyPI yet; "
            f"{install}"
        )

    return missing


def _hold_places() -> None:
    """Occupy the numbers of closed standard streams, so that no socket gets them.

    Using such a stream remains an error, also if a library had opened a file before: the streams
    are `None` in `sys`.
    """
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free number, which is `fd`


def _use_bytes() -> None:
    """Keep Windows from translating line ends in the standard input and output."""
    if sys.platform == "win32":
        import msvcrt

        for fd in (0, 1):
            msvcrt.setmode(fd, os.O_BINARY)


def _let_go_of_stdout() -> None:
    """Discard buffered output, so that the interpreter reports no error when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
