"""Suggestions for unknown commands."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import ClassVar

import click


class Suggesting(click.Group):
    """A group of commands whose error for an unknown name suggests a command.

    ``words`` maps words of other tools to commands.
    """

    words: ClassVar[Mapping[str, str]] = {}
    otherwise: ClassVar[str] = ""  # the hint if no command is similar

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
