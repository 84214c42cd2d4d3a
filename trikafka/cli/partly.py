"""Admin calls that fail in part: the command prints what the other parts gave, and then fails.

Every command does it in the same way. It gets its answers by the functions here, which note the
failures, and prints the answers. The wrapper of every command raises the noted failures at its end,
or together with the error that ends it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from .._api.admin.admin import Admin
    from .._api.admin.types import GroupListing, ListedOffset, TransactionListing
    from ..errors import AdminErrors, TrikafkaError
    from ..types import PartitionInfo, TopicPartition

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

#: The key of the noted failures in the context of the running command.
_NOTED = "trikafka.cli.partly"
#: Calls about single groups that are under way at once.
_AT_ONCE = 16


class PartlyFailedError(Exception):
    """Parts of a command's work failed; what the others gave is printed.

    ``failures``: the name of each part with its error; one part may fail for several reasons.
    ``total``: the number of parts, or ``None`` if several calls failed in part. ``done``: what the
    call that ended the command has done.
    """

    def __init__(
        self, failures: Sequence[tuple[str, Exception]], total: int | None, done: Iterable[Any] = ()
    ) -> None:
        super().__init__(failures, total)
        self.failures = failures
        self.total = total
        self.done = done


def fail_later(errors: AdminErrors) -> None:
    """Let the running command fail with these errors when it has printed its answers."""
    _noted().append(errors)


def noted_failures() -> PartlyFailedError | None:
    """Return the failures that were noted since the last call, as one error."""
    errors = list(_noted())
    _noted().clear()
    if not errors:
        return None
    # Two calls about the same part, such as its first and its last offset, often fail alike.
    failures = {(str(key), str(each)): each for one in errors for key, each in one.failures.items()}
    total = len(errors[0].failures) + len(errors[0].results) if len(errors) == 1 else None
    return PartlyFailedError([(key, each) for (key, _), each in failures.items()], total)


def with_noted(error: Exception) -> Exception:
    """Return the error that ends a command, together with the failures noted before it."""
    from ..errors import AdminErrors

    noted = noted_failures()
    if noted is None:
        return error
    if isinstance(error, AdminErrors):
        own: list[tuple[str, Exception]] = [(str(key), e) for key, e in error.failures.items()]
        return PartlyFailedError([*noted.failures, *own], None, error.results)
    return PartlyFailedError([*noted.failures, ("", error)], None)


def noted_errors() -> list[TrikafkaError]:
    """Return each error that is noted."""
    return [error for errors in _noted() for error in errors.failures.values()]


def _noted() -> list[AdminErrors]:
    shared = click.get_current_context().meta
    found: list[AdminErrors] = shared.setdefault(_NOTED, [])
    return found


async def others(call: Awaitable[Mapping[K, V]], *, of: str = "") -> Mapping[K, V]:
    """Return the results of a call, without those of its parts that failed.

    Args:
        call: The admin call.
        of: The thing to whose parts the call is limited, for the names of the failures.

    Raises:
        TrikafkaError: The call gave nothing.
    """
    from ..errors import AdminErrors

    try:
        return await call
    except AdminErrors as errors:
        if not errors.results:
            raise
        named = {f"{of}, {key}" if of else key: each for key, each in errors.failures.items()}
        fail_later(AdminErrors.of(named, errors.results))
        return errors.results


async def whole(call: Awaitable[T]) -> T:
    """Return the results of a call that a command needs as a whole.

    The error does not list what the call gave: these parts would look as if they were done.

    Raises:
        TrikafkaError: The call failed, at least in part.
    """
    from ..errors import AdminErrors

    try:
        return await call
    except AdminErrors as errors:
        raise AdminErrors.of(errors.failures, {}) from errors


async def beside(calls: Mapping[str, Awaitable[Mapping[Any, Any]]]) -> list[Mapping[Any, Any]]:
    """Wait at once for calls without which a command still has something to print.

    Args:
        calls: The admin calls, by their names, which stand before failures of whole calls.

    Returns:
        The results of each call, without those of its parts that failed.
    """
    import trio

    from ..errors import AdminErrors, TrikafkaError

    results: dict[str, Mapping[Any, Any]] = {}
    failed: dict[str, AdminErrors] = {}

    async def one(name: str, call: Awaitable[Mapping[Any, Any]]) -> None:
        try:
            results[name] = await call
        except AdminErrors as errors:
            results[name] = errors.results
            failed[name] = errors
        except TrikafkaError as error:
            results[name] = {}
            failed[name] = AdminErrors.of(error.failures or {name: error}, {})

    async with trio.open_nursery() as nursery:
        for name, call in calls.items():
            nursery.start_soon(one, name, call)
    for name in calls:
        if name in failed:
            fail_later(failed[name])
    return [results[name] for name in calls]


async def changed(
    names: Iterable[K], change: Awaitable[object], excused: type[TrikafkaError] | None = None
) -> list[K]:
    """Wait for a change of several things; return those that were changed.

    Args:
        names: The things.
        change: The admin call.
        excused: Errors that are no failure: another program was quicker.

    Raises:
        TrikafkaError: Nothing was changed.
    """
    from ..errors import AdminErrors, TrikafkaError
    from ..errors.groups import every

    wanted = list(names)
    try:
        await change
    except TrikafkaError as error:
        done: Mapping[Any, Any] = error.results if isinstance(error, AdminErrors) else {}
        if excused is not None and every(error, excused):
            return [name for name in wanted if name in done]
        if not isinstance(error, AdminErrors):
            raise
        failed = {
            key: each
            for key, each in error.failures.items()
            if excused is None or not isinstance(each, excused)
        }
        if not done:
            if len(failed) == len(error.failures):
                raise
            raise AdminErrors.of(failed, {}) from error
        fail_later(AdminErrors.of(failed, done))
        return [name for name in wanted if name in done]
    return wanted


async def each(names: Iterable[K], work: Callable[[K], Awaitable[V]]) -> dict[K, V]:
    """Run ``work`` for all names at once; return the results of those that succeeded.

    Raises:
        TrikafkaError: All failed.
    """
    from .._net.gather import call_each
    from ..errors import AdminErrors

    wanted = list(names)
    results, failures = await call_each(work, wanted, _AT_ONCE)
    if failures:
        if len(wanted) == 1 and not _noted():  # beside others the error needs its name
            raise failures[wanted[0]]
        errors = AdminErrors.of(failures, results)
        if not results:
            raise errors
        fail_later(errors)
    return results


async def every_group(admin: Admin) -> dict[str, GroupListing]:
    """Return the groups of all brokers that answer."""
    from ..errors import AdminErrors

    try:
        found = await admin.list_groups()
    except AdminErrors as errors:
        found = _of_brokers(errors)
    return {group.group_id: group for group in sorted(found, key=lambda group: group.group_id)}


async def named_groups(
    admin: Admin, names: Iterable[str], hints: Mapping[str, str] | None = None
) -> dict[str, GroupListing]:
    """Return groups by their names.

    Args:
        admin: The admin client.
        names: The groups.
        hints: The end of the error for a word that is not a group.

    Raises:
        click.ClickException: There is no such group, or the word for one has a hint.
        AdminErrors: A broker that may have a group failed, or no group exists.
    """
    from difflib import get_close_matches

    from ..errors import AdminErrors

    wanted = list(names)
    failed: AdminErrors | None = None
    try:
        listed = await admin.list_groups()
    except AdminErrors as errors:
        failed = _by_broker(errors)
        listed = [group for found in errors.results.values() for group in found]
    known = {group.group_id: group for group in listed}
    if failed is not None and not known.keys() >= set(wanted):
        raise failed  # the group may be there, on a broker that did not answer
    hinted = [name for name in wanted if name not in known and name in (hints or {})]
    if hinted:
        raise click.ClickException(f"group {hinted[0]!r} does not exist{(hints or {})[hinted[0]]}")
    refused = await _refused(admin.describe_groups, set(wanted) - known.keys())

    def missing(name: str) -> str:
        if name in refused:
            return refused[name]
        near = get_close_matches(name, known, n=1)
        return f"group {name!r} does not exist" + (f"; did you mean {near[0]!r}?" if near else "")

    return {name: known[name] for name in existing(wanted, known, missing)}


async def consumer_groups(
    admin: Admin, names: Iterable[str], verb: str, hints: Mapping[str, str] | None = None
) -> dict[str, GroupListing]:
    """Return groups by their names, as :func:`named_groups`, and note share groups as failures.

    ``verb`` is the subcommand of ``share-groups`` that does the same for them.
    """
    found = await named_groups(admin, names, hints)

    def other(name: str) -> str:
        return f"group {name!r} is a share group: trikafka share-groups {verb} {name}"

    own = {name for name in found if found[name].type != "share"}
    return {name: found[name] for name in existing(found, own, other)}


async def known_topics(
    admin: Admin, names: Iterable[str], *, make: bool = False
) -> tuple[dict[str, list[PartitionInfo]], Callable[[str], str]]:
    """Return all topics, and a function that says why a named one is not among them.

    With ``make``, the function says how to make the topic.
    """
    from ..errors import topic_missing

    known = await admin.list_topics(include_internal=True)
    refused = await _refused(admin.describe_topics, set(names) - known.keys())

    def missing(name: str) -> str:
        return refused[name] if name in refused else topic_missing(name, known, make=make)

    return known, missing


async def _refused(
    describe: Callable[[list[str]], Awaitable[object]], names: Iterable[str]
) -> dict[str, str]:
    """Return those of the names that the user may not see, with the errors that say so.

    A list leaves such things out, as if they did not exist.
    """
    from ..errors import AuthorizationError, TrikafkaError

    failures: Mapping[Any, TrikafkaError] = {}
    if asked := sorted(names):
        try:
            await describe(asked)
        except TrikafkaError as error:
            failures = error.failures
    return {name: str(e) for name, e in failures.items() if isinstance(e, AuthorizationError)}


def existing(
    names: Iterable[str], known: Container[str], missing: Callable[[str], str]
) -> list[str]:
    """Return those of the named things that exist, and note the failures of the others.

    Args:
        names: The things that were asked for.
        known: Those that exist.
        missing: Returns what to say of one that does not.

    Raises:
        click.ClickException: The only one does not exist.
        AdminErrors: None of several exists.
    """
    from ..errors import AdminErrors, TrikafkaError

    wanted = list(dict.fromkeys(names))
    found = [name for name in wanted if name in known]
    failures = {name: TrikafkaError(missing(name)) for name in wanted if name not in known}
    if failures:
        if len(wanted) == 1:
            raise click.ClickException(missing(wanted[0]))
        errors = AdminErrors.of(failures, dict.fromkeys(found))
        if not found:
            raise errors
        fail_later(errors)
    return found


def led(
    partitions: Iterable[TopicPartition], topics: Mapping[str, list[PartitionInfo]]
) -> list[TopicPartition]:
    """Return those of the partitions that have a leader, and note the failures of the others.

    An admin client would wait for a leader. That of a broker that is down may not come for hours.

    Raises:
        AdminErrors: No partition has a leader.
        click.ClickException: The only one has none.
    """
    lost = without_leader(topics)
    wanted = list(partitions)
    named = {str(tp): tp for tp in wanted}
    there = existing(named, {str(tp) for tp in wanted if tp not in lost}, no_leader)
    return [named[name] for name in there]


def without_leader(topics: Mapping[str, Iterable[PartitionInfo]]) -> set[TopicPartition]:
    """Return those of the topics' partitions that have no leader."""
    from ..types import TopicPartition

    return {
        TopicPartition(info.topic, info.partition)
        for infos in topics.values()
        for info in infos
        if info.leader is None
    }


async def log_ends(admin: Admin, places: Iterable[TopicPartition]) -> Mapping[Any, ListedOffset]:
    """Return the ends of those partitions that have a leader, and note the failures.

    An admin client would wait for a leader.
    """
    from ..types import OffsetSpec, TopicPartition

    wanted = list(places)
    topics = await admin.list_topics(include_internal=True) if wanted else {}
    alive = {
        TopicPartition(info.topic, info.partition)
        for infos in topics.values()
        for info in infos
        if info.leader is not None
    }
    latest = dict.fromkeys([tp for tp in wanted if tp in alive], OffsetSpec.LATEST)
    (ends,) = await beside({"end offsets": admin.list_offsets(latest)})
    return ends


def no_leader(name: str) -> str:
    """Return what to say of a partition without a leader."""
    return f"{name}: no leader at the moment; see: trikafka cluster health"


async def every_transaction(admin: Admin, **filters: Any) -> list[TransactionListing]:
    """Return the transactional ids of all brokers that answer."""
    from ..errors import AdminErrors

    try:
        return await admin.list_transactions(**filters)
    except AdminErrors as errors:
        return sorted(_of_brokers(errors), key=lambda found: found.transactional_id)


def _of_brokers(errors: AdminErrors) -> list[Any]:
    """Return what other brokers listed, and note the failures; raise them if no broker answered."""
    named = _by_broker(errors)
    if not named.results:
        raise named
    fail_later(named)
    return [one for listed in named.results.values() for one in listed]


def _by_broker(errors: AdminErrors) -> AdminErrors:
    """Return errors whose keys are brokers' numbers with keys that say so."""
    failures = {f"broker {number}": error for number, error in errors.failures.items()}
    results = {f"broker {number}": listed for number, listed in errors.results.items()}
    return type(errors).of(failures, results)
