"""Suggestions for unknown commands."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem

#: The entry-point group of plugins that only the command line loads, and clients do not. Until the
#: next release an entry point may also be a click command itself.
COMMAND_PLUGINS = "trikafka.commands"

#: Options of other tools, with ours. Each counts for the commands that have ours.
_OPTIONS = MappingProxyType(
    {
        "--offset": "--from",
        "--from-beginning": "--from beginning",
        **dict.fromkeys(("--max-messages", "--max", "--limit", "--num", "-n"), "--count"),
        **dict.fromkeys(("--tail", "--last"), "--from -10"),
        **dict.fromkeys(("--since", "--after"), "--from -1h"),
        **dict.fromkeys(("--filter", "--match"), "--grep"),
        "--exit": "--until-end",
        "--to-earliest": "--to earliest",
        "--to-latest": "--to latest",
        "--to-offset": "--to OFFSET",
        "--to-datetime": "--to 2026-01-31T12:00",
        "--by-duration": "--to -1h",
        "--shift-by": "--to -10",
        "--topics": "--topic",
        "--add-config": "NAME=VALUE",
        "--delete-config": "--delete NAME",
        **dict.fromkeys(("--broker-list", "--brokers", "--zookeeper"), "-b"),
        **dict.fromkeys(
            ("--command-config", "--consumer.config", "--producer.config", "--consumer-config"),
            "--config-file",
        ),
        **dict.fromkeys(
            ("--consumer-property", "--producer-property", "--command-property", "--property"), "-X"
        ),
        "--format": "--output",
        "--output": "--format",
        "-c": "--config",
        "-J": "-f json",
        "--isolation-level": "-X isolation.level=read_committed",
        "--replicas": "--replication-factor",
        **dict.fromkeys(("--allow-principal", "--principal"), "-u"),
        "--deny-principal": "--deny",
        **dict.fromkeys(("--allow-host", "--deny-host"), "--host"),
        **dict.fromkeys(("--resource-pattern-type", "--pattern-type"), "--prefix"),
        "--password": "--password-file",
        "--offset-json-file": "--before",
        "--reassignment-json-file": "--file",
    }
)
#: Modes of kcat, with the command for each.
_MODES = MappingProxyType(
    {
        "-C": "trikafka consume",
        "-P": "trikafka produce",
        "-L": "trikafka topics describe",
        "-Q": "trikafka topics offsets",
    }
)
#: Characters of a first sentence that is never cut.
_WHOLE = 1_000


class WithVerbs(click.Command):
    """A command whose first argument may be a verb, which is a command of its own.

    Any other first argument is the command's: ``trikafka groups NAME`` shows a group. If the
    command has no arguments, the error about another word suggests a verb. Options that the verb
    has may stand before it, and others are refused there; a word after ``--`` is an argument.
    ``words`` maps words of other tools to the command lines that are meant. If a command with
    arguments gets a word that is usually a verb, and options that it does not have, the error has
    the hint of ``habits``.
    """

    verbs: ClassVar[Mapping[str, click.Command]] = {}
    words: ClassVar[Mapping[str, str]] = {}
    habits: ClassVar[Mapping[str, str]] = {}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        options, rest = self._split(args, parent)
        verb = self.verbs.get(rest[0]) if rest else None
        if verb is not None:
            line = f"{info_name} {rest[0]}"
            foreign = _foreign_option(verb, options, parent)
            if foreign is None:
                return verb.make_context(line, options + rest[1:], parent, **extra)
            # "groups --delete lag g" would delete the groups "lag" and "g", but may be meant to show
            # the lag of g.
            if not extra.get("resilient_parsing"):
                text = f"'{line}' has no option {foreign}"
                if not self._takes_no_argument:
                    text += f"; if '{rest[0]}' is meant as an argument, write -- before it"
                raise click.UsageError(text, click.Context(self, parent, info_name))
        # The completion of a shell shows no errors: it parses leniently.
        if self._takes_no_argument and rest and not extra.get("resilient_parsing"):
            near = get_close_matches(rest[0], [*self.verbs, *self.words], n=1)
            word = near[0] if near else rest[0]
            meant = f"{info_name} {word}" if word in self.verbs else self.words.get(word)
            hint = f"; did you mean 'trikafka {meant}'?" if meant else ""
            context = click.Context(self, parent, info_name)
            raise click.UsageError(f"there is no command '{info_name} {rest[0]}'{hint}", context)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption:
            if not rest or rest[0] not in self.habits:
                raise
            context = click.Context(self, parent, info_name)
            text = f"there is no command '{info_name} {rest[0]}'{self.habits[rest[0]]}"
            raise click.UsageError(text, context) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # A command with arguments completes the verbs as its first one: see `complete_verbs`.
        found = super().shell_complete(ctx, incomplete)
        verbs = self.verbs if self._takes_no_argument else ()
        return [CompletionItem(verb) for verb in verbs if verb.startswith(incomplete)] + found

    @property
    def _takes_no_argument(self) -> bool:
        return not any(isinstance(param, click.Argument) for param in self.params)

    def _split(self, args: list[str], parent: click.Context | None) -> tuple[list[str], list[str]]:
        """Return the options before the first word, and the arguments from that word on.

        Of arguments behind ``--`` no word can be a verb: all of them are returned as options.
        """
        options: list[click.Parameter] = [
            param for param in self.params if isinstance(param, click.Option)
        ]
        context = click.Context(
            click.Command(self.name, params=options), parent, allow_interspersed_args=False
        )
        try:
            _, rest, _ = context.command.make_parser(context).parse_args(list(args))
        except click.UsageError:  # the command that gets them says so
            return args, []
        before = len(args) - len(rest)
        if args[:before][-1:] == ["--"]:
            return args, []
        return args[:before], args[before:]


def _foreign_option(
    verb: click.Command, options: list[str], parent: click.Context | None
) -> str | None:
    """Return the first of the options that a verb does not have; ``None`` if it has all."""
    try:
        verb.make_parser(click.Context(verb, parent)).parse_args(list(options))
    except click.NoSuchOption as error:
        return error.option_name
    except click.UsageError:  # the verb says so
        pass
    return None


def complete_verbs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the verbs of a :class:`WithVerbs` for the completion of its first argument."""
    command = ctx.command
    if not isinstance(command, WithVerbs) or ctx.params.get(param.name or ""):
        return []
    return [verb for verb in command.verbs if verb.startswith(incomplete)]


class Suggesting(click.Group):
    """A group of commands whose error for an unknown name suggests a command.

    Args:
        words: For each command the words of other tools for it.
        otherwise: The hint if no command is similar.
        default: The command that runs if none is named.
    """

    def __init__(
        self,
        *args: Any,
        words: Mapping[str, str],
        otherwise: str = "",
        default: str = "",
        **rest: Any,
    ) -> None:
        super().__init__(*args, **rest)
        #: The command that is meant by a word of another tool.
        self.words = {word: meant for meant, each in words.items() for word in each.split()}
        self.otherwise = otherwise
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the default command to arguments that name no command."""
        if self.default and not ctx.resilient_parsing and not {"-h", "--help"} & set(args):
            rest = self._without_options(ctx, args)
            # Another option is of the default command, unless a command follows.
            if not rest or (
                rest[0].startswith("-")
                and not self._words(ctx, rest, self.default) & set(self.commands)
            ):
                args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _words(self, ctx: click.Context, args: list[str], name: str) -> set[str]:
        """Return the words among a command's arguments that are not the value of an option.

        Such a value may be equal to a command: a user may have the name ``list``.
        """
        command = self.commands[name]
        lenient = click.Context(command, ctx, name, ignore_unknown_options=True)
        try:
            found, words, _ = command.make_parser(lenient).parse_args(list(args))
        except click.UsageError:
            return set(args)
        named = [
            found.get(param.name or "")
            for param in command.params
            if isinstance(param, click.Argument)
        ]
        given = [each if isinstance(each, tuple | list) else (each,) for each in named]
        return {word for word in (*words, *(one for each in given for one in each)) if word}

    def _without_options(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments without the group's own options and their values."""
        lenient = click.Context(self, ctx.parent, ctx.info_name, ignore_unknown_options=True)
        try:
            return self.make_parser(lenient).parse_args(list(args))[1]
        except click.UsageError:  # the command that gets them says so
            return args

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their first sentences, which click would cut to one line."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, found.get_short_help_str(_WHOLE))
                    for name in self.list_commands(ctx)
                    if (found := self.get_command(ctx, name)) is not None
                ]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        unknown = args and not args[0].startswith("-") and args[0] not in known
        if unknown and not ctx.resilient_parsing:
            near = (
                [self.words[args[0]]]
                if args[0] in self.words
                else get_close_matches(args[0], known, n=1)
            )
            hint = (
                f"; did you mean {near[0]!r}?" if near else self.otherwise and f"; {self.otherwise}"
            )
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


def option_hint(error: click.NoSuchOption) -> str:
    """Return the hint for an unknown option; empty if none is meant for sure.

    It may be an option of another tool, or a mistyped one.
    """
    if error.ctx is None:
        return ""
    meant = _MODES.get(error.option_name) if error.ctx.parent is None else None
    if meant is None and error.option_name not in _OPTIONS:
        meant = _verb_of(error.ctx, error.option_name.removeprefix("--"))
        if meant == error.ctx.command_path:  # it is this command
            meant = None
    if meant is None and (ours := _OPTIONS.get(error.option_name)) is not None:
        names = {
            name for param in error.ctx.command.params for name in (*param.opts, param.metavar)
        }
        meant = ours if ours.split()[0] in {name and name.rstrip(".") for name in names} else None
    if meant is None:
        # click itself suggests options that have little in common with the one that was given.
        own = [name for param in error.ctx.command.params for name in param.opts]
        if error.option_name == "--dry-run" and "--execute" in own:
            return "; without --execute nothing is changed"
        meant = next(iter(get_close_matches(error.option_name, own, n=1, cutoff=0.8)), None)
    return f"; did you mean {meant!r}?" if meant else ""


def _verb_of(ctx: click.Context, word: str) -> str | None:
    """Return the command line that is meant by an option, as in kafka-acls --add, or ``None``."""
    for each in (ctx, ctx.parent):
        # An option may be that of a group's default command. The root has none.
        if each is None or (each is not ctx and each.parent is None):
            continue
        command = each.command
        if isinstance(command, WithVerbs):
            meant = f"{each.info_name} {word}" if word in command.verbs else command.words.get(word)
            if meant is not None:
                return f"trikafka {meant}"
        elif isinstance(command, Suggesting):
            meant = word if word in command.commands else command.words.get(word)
            if meant is not None:
                begins = meant.startswith("trikafka ")
                return meant if begins else f"{each.command_path} {meant}"
    return None


def argument_hint(error: click.UsageError) -> str:
    """Return the hint for a topic as an argument, if the command takes topics by an option."""
    if error.ctx is None or not error.message.startswith("Got unexpected extra argument"):
        return ""
    by_option = any("--topic" in param.opts for param in error.ctx.command.params)
    return "; topics are given by -t" if by_option else ""
