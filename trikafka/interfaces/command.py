"""A subcommand of the command line that a plugin adds (hook ``trikafka_command``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand of ``trikafka``.

    Attributes:
        name: The word after ``trikafka``.
        help: A sentence for the list of commands.
        load: Imports and returns the command, a :class:`click.Command`. Called when the command is
            used, so that other commands start quickly.
    """

    name: str
    help: str
    load: Callable[[], Any]
