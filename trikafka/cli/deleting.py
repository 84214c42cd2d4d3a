"""The deletion of groups, for ``groups`` and ``share-groups``: errors name a group's members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .partly import changed

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from .._api.admin.admin import Admin
    from ..errors import TrikafkaError

#: So many members of a group are named.
_NAMED = 3


async def delete_groups(
    admin: Admin,
    names: Iterable[str],
    describe: Callable[[list[str]], Awaitable[Mapping[str, Any]]],
    cure: str,
) -> list[str]:
    """Delete groups; return those that were deleted.

    Args:
        admin: The admin client.
        names: The groups.
        describe: Returns the groups with their members.
        cure: What to do about the members; ``{}`` stands for the group.

    Raises:
        TrikafkaError: No group was deleted.
    """
    wanted = list(names)
    return await changed(wanted, _deleted(admin, wanted, describe, cure))


async def _deleted(
    admin: Admin,
    names: list[str],
    describe: Callable[[list[str]], Awaitable[Mapping[str, Any]]],
    cure: str,
) -> None:
    from ..error_codes import ErrorCode
    from ..errors import AdminErrors, IllegalStateError, TrikafkaError

    try:
        await admin.delete_groups(names)
    except TrikafkaError as error:
        failures: dict[str, TrikafkaError] = (
            dict(error.failures) if isinstance(error, AdminErrors) else {names[0]: error}
        )
        used = [name for name, each in failures.items() if each.code == ErrorCode.NON_EMPTY_GROUP]
        if not used:
            raise
        for name, members in (await _members(describe, used)).items():
            failures[name] = IllegalStateError(
                f"group {name!r} has members, so it was not deleted{members}; {cure.format(name)}"
            )
        if isinstance(error, AdminErrors):
            raise AdminErrors.of(failures, error.results) from error
        raise failures[names[0]] from error


async def _members(
    describe: Callable[[list[str]], Awaitable[Mapping[str, Any]]], names: list[str]
) -> dict[str, str]:
    """Return the members of groups, for an error; nothing where they cannot be described."""
    from ..errors import AdminErrors, TrikafkaError

    try:
        found = await describe(names)
    except AdminErrors as errors:
        found = errors.results
    except TrikafkaError:
        found = {}
    return {name: _named(found[name].members) if name in found else "" for name in names}


def _named(members: Iterable[Any]) -> str:
    texts = [
        f"{each.member_id} (client {each.client_id} at {each.client_host})" for each in members
    ]
    if not texts:
        return ""
    more = len(texts) - _NAMED
    return ": " + ", ".join(texts[:_NAMED]) + (f" and {more} more" if more > 0 else "")
