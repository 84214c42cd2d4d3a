"""What stands between the client and a plugin's object: its failures name it, a hanging one keeps the call's limit.

Only what a plugin brings is guarded; trikafka's own managers are called directly. A :class:`Guard` shows nothing of the object but
the members of its contract, so that nothing else can be relied upon.

* What is not an error of trikafka's becomes a :exc:`PluginError` that names plugin, seat and method, with the cause chained.
* What is returned is looked at: something of another type is such an error, too.
* A ``run`` that returns, or raises, ends the client with such an error.
* ``commit``, ``committed`` and the calls of transactions, which are whole API calls, and ``bootstrap`` are cut a moment after their
  limit. ``look_up`` and ``fetch_once``, which are handed a call, are a step of it. Anything else is called inside a step: what
  that was waiting for is noted, and so told when its limit has passed.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeVar, get_type_hints

import trio

from .._net import reasons
from .._net.deadlines import GRACE
from .._state.assignors import Assignor
from ..errors import KafkaTimeoutError, PluginError, RequestTimedOutError, TrikafkaError
from ..hooks import members_of
from ..interfaces import Call, Partitioner, RebalanceListener
from ..types import TopicPartition
from .matching import describe, matches

_log = logging.getLogger("trikafka.plugins")
Shape = TypeVar("Shape")
#: A manager that keeps to its own limit is given this much (seconds) beyond it, to say itself what went wrong.
_PATIENCE = 2 * GRACE
#: The methods that are whole API calls, with the names of those where they have another.
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
}
#: What is not known when one of the last calls of a client's life was cut off.
_LAST = {"leave": "the group may not have been told", "finish": "a transaction may be open until it times out"}
#: What a client's end looks like to those who wait inside it.
_ENDS = (trio.ClosedResourceError, trio.WouldBlock)


class Seat:
    """A plugin in its seat: makes the errors that name both."""

    def __init__(self, plugin: str, kind: str, default_limit: float, closing: Callable[[], bool]) -> None:
        self.kind = kind
        self.default_limit = default_limit  # seconds, of an API call without a timeout
        self.closing = closing
        self._plugin = plugin

    def name(self, method: str) -> str:
        """Whose method it is."""
        return f"plugin {self._plugin}: {self.kind}.{method}"

    def failed(self, method: str, error: BaseException) -> NoReturn:
        """Raise the error that says that ``error`` came out of a method."""
        cause = _single(error)
        raise PluginError(f"{self.name(method)} failed: {cause!r}") from error

    def checked(self, method: str, result: Any, hint: Any) -> Any:
        """``result``, if it is what the contract promises. Raises :exc:`PluginError`."""
        if inspect.iscoroutine(result):
            result.close()
            raise PluginError(f"{self.name(method)} is async, and has to be a plain function")
        try:
            fits = matches(result, hint)
        except Exception as error:  # it was asked for a member, and failed
            self.failed(method, error)
        if not fits:
            raise PluginError(f"{self.name(method)} returned {_short(result)}, which is no {describe(hint)}")
        return result


class Guard:
    """Stands for a plugin's object. See the module."""

    def __init__(self, thing: object, shape: type, seat: Seat) -> None:
        self._thing, self._seat, self._shape = thing, seat, shape
        self._last: dict[str, object] = {}  # attributes as they were last found right
        for name in members_of(shape):
            promised = inspect.getattr_static(shape, name, None)
            if inspect.iscoroutinefunction(promised):
                setattr(self, name, _async_method(thing, name, promised, seat))
            elif inspect.isfunction(promised):
                setattr(self, name, _plain_method(thing, name, promised, seat))

    def __repr__(self) -> str:
        return f"<{self._seat.name('')[:-1]}, {self._thing!r}>"

    def __getattr__(self, name: str) -> Any:
        """An attribute or property of the contract."""
        if name.startswith("_") or name not in members_of(self._shape):
            raise AttributeError(f"{name!r} is not part of the contract {self._shape.__name__}")
        try:
            value = getattr(self._thing, name)
        except TrikafkaError:
            raise
        except Exception as error:
            self._seat.failed(name, error)
        if value is not self._last.get(name, self):
            self._last[name] = self._seat.checked(name, value, _attribute_hint(self._shape, name))
        if value is None and (self._seat.kind, name) == ("positions", "last_error"):  # asked for where a position is overdue
            return RequestTimedOutError(f"{self._seat.name('run')} has not located the partition so far")
        return value


def guarded(thing: object, shape: type[Shape], seat: Seat) -> Shape:
    """``thing``, guarded: it has the members of ``shape`` and no others."""
    guard: Any = Guard(thing, shape, seat)
    return guard  # type: ignore[no-any-return]


def guarded_assignor(thing: Assignor, seat: Seat) -> Assignor:
    """An assignor whose failures name it; what it offers beside the contract stays visible."""

    class Guarded:
        def __getattr__(self, name: str) -> Any:
            return getattr(thing, name)

        def assign(self, *args: Any) -> Any:
            return assign(*args)

    assign = _plain_method(thing, "assign", Assignor.assign, seat)
    made: Any = Guarded()
    return made  # type: ignore[no-any-return]


def guarded_partitioner(choose: Partitioner, name: str) -> Partitioner:
    """A partitioner whose failures name it. Called for every record: as little as that takes."""

    def partitioner(topic: str, key: bytes | None, numbers: Sequence[int]) -> int:
        try:
            number = choose(topic, key, numbers)
        except TrikafkaError:
            raise
        except Exception as error:
            raise PluginError(f"{name} failed: {error!r}") from error
        if type(number) is int and number in numbers:
            return number
        raise PluginError(f"{name} chose {_short(number)} of {len(numbers)} partitions of {topic!r}")

    return partitioner


class GuardedListener(RebalanceListener):
    """A plugin's rebalance listener, whose failures name it."""

    def __init__(self, listener: RebalanceListener, seat: Seat) -> None:
        self._assigned = _async_method(listener, "on_partitions_assigned", None, seat)
        self._revoked = _async_method(listener, "on_partitions_revoked", None, seat)
        self._lost = _async_method(listener, "on_partitions_lost", None, seat)

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self._assigned(partitions)

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._revoked(partitions)

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self._lost(partitions)


def _plain_method(thing: object, name: str, promised: Any, seat: Seat) -> Callable[..., Any]:
    hint = _return_hint(promised)

    def method(*args: Any, **kwargs: Any) -> Any:
        try:
            result = getattr(thing, name)(*args, **kwargs)
        except (TrikafkaError, *_ENDS):
            raise
        except Exception as error:
            seat.failed(name, error)
        return seat.checked(name, result, hint)

    return method


def _async_method(thing: object, name: str, promised: Any, seat: Seat) -> Callable[..., Awaitable[Any]]:
    hint = _return_hint(promised)

    async def step(*args: Any, **kwargs: Any) -> Any:
        try:
            result = await _awaited(getattr(thing, name)(*args, **kwargs), name, seat)
        except (TrikafkaError, *_ENDS):
            raise
        except Exception as error:
            seat.failed(name, error)
        except BaseExceptionGroup as group:  # of a nursery in it, cancelled while something else failed there
            failed = group.subgroup(Exception)
            if failed is None or group.subgroup((KeyboardInterrupt, SystemExit)) is not None:
                raise
            seat.failed(name, failed)
        return seat.checked(name, result, hint)

    if name == "run":
        return functools.partial(_run, step, seat)
    if name in ("look_up", "fetch_once"):
        return functools.partial(_attempt, step, seat, name)
    if (seat.kind, name) in _CALLS:
        return functools.partial(_call, step, seat, name)
    return functools.partial(_noted, step, seat, name)


async def _awaited(result: Any, name: str, seat: Seat) -> Any:
    if not inspect.isawaitable(result):
        raise PluginError(f"{seat.name(name)} is a plain function, and has to be async")
    return await result


async def _noted(step: Callable[..., Awaitable[Any]], seat: Seat, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """A step of a call, or of the background work: if it is cut, it is known what was waited for."""
    with reasons.reasoning():
        reasons.waiting_for(seat.name(name))
        try:
            return await step(*args, **kwargs)
        except trio.Cancelled:
            if name in _LAST:
                _log.warning("%s was cut off: %s", seat.name(name), _LAST[name])
            raise


async def _attempt(step: Callable[..., Awaitable[Any]], seat: Seat, name: str, call: Call, /, *args: Any, **kwargs: Any) -> Any:
    """A whole attempt of a call, handed the call: it is a step of that, whether it keeps to that itself or not."""
    return await call.step(seat.name(name), lambda: step(call, *args, **kwargs))


async def _call(step: Callable[..., Awaitable[Any]], seat: Seat, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """A whole API call: it has its limit, and a moment more to keep it by itself."""
    given = kwargs.get("timeout")
    limit = seat.default_limit if given is None else given
    with trio.move_on_after(limit + _PATIENCE):
        return await step(*args, **kwargs)
    stuck = RequestTimedOutError(f"{seat.name(name)} did not return")
    call = _CALLS[seat.kind, name] or kwargs.get("name", name)
    raise KafkaTimeoutError(call, limit, 1, stuck) from stuck


async def _run(step: Callable[..., Awaitable[Any]], seat: Seat, /, *args: Any, **kwargs: Any) -> None:
    """The background work: it goes on until it is cancelled, or the client closes (a heartbeat's: until it is fenced)."""
    over = False
    if seat.kind == "heartbeat":
        rejoin, fenced = args

        def put_out(error: TrikafkaError) -> None:
            nonlocal over
            over = True
            fenced(error)

        args = (rejoin, put_out)
    try:
        await step(*args, **kwargs)
    except PluginError:
        raise
    except TrikafkaError as error:
        seat.failed("run", error)
    except _ENDS as error:
        if seat.closing():
            raise
        seat.failed("run", error)
    if not over and not seat.closing():
        raise PluginError(f"{seat.name('run')} returned, and has to go on until it is cancelled")


@functools.cache
def _return_hint(promised: Any) -> Any:
    try:
        return get_type_hints(promised).get("return", Any) if promised is not None else Any
    except NameError:  # named for type checkers only
        return Any


@functools.cache
def _attribute_hint(shape: type, name: str) -> Any:
    promised = inspect.getattr_static(shape, name, None)
    if isinstance(promised, property):
        return _return_hint(promised.fget)
    return get_type_hints(shape).get(name, Any)


def _single(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
