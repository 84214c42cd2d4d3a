"""The guard around a plugin's object: its failures name it, and it keeps a call's limit.

Only objects of plugins are guarded; trikafka's own managers are called directly. A
:class:`PluginProxy` shows only the members of the contract, so that no other member can be relied
upon.

* An error that is not trikafka's becomes a :exc:`PluginError` with plugin, slot and method; the
  cause is chained.
* A method that is async where the contract has a plain function, or the other way round, is such an
  error, too. That the object has all members of the contract is checked when the client opens.
* A result of another class is such an error where it would fail elsewhere (:data:`_RESULTS`).
* A ``run`` that returns, or raises, ends the client with such an error.
* ``commit``, ``committed``, the calls of transactions and ``bootstrap`` are whole API calls: they
  are cut a moment after their limit. ``look_up`` and ``fetch_once`` receive a call, and are a step
  of it. All other methods run inside a step: when its limit passes, the error names what it waited
  for.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, NoReturn, TypeVar, get_args
from uuid import UUID

import trio

from ..._net import reasons
from ..._net.deadlines import GRACE
from ..._state.assignors import Assignment, Assignor, MemberSubscription
from ...config.whole import whole
from ...errors import KafkaTimeoutError, PluginError, RequestTimedOutError, TrikafkaError
from ...errors.counts import counted
from ...errors.groups import unwrapped
from ...hooks import members_of, renamed_member
from ...interfaces import (
    Call,
    ClusterSnapshot,
    LastAssignment,
    Partitioner,
    RebalanceListener,
    RecordAccumulator,
    TopicInfo,
)
from ...types import Node, TopicPartition

_log = logging.getLogger("trikafka.plugins")
Shape = TypeVar("Shape")
#: A manager that keeps its own limit has this many seconds beyond it to raise its own error.
_PATIENCE = 2 * GRACE
#: The methods that are whole API calls, with the call's name where it differs.
_CALLS: dict[tuple[str, str], str] = {
    ("commit", "commit"): "",
    ("commit", "committed"): "",
    ("metadata", "bootstrap"): "open",
    ("transactions", "initialize"): "open",
    ("transactions", "begin"): "transaction",
    ("transactions", "send_offsets"): "",
    ("transactions", "prepare"): "",
    ("transactions", "commit"): "",
    ("transactions", "abort"): "",
    ("share_fetch", "flush"): "",
    ("telemetry", "client_instance_id"): "",
    ("share_fetch", "settled"): "acknowledged",
}
_FAULT = Exception | None
#: The class of each result that, if it were wrong, would fail far from the plugin, in code that does
#: not know it. Other results are opaque, or fail at the caller.
_RESULTS: dict[tuple[str, str], Any] = {
    ("metadata", "snapshot"): ClusterSnapshot,
    ("metadata", "changed"): ClusterSnapshot,
    ("metadata", "refresh"): ClusterSnapshot,
    ("metadata", "topic"): TopicInfo | None,
    ("coordinator", "find"): Node,
    ("offsets", "look_up"): Mapping,
    ("commit", "committed"): Mapping,
    ("commit", "fetch_once"): Mapping,
    ("positions", "last_error"): _FAULT,
    ("membership", "fatal"): _FAULT,
    ("produce", "accumulator"): RecordAccumulator,
    ("produce", "append"): Callable,
    ("produce", "drop"): bool | None,
    ("share_membership", "fatal"): _FAULT,
    ("share_membership", "member_id"): str,
    ("telemetry", "client_instance_id"): UUID,
}
#: The consequence of a cut-off call by which a client leaves; its outcome is not known.
_LAST = {
    "leave": "the group may not have been notified",
    "finish": "a transaction may be open until it times out",
    "close": "acknowledgements may be missing, and the records are delivered again",
    "push_last": "the last metrics may be missing",
}
#: After so many calls in a row that fail no batch although some are left, ``drop`` is not called
#: again.
_VAIN_DROPS = 100
#: What tasks inside a plugin may raise at the client's end.
_ENDS = (trio.ClosedResourceError, trio.WouldBlock)


class PluginSlot:
    """A plugin in its slot; makes the errors that name both."""

    def __init__(
        self, plugin: str, kind: str, default_limit: float, closing: Callable[[], bool]
    ) -> None:
        self.kind = kind
        self.default_limit = default_limit  # seconds, of an API call without a timeout
        self.closing = closing
        self._plugin = plugin

    def name(self, method: str) -> str:
        """Return the name of a method, with the plugin."""
        return f"plugin {self._plugin}: {self.kind}.{method}"

    def result(self, method: str, value: Any) -> Any:
        """Return what a method has returned.

        Raises :exc:`PluginError` if it is of another class than the contract has.
        """
        kind = _RESULTS.get((self.kind, method))
        if kind is None or isinstance(value, kind):
            return value
        wanted = " or ".join(
            "None" if each is NoneType else each.__name__ for each in get_args(kind) or (kind,)
        )
        raise PluginError(f"{self.name(method)} returned {_short(value)}, not {wanted}")

    def failed(self, method: str, error: BaseException) -> NoReturn:
        """Raise the :exc:`PluginError` for an error of a method."""
        raise PluginError(f"{self.name(method)} failed: {unwrapped(error)!r}") from error


class PluginProxy:
    """The stand-in for a plugin's object; see the module."""

    def __init__(self, thing: object, shape: type, slot: PluginSlot) -> None:
        self._thing = thing
        self._slot = slot
        self._shape = shape
        for name in members_of(shape):
            promised = inspect.getattr_static(shape, name, None)
            if inspect.iscoroutinefunction(promised):
                setattr(self, name, _async_method(thing, name, slot))
            elif inspect.isfunction(promised):
                setattr(self, name, _plain_method(thing, name, slot))
        if slot.kind == "produce":
            self.drop = _bounded_drop(self, _plain_method(thing, "drop", slot), slot)

    def __repr__(self) -> str:
        return f"<{self._slot.name('')[:-1]}, {self._thing!r}>"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute or property of the contract."""
        if name.startswith("_") or name not in members_of(self._shape):
            try:
                return renamed_member(self, self._shape, name)
            except AttributeError:
                text = f"{name!r} is not part of the contract {self._shape.__name__}"
                raise AttributeError(text) from None
        try:
            value = getattr(self._thing, name)
        except TrikafkaError:
            raise
        except Exception as error:
            self._slot.failed(name, error)
        # The error of an overdue position is taken from here.
        if value is None and (self._slot.kind, name) == ("positions", "last_error"):
            return RequestTimedOutError(
                f"{self._slot.name('run')} has not located the partition so far"
            )
        return self._slot.result(name, value)


def guarded(thing: object, shape: type[Shape], slot: PluginSlot) -> Shape:
    """Return ``thing`` guarded: with the members of ``shape`` and no others."""
    guard: Any = PluginProxy(thing, shape, slot)
    return guard  # type: ignore[no-any-return]


def guarded_assignor(thing: Assignor, slot: PluginSlot) -> Assignor:
    """Return an assignor whose failures name it; its other members remain visible."""

    class Guarded:
        def __init__(self) -> None:
            # An attribute of its own: `isinstance` with a Protocol finds no other from Python 3.12
            # on.
            if getattr(thing, "user_data", None) is not None:
                self.user_data = self._user_data

        def __getattr__(self, name: str) -> Any:
            return getattr(thing, name)

        def assign(
            self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, Sequence[int]]
        ) -> Assignment:
            # The plugin gets a mapping of its own: the answer is checked against the members.
            answer = assign(dict(members), partitions)
            return _checked_assignment(answer, members, partitions, slot)

        def _user_data(self, topics: frozenset[str], last: LastAssignment | None) -> bytes | None:
            made = user_data(topics, last)
            if made is None or isinstance(made, bytes):
                return made
            raise PluginError(
                f"{slot.name('user_data')} returned {_short(made)}, which is neither bytes nor None"
            )

    user_data = _plain_method(thing, "user_data", slot, passed=(TrikafkaError,))
    assign = _plain_method(thing, "assign", slot, passed=(TrikafkaError,))
    made: Any = Guarded()
    return made  # type: ignore[no-any-return]


def _checked_assignment(
    answer: Any,
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[str, Sequence[int]],
    slot: PluginSlot,
) -> Assignment:
    """Return the assignment of a plugin's assignor, as lists.

    Raises :exc:`PluginError` if members cannot adopt it. A member without an entry would wait in
    the group with nothing, and unnoticed. A member with a partition of a topic that it does not
    subscribe to joins again, and so the whole group, for ever. Partitions may be left out.
    """

    def wrong(text: str) -> PluginError:
        return PluginError(f"{slot.name('assign')} returned {text}")

    if not isinstance(answer, Mapping):
        raise wrong(f"{_short(answer)}, which is not a mapping of member ids to partitions")
    if unknown := [member for member in answer if member not in members]:
        raise wrong(f"partitions for {_short(unknown[0])}, which is not a member of the group")
    if missing := [member for member in members if member not in answer]:
        raise wrong(
            f"nothing for the member {missing[0]!r}; one that gets no partitions has an empty list"
        )
    owners: dict[TopicPartition, str] = {}
    made: Assignment = {}
    for member, mine in answer.items():
        if isinstance(mine, str | bytes) or not isinstance(mine, Iterable):
            raise wrong(
                f"{_short(mine)} for the member {member!r}, which is not a list of partitions"
            )
        made[member] = [_checked_partition(tp, member, wrong) for tp in mine]
        for tp in made[member]:
            if tp.partition not in partitions.get(tp.topic, ()):
                raise wrong(f"{tp} for the member {member!r}: there is no such partition to assign")
            if tp.topic not in members[member].topics:
                raise wrong(
                    f"{tp} for the member {member!r}, which does not subscribe to {tp.topic!r}"
                )
            if tp in owners:
                twice = "twice" if owners[tp] == member else f"and for {owners[tp]!r}, too"
                raise wrong(f"{tp} for the member {member!r} {twice}")
            owners[tp] = member
    return made


def _checked_partition(
    tp: object, member: str, wrong: Callable[[str], PluginError]
) -> TopicPartition:
    if isinstance(tp, tuple) and len(tp) == 2 and isinstance(tp[0], str) and type(tp[1]) is int:
        return TopicPartition(*tp)
    raise wrong(f"{_short(tp)} for the member {member!r}, which is no TopicPartition")


def guarded_partitioner(choose: Partitioner, name: str) -> Partitioner:
    """Return a partitioner whose failures name it.

    Called for every record, so it does as little as possible.
    """

    def partitioner(topic: str, key: bytes | None, numbers: Sequence[int]) -> int:
        try:
            number = choose(topic, key, numbers)
        except TrikafkaError:
            raise
        except Exception as error:
            raise PluginError(f"{name} failed: {error!r}") from error
        if type(number) is not int:
            number = whole(number)
        if type(number) is int and number in numbers:
            return number
        if inspect.iscoroutine(number):
            number.close()
            raise PluginError(f"{name} is async, and has to be a plain function")
        raise PluginError(
            f"{name} chose {_short(number)} of {counted(len(numbers), 'partition')} of {topic!r}"
        )

    return partitioner


class GuardedListener(RebalanceListener):
    """A plugin's rebalance listener whose failures name it."""

    # A listener's errors reach the user's receive. There WouldBlock means that no record is ready,
    # and ClosedResourceError that the consumer is closed. Those of the listener's own channels mean
    # something else, so they are failures as well.
    def __init__(self, listener: RebalanceListener, slot: PluginSlot) -> None:
        # Not the plugin's own representation: it may have a password, and this one is logged.
        self._name = f"<{slot.name('')[:-1]}, {type(listener).__name__}>"
        self._assigned = _async_method(
            listener, "on_partitions_assigned", slot, passed=(TrikafkaError,)
        )
        self._revoked = _async_method(
            listener, "on_partitions_revoked", slot, passed=(TrikafkaError,)
        )
        self._lost = _async_method(listener, "on_partitions_lost", slot, passed=(TrikafkaError,))

    def __repr__(self) -> str:
        return self._name

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self._assigned(partitions)

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._revoked(partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._lost(partitions)


def _plain_method(
    thing: object,
    name: str,
    slot: PluginSlot,
    passed: tuple[type[Exception], ...] = (TrikafkaError, *_ENDS),
) -> Callable[..., Any]:
    """Return a guarded plain method; errors of ``passed`` are raised unchanged."""

    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            result = getattr(thing, name)(*args, **kwargs)
        except passed:
            raise
        except Exception as error:
            slot.failed(name, error)
        if inspect.iscoroutine(result):
            result.close()
            raise PluginError(f"{slot.name(name)} is async, and has to be a plain function")
        return slot.result(name, result)

    return method


def _bounded_drop(manager: Any, drop: Callable[..., bool], slot: PluginSlot) -> Callable[..., bool]:
    """Return ``drop`` with a bound on the calls that fail no batch.

    The close of a producer repeats ``drop`` while the result is True, shielded from cancellations.
    """
    least = vain = 0

    def method(*args: Any, **kwargs: Any) -> bool:
        nonlocal least, vain
        if not drop(*args, **kwargs):
            vain = 0
            return False
        left = len(manager.accumulator.unsettled())
        vain = vain + 1 if vain and left >= least else 1
        least = min(least, left) if vain > 1 else left
        if vain < _VAIN_DROPS:
            return True
        vain = 0
        _log.error(
            "%s has returned True %d times and failed no batch: it is not called again, and %d "
            "batches may never have an outcome",
            slot.name("drop"),
            _VAIN_DROPS,
            left,
        )
        return False

    return method


def _async_method(
    thing: object,
    name: str,
    slot: PluginSlot,
    passed: tuple[type[Exception], ...] = (TrikafkaError, *_ENDS),
) -> Callable[..., Awaitable[Any]]:
    """Return a guarded async method; errors of ``passed`` are raised unchanged."""

    async def step(*args: Any, **kwargs: Any) -> Any:
        try:
            result = await _awaited(getattr(thing, name)(*args, **kwargs), name, slot)
            return slot.result(name, result)
        except passed:
            raise
        except Exception as error:
            single = unwrapped(error)  # of a nursery with one failed task
            if isinstance(single, passed):
                raise single from single.__cause__
            slot.failed(name, error)
        # The group of a nursery that was cancelled while something else failed in it.
        except BaseExceptionGroup as group:
            failed = group.subgroup(Exception)
            if failed is None or group.subgroup((KeyboardInterrupt, SystemExit)) is not None:
                raise
            slot.failed(name, failed)

    if name == "run":
        return _Run(step, slot)
    if name in ("look_up", "fetch_once"):
        return functools.partial(_attempt, step, slot, name)
    if (slot.kind, name) in _CALLS:
        return functools.partial(_call, step, slot, name)
    return functools.partial(_noted, step, slot, name)


async def _awaited(result: Any, name: str, slot: PluginSlot) -> Any:
    if not inspect.isawaitable(result):
        raise PluginError(f"{slot.name(name)} is a plain function, and has to be async")
    return await result


async def _noted(
    step: Callable[..., Awaitable[Any]], slot: PluginSlot, name: str, /, *args: Any, **kwargs: Any
) -> Any:
    """Run a step of a call or of the background work; note what it waits for."""
    with reasons.reasoning():
        reasons.waiting_for(slot.name(name))
        try:
            return await step(*args, **kwargs)
        except trio.Cancelled:
            if name in _LAST:
                _log.warning("%s was cut off: %s", slot.name(name), _LAST[name])
            raise


async def _attempt(
    step: Callable[..., Awaitable[Any]],
    slot: PluginSlot,
    name: str,
    call: Call,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a whole attempt as a step of its call, even if the plugin makes none of it."""
    return await call.step(slot.name(name), lambda: step(call, *args, **kwargs))


async def _call(
    step: Callable[..., Awaitable[Any]], slot: PluginSlot, name: str, /, *args: Any, **kwargs: Any
) -> Any:
    """Run a whole API call: within its limit, and a moment more to raise its own error."""
    given = kwargs.get("timeout")
    limit = slot.default_limit if given is None else given
    with trio.move_on_after(limit + _PATIENCE):
        return await step(*args, **kwargs)
    stuck = RequestTimedOutError(f"{slot.name(name)} did not return")
    call = _CALLS[slot.kind, name] or kwargs.get("name", name)
    raise KafkaTimeoutError(call, limit, 1, stuck) from stuck


class _Run:
    """The background work of a plugin's manager; the name of its task is the plugin's."""

    def __init__(self, step: Callable[..., Awaitable[Any]], slot: PluginSlot) -> None:
        self.__module__ = "trikafka"
        self.__qualname__ = slot.name("run")
        self._step = step
        self._slot = slot

    async def __call__(self, *args: Any, **kwargs: Any) -> None:
        await _run(self._step, self._slot, *args, **kwargs)


async def _run(
    step: Callable[..., Awaitable[Any]], slot: PluginSlot, /, *args: Any, **kwargs: Any
) -> None:
    """Run the background work until it is cancelled, or the client closes.

    A heartbeat's work may also end when the member is fenced.
    """
    over = False
    if slot.kind == "heartbeat":
        rejoin, fenced = args

        def fenced_once(error: TrikafkaError) -> None:
            nonlocal over
            over = True
            fenced(error)

        args = (rejoin, fenced_once)
    try:
        await step(*args, **kwargs)
    except PluginError:
        raise
    except TrikafkaError as error:
        slot.failed("run", error)
    except _ENDS as error:
        if slot.closing():
            raise
        slot.failed("run", error)
    if not over and not slot.closing():
        raise PluginError(f"{slot.name('run')} returned, and has to go on until it is cancelled")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
