"""The command line's root: which commands there are, where they are found, and how each way of ending becomes an exit code.

Exit codes: 0 done, 1 it failed, 2 it was called wrongly, 129, 130 and 143 ended by SIGHUP, SIGINT and SIGTERM, 141 nobody reads the
output any more. Failures are one sentence on the standard error; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import importlib
import os
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

import click

from .options import COMMON_HELP, Common, common_options
from .running import NobodyReadsError, Signalled, sentence
from .suggesting import Suggesting

#: Commands of trikafka itself: name -> what the list of commands says of it. Each is ``trikafka.cli.<name>.command``.
_OWN = {
    "consume": "Print records of topics.",
    "export": "Write all new records of topics to a destination.",
    "groups": "Show or delete consumer groups: members, offsets, lag.",
    "produce": "Write lines or JSON to a topic.",
    "topics": "List, create, delete, describe or grow topics.",
    "transactions": "List or describe transactions, find those that hang, or abort one.",
}
#: Commands that a package of its own brings: name -> (package, what the list of commands says of it).
_PLUGINS = {"broker": ("trikafka-broker", "Run real Apache Kafka brokers on this machine.")}
_ENTRY_POINT_GROUP = "trikafka.commands"
BROKEN_PIPE = 141
_PLAIN = warnings.showwarning


class Commands(Suggesting):
    """Imports a command when it is used."""

    words = MappingProxyType({"read": "consume", "write": "produce", "send": "produce", "topic": "topics", "group": "groups"})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_OWN, *_PLUGINS, *_found()})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _OWN:
            command: click.Command = importlib.import_module(f"trikafka.cli.{name}").command
            return command
        found = _found()
        if name in found:
            return _load(found[name])
        return _missing(name, _PLUGINS[name][0]) if name in _PLUGINS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            known = _OWN.get(name) or (_PLUGINS[name][1] if name in _PLUGINS else "")
            rows.append((name, known or self._help_of(ctx, name)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _help_of(self, ctx: click.Context, name: str) -> str:
        try:
            command = self.get_command(ctx, name)
            return command.get_short_help_str() if command is not None else ""
        except click.ClickException as error:
            return error.message


@click.group(cls=Commands, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}, epilog=COMMON_HELP)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=lambda c, p, v: _version(c, v), help="Show the version."
)
@common_options
def trikafka(common: Common) -> None:
    """Kafka from the command line, by trikafka."""


def run(args: Sequence[str]) -> int:
    """Run the command line and return the exit code."""
    debug = "--debug" in (args[: args.index("--")] if "--" in args else args)
    _hold_places()
    warnings.showwarning = _show_warning
    try:
        result = trikafka.main(list(args), prog_name="trikafka", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
        return 2
    except (Signalled, KeyboardInterrupt, click.Abort) as error:
        return 128 + (error.number if isinstance(error, Signalled) else 2)
    except NobodyReadsError:
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


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any, **named: Any) -> None:
    """Where in the code a warning of ours arose says nothing to those who call the command."""
    if category.__module__.startswith("trikafka."):
        click.echo(f"Warning: {message}", err=True)
    else:
        _PLAIN(message, category, filename, lineno, *more, **named)


def _found() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_ENTRY_POINT_GROUP)}


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except Exception as error:
        raise click.ClickException(f"the plugin of the command {point.name!r} ({point.value}) does not load: {error}") from error
    if not isinstance(command, click.Command):
        raise click.ClickException(f"the plugin of the command {point.name!r} ({point.value}) is no click command")
    return command


def _missing(name: str, package: str) -> click.Command:
    install = f"from a clone: pip install ./plugins/{package}"

    @click.command(name, context_settings={"ignore_unknown_options": True}, add_help_option=False)
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def missing(rest: tuple[str, ...]) -> None:
        raise click.ClickException(f"the command {name!r} comes with the package {package}, which is not on PyPI yet; {install}")

    return missing


def _hold_places() -> None:
    """Where a standard stream is closed, hold its number, so that no socket gets it. Using it is an error, as before."""
    for fd, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest number that is free, which is this one


def _let_go_of_stdout() -> None:
    """Nobody reads: what is still buffered goes nowhere, and the interpreter does not complain of it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
