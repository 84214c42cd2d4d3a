"""What the commands over the admin client share. Not a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import Common
from .running import Stop, run

if TYPE_CHECKING:
    from .._api.admin import Admin

T = TypeVar("T")
#: So long (seconds) the names of the topics may take for an error that is better with them.
_NAMES_WITHIN = 5


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


async def no_topic(settings: Mapping[str, Any], topic: str) -> click.ClickException:
    """The error of a command about a topic that does not exist. The names that are near it take a request."""
    from .._api.opening import open_admin
    from ..config import AdminConfig, settings_of
    from ..errors import TrikafkaError, topic_missing

    known: Iterable[str] = ()
    with suppress(TrikafkaError):  # who may not see them does without
        async with open_admin(**{name: value for name, value in settings.items() if name in settings_of(AdminConfig)}) as admin:
            known = await admin.list_topics(timeout=_NAMES_WITHIN)
    return click.ClickException(topic_missing(topic, known))


def chosen(what: str, names: Iterable[str], more: Sequence[str] = ()) -> list[str]:
    """The names that were given as arguments and by an option (commas between). Raises a usage error if there is none."""
    found = list(dict.fromkeys([*names, *(name.strip() for text in more for name in text.split(",") if name.strip())]))
    if not found:
        raise click.UsageError(f"which {what}?", click.get_current_context())
    return found
