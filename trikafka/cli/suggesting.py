"""Suggestions for unknown commands."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

import click

#: The entry-point group of plugins that only the command line loads, and clients do not. Until the
#: next release an entry point may also be a click command itself.
COMMAND_PLUGINS = "trikafka.commands"

#: Characters of a first sentence that is never cut.
_WHOLE = 1_000


class WithVerbs(click.Command):
    """A command whose first argument may be a verb, which is a command of its own.

    Any other first argument is the command's: ``trikafka groups NAME`` shows a group. If the
    command has no arguments, the error about another word suggests a verb. ``words`` maps words of
    other tools to the command lines that are meant.
    """

    verbs: ClassVar[Mapping[str, click.Command]] = {}
    words: ClassVar[Mapping[str, str]] = {}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        verb = self.verbs.get(args[0]) if args else None
        if verb is not None:
            return verb.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        takes_none = not any(isinstance(param, click.Argument) for param in self.params)
        if takes_none and args and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.verbs, n=1)
            meant = self.words.get(args[0]) or (f"{info_name} {near[0]}" if near else None)
            hint = f"; did you mean 'trikafka {meant}'?" if meant else ""
            context = click.Context(self, parent, info_name)
            raise click.UsageError(f"there is no command '{info_name} {args[0]}'{hint}", context)
        return super().make_context(info_name, args, parent, **extra)


def complete_verbs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the verbs of a :class:`WithVerbs` for the completion of its first argument."""
    command = ctx.command
    if not isinstance(command, WithVerbs) or ctx.params.get(param.name or ""):
        return []
    return [verb for verb in command.verbs if verb.startswith(incomplete)]


class Suggesting(click.Group):
    """A group of commands whose error for an unknown name suggests a command.

    ``words`` maps words of other tools to commands.
    """

    words: ClassVar[Mapping[str, str]] = {}
    otherwise: ClassVar[str] = ""  # the hint if no command is similar

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
        if args and not args[0].startswith("-") and args[0] not in known:
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
