"""What the commands over the admin client share. Not a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from .options import Common
from .running import Stop, run

if TYPE_CHECKING:
    from .._api.admin import Admin

T = TypeVar("T")


def ask(common: Common, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Open an admin client, do ``work`` with it, and return what it returns."""
    from .._api.opening import open_admin
    from ..config import AdminConfig

    answers: list[T] = []

    async def main(stop: Stop) -> None:
        async with open_admin(**common.settings(AdminConfig)) as admin:
            answers.append(await work(admin))

    run(main)
    return answers[0]


def chosen(what: str, names: Iterable[str], more: Sequence[str] = ()) -> list[str]:
    """The names that were given as arguments and by an option (commas between). Raises a usage error if there is none."""
    found = list(dict.fromkeys([*names, *(name.strip() for text in more for name in text.split(",") if name.strip())]))
    if not found:
        raise click.UsageError(f"which {what}?", click.get_current_context())
    return found
