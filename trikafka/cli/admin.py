"""Shared parts of the commands that use the admin client. Not a command itself."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import Common
from .running import Stop, run

if TYPE_CHECKING:
    from .._api.admin.admin import Admin

T = TypeVar("T")
#: The sentence of ``topic_missing`` in the error of a response.
_NO_TOPIC = re.compile(r"topic '(?P<name>[^']+)' does not exist;")
#: Seconds for listing the topics, which only improves an error message.
_NAMES_WITHIN = 5


def ask(common: Common, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Open an admin client and run ``work`` with it; return the result."""
    from .._api.admin.opening import open_admin
    from ..config import AdminConfig
    from ..errors import AdminErrors, TrikafkaError, UnknownTopicOrPartitionError
    from .partly import noted_errors

    answers: list[T] = []

    async def main(stop: Stop) -> None:
        async with open_admin(**common.settings(AdminConfig)) as admin:
            try:
                answers.append(await work(admin))
            except TrikafkaError as error:
                await name_topics(admin, noted_errors())
                if isinstance(error, UnknownTopicOrPartitionError):
                    named = await _with_near_names(admin, error)
                    if named is not error:
                        raise named from error
                if isinstance(error, AdminErrors):
                    await name_topics(admin, error.exceptions)
                raise
            await name_topics(admin, noted_errors())

    run(main)
    return answers[0]


async def name_topics(admin: Admin, errors: Iterable[Exception]) -> None:
    """Add similar names of topics to the text of each error about a missing topic."""
    from ..errors import UnknownTopicOrPartitionError

    for each in errors:
        if isinstance(each, UnknownTopicOrPartitionError):
            each.args = (str(await _with_near_names(admin, each)),)


async def _with_near_names(admin: Admin, error: Exception) -> Exception:
    """Return the error about a missing topic in the commands' own words, with similar names.

    The text of the admin client's error has only the name from the broker's response. An error
    without a name is returned as it is.
    """
    from ..errors import TrikafkaError, topic_missing

    found = _NO_TOPIC.search(str(error))
    if found is None:
        return error
    known: Iterable[str] = ()
    with suppress(TrikafkaError):  # without the permission to list topics, no names are suggested
        known = await admin.list_topics(timeout=_NAMES_WITHIN)
    return click.ClickException(topic_missing(found["name"], known, make=False))


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
        raise click.UsageError(f"which {what}?")
    return found
