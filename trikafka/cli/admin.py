"""Shared parts of the commands over the admin client. Not a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import Common
from .running import Stop, run

if TYPE_CHECKING:
    from .._api.admin.admin import Admin

T = TypeVar("T")
#: Seconds for listing the topics, which only improves an error message.
_NAMES_WITHIN = 5


def ask(common: Common, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Open an admin client and run ``work`` with it; return the result."""
    from .._api.admin.opening import open_admin
    from ..config import AdminConfig

    answers: list[T] = []

    async def main(stop: Stop) -> None:
        async with open_admin(**common.settings(AdminConfig)) as admin:
            answers.append(await work(admin))

    run(main)
    return answers[0]


async def no_topic(settings: Mapping[str, Any], topic: str) -> click.ClickException:
    """Return the error of a command for a topic that does not exist.

    One request looks up similar names.
    """
    from .._api.admin.opening import open_admin
    from ..config import AdminConfig, settings_of
    from ..errors import TrikafkaError, topic_missing

    known: Iterable[str] = ()
    with suppress(TrikafkaError):  # without the permission to list topics, no names are suggested
        async with open_admin(
            **{name: value for name, value in settings.items() if name in settings_of(AdminConfig)}
        ) as admin:
            known = await admin.list_topics(timeout=_NAMES_WITHIN)
    return click.ClickException(topic_missing(topic, known))


def chosen(what: str, names: Iterable[str], more: Sequence[str] = ()) -> list[str]:
    """Return the names given as arguments and by an option, which separates names by commas.

    Raises:
        click.UsageError: There is no name.
    """
    found = list(
        dict.fromkeys(
            [*names, *(name.strip() for text in more for name in text.split(",") if name.strip())]
        )
    )
    if not found:
        raise click.UsageError(f"which {what}?", click.get_current_context())
    return found
