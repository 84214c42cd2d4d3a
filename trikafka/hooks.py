"""The hooks that plugins implement, and how plugins are found and checked.

A hook is a synchronous *factory*: it is called when a client opens (or an export begins) and returns an object that meets a
Protocol of :mod:`trikafka.interfaces`, or ``None`` when it has nothing to say. No hook is called for a record or a receive. What
trikafka itself uses is registered as a plugin of the same kind, behind all others.

Plugins come from the entry-point group ``trikafka`` and from the setting ``plugins=[...]``. What is wrong with one is said here,
at opening, by a :exc:`~trikafka.errors.PluginError` that names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from .config import ClientConfig
from .errors import PluginError, TrikafkaError
from .interfaces import (
    BatchSink,
    ClientContext,
    ConnectionObserver,
    ManagerKind,
    MembershipObserver,
    Observer,
    ProducerObserver,
    RebalanceListener,
    Sink,
)
from .types import Node

PROJECT = "trikafka"
ENTRY_POINT_GROUP = "trikafka"
#: The name, as errors have it, of the plugin that trikafka itself is.
BUILTIN = repr("trikafka")

hookspec = pluggy.HookspecMarker(PROJECT)
#: Marks a function or method as a hook's implementation.
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """Every hook, with the arguments that it is called with. Implementations may leave out arguments that they do not need."""

    @hookspec(firstresult=True)
    def trikafka_request_manager(self, kind: ManagerKind, context: ClientContext) -> object | None:
        """Replace the request manager of ``kind``; the answer must meet the Protocol of that kind. The first answer counts."""

    @hookspec
    def trikafka_rebalance_listener(self, context: ClientContext) -> RebalanceListener | None:
        """Be told of rebalances of this consumer: all listeners are, in order of registration, reversed on revoke."""

    @hookspec(firstresult=True)
    def trikafka_sink(self, scheme: str, options: Mapping[str, Any]) -> Sink | BatchSink | None:
        """Answer for destinations with this ``scheme``: a ``Sink`` for exports, a ``BatchSink`` for what consumers hand over
        (:func:`trikafka.sink_batches`), or what is both. The first answer counts."""

    @hookspec
    def trikafka_sink_options(self, scheme: str) -> Collection[str] | None:
        """Name the options that sinks for ``scheme`` have: who gives one of them to an export as a setting is told where it goes.

        Asked only about a setting that no client has; the names of all plugins count.
        """

    @hookspec(firstresult=True)
    def trikafka_assignor(self, name: str) -> object | None:
        """Offer the assignor of this name (``partition_assignment_strategy``). The first answer counts."""

    @hookspec(firstresult=True)
    def trikafka_partitioner(self, name: str) -> object | None:
        """Offer the partitioner of this name (``partitioner``): ``(topic, key, partition numbers) -> number``."""

    @hookspec(firstresult=True)
    def trikafka_sasl(self, mechanism: str, config: ClientConfig) -> Callable[[Node], object] | None:
        """Offer the SASL mechanism of this name: a function, async or not, of the broker's node, called at each authentication.

        It returns an object with ``first() -> bytes`` and ``respond(challenge: bytes) -> bytes | None`` (``None``: done), async
        or not.
        """

    @hookspec
    def trikafka_observer(self, context: ClientContext) -> Observer | None:
        """Watch this client: told when it opens, when a background task fails, and when it closes; a
        :class:`~trikafka.interfaces.ProducerObserver` of a producer's batches, a
        :class:`~trikafka.interfaces.MembershipObserver` of what becomes of a group's member, too."""


def load_plugins(extra: Iterable[object] = (), builtin: object | None = None) -> pluggy.PluginManager:
    """Find, check and register all plugins. Raises :exc:`PluginError` that names the one that is wrong."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    if builtin is not None:
        _register(manager, builtin, "trikafka")
    for point in _entry_points():
        _register(manager, _load(point), point.name)
    for plugin in extra:
        _register(manager, plugin, None)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"plugin {_name(error.plugin)} is wrong: {error}") from error
    return manager


def call_first(manager: pluggy.PluginManager, hook: str, shape: type | None = None, **arguments: object) -> Any:
    """Call a hook whose first answer counts; check the answer's shape. Raises :exc:`PluginError`."""
    found = first_answer(manager, hook, shape, **arguments)
    return None if found is None else found[1]


def first_answer(
    manager: pluggy.PluginManager, hook: str, shape: type | None = None, **arguments: object
) -> tuple[str, Any] | None:
    """As :func:`call_first`; with the name of the plugin whose answer it is, as errors have it."""
    found = _answers(manager, hook, arguments, first=True)
    return (found[0][0], _checked(found[0], hook, shape)) if found else None


def answers(manager: pluggy.PluginManager, hook: str, shape: type, **arguments: object) -> list[tuple[str, Any]]:
    """Call a hook whose answers all count, in order of registration, each with its plugin's name; check their shape.

    Raises :exc:`PluginError`.
    """
    return [(found[0], _checked(found, hook, shape)) for found in _answers(manager, hook, arguments, first=False)]


def missing_members(thing: object, shape: type) -> list[str]:
    """The names that ``shape`` (a Protocol, or a class of methods) asks for and ``thing`` does not have."""
    return sorted(name for name in members_of(shape) if not _has(thing, name, shape))


def plain_methods(thing: object, shape: type) -> list[str]:
    """The methods that ``shape`` has as ``async def`` and ``thing`` as plain functions: a call would be too late to find out."""
    names = [name for name in members_of(shape) if inspect.iscoroutinefunction(getattr(shape, name, None))]
    found = {name: getattr(thing, name, None) for name in names}
    plain = {name for name, method in found.items() if inspect.isfunction(method) or inspect.ismethod(method)}
    return sorted(name for name in plain if not inspect.iscoroutinefunction(inspect.unwrap(found[name])))  # type: ignore[arg-type]


def _answers(manager: pluggy.PluginManager, hook: str, arguments: dict[str, object], *, first: bool) -> list[tuple[str, object]]:
    """The answers, each with the name of its plugin: the first of all, or all in order of registration.

    pluggy would call them just so, and not tell whose answer is whose. The last registered is called first.
    """
    found: list[tuple[str, object]] = []
    for implementation in reversed(getattr(manager.hook, hook).get_hookimpls()):
        name = _name(implementation.plugin, implementation.plugin_name)
        try:
            answer = implementation.function(*(arguments[argument] for argument in implementation.argnames))
        except TrikafkaError:
            raise
        except Exception as error:
            raise PluginError(f"plugin {name}: {hook} failed: {error!r}") from error
        if answer is not None:
            found.append((name, answer))
            if first:
                break
    return found[::-1]


def _checked(given: tuple[str, object], hook: str, shape: type | None) -> Any:
    name, answer = given
    if inspect.iscoroutine(answer):
        answer.close()
        raise PluginError(f"plugin {name}: {hook} is async; a hook is a plain function that returns an object")
    if shape is not None and (missing := missing_members(answer, shape)):
        raise PluginError(
            f"plugin {name}: {hook} returned {type(answer).__name__}, which is no {shape.__name__}: it has no {', '.join(missing)}"
        )
    if shape is RebalanceListener and (plain := plain_methods(answer, shape)):
        raise PluginError(f"plugin {name}: {hook} returned {answer!r}, of which {', '.join(plain)} must be `async def`")
    watching = (ProducerObserver, ConnectionObserver, MembershipObserver)
    points = frozenset[str]().union(*map(members_of, watching)) if shape is Observer else ()
    if waits := [one for one in points if inspect.iscoroutinefunction(getattr(answer, one, None))]:
        raise PluginError(f"plugin {name}: {hook} returned {answer!r}, of which {', '.join(sorted(waits))} must be plain functions")
    return answer


def _has(thing: object, name: str, shape: type) -> bool:
    try:
        value = getattr(thing, name)
    except AttributeError:
        return False
    except Exception:  # it has it; what is wrong with it is said when it is used
        return True
    return value is not None or _may_be_none(shape, name)


def _may_be_none(shape: type, name: str) -> bool:
    getter = getattr(inspect.getattr_static(shape, name, None), "fget", None)
    return "None" in str(_annotations(shape).get(name) if getter is None else getter.__annotations__.get("return"))


@cache
def members_of(shape: type) -> frozenset[str]:
    """The public members of a contract."""
    names = {name for base in shape.__mro__ if base.__module__ != "typing" for name in (*vars(base), *_annotations(base))}
    return frozenset(name for name in names if not name.startswith("_"))


def _annotations(base: type) -> dict[str, object]:
    return dict(vars(base).get("__annotations__", {}))


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:
        raise PluginError(f"plugin {point.name!r} ({point.value}) failed to load: {error!r}") from error


def _register(manager: pluggy.PluginManager, plugin: object, name: str | None) -> None:
    try:
        manager.register(plugin, name)
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginError(f"plugin {_name(plugin, name)} is wrong: {error}") from error
    callers = manager.get_hookcallers(plugin)
    if not callers:
        raise PluginError(f"plugin {_name(plugin, name)} is wrong: it implements no hook; is @trikafka.hookimpl missing?")
    for caller in callers:
        for implementation in caller.get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            if inspect.iscoroutinefunction(implementation.function):
                raise PluginError(f"plugin {_name(plugin, name)} is wrong: {caller.name} is async, a hook is a plain function")
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginError(f"plugin {_name(plugin, name)} is wrong: {caller.name} is a wrapper, a hook is a plain function")


def _name(plugin: object, registered: str | None = None) -> str:
    """The name that it was registered with, or else what it is called. Plugins given as objects are registered with a number."""
    if registered is not None and not registered.isdigit():
        return repr(registered)
    return repr(getattr(plugin, "__name__", type(plugin).__name__))
