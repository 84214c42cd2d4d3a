"""The base of every client: settings, brokers, plugins, and the managers in their slots."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from operator import attrgetter
from typing import Any, Generic, Literal, Protocol, TypeVar, cast, overload

from ... import interfaces
from ..._net.auth import holds_text
from ..._net.brokers import Brokers
from ..._net.security import Security
from ...config import ClientConfig, ConsumerConfig, ProducerConfig, ShareConsumerConfig
from ...config.security import SASL_BUILTIN
from ...errors import ConfigurationError, IllegalStateError, PluginError, TrikafkaError
from ...errors.groups import outlined, unwrapped
from ...hooks import (
    BUILTIN,
    SharedContext,
    answers,
    check_takes,
    first_answer,
    load_plugins,
    members_of,
)
from ...interfaces import ClientContext, ManagerKind, Observer
from ...types import Node
from .metering import meter_of
from .plugin_proxy import PluginSlot, guarded
from .service import Service

Config = TypeVar("Config", bound=ClientConfig)
_log = logging.getLogger("trikafka.plugins")

_SHAPES: dict[ManagerKind, type] = {
    "metadata": interfaces.MetadataManager,
    "coordinator": interfaces.CoordinatorManager,
    "offsets": interfaces.OffsetsManager,
    "commit": interfaces.CommitManager,
    "positions": interfaces.PositionsManager,
    "fetch": interfaces.FetchManager,
    "heartbeat": interfaces.HeartbeatManager,
    "membership": interfaces.MembershipManager,
    "produce": interfaces.ProduceManager,
    "transactions": interfaces.TransactionManager,
    "share_membership": interfaces.ShareMembershipManager,
    "share_fetch": interfaces.ShareFetchManager,
    "telemetry": interfaces.TelemetryManager,
}


class BuiltinPlugin(Protocol):
    """The built-in plugin of a kind of client."""

    def trikafka_request_manager(self, kind: str, context: object) -> object | None:
        """Return trikafka's own manager for ``kind``; ``None`` if this client has no such seat."""


class Observers:
    """The observers of one client.

    An error of an observer is logged once for each method, and has no other effect.
    """

    def __init__(self, observers: list[tuple[str, Any]]) -> None:
        self._observers = observers
        self._failed: set[tuple[str, str]] = set()

    def caller(self, method: str) -> Callable[..., None] | None:
        """Return a function that calls the observers' method; ``None`` if no observer has it."""
        return partial(self.call, method) if self.has(method) else None

    def has(self, method: str) -> bool:
        """Return whether an observer has this method."""
        return any(callable(getattr(observer, method, None)) for _, observer in self._observers)

    def call(self, method: str, *args: object) -> None:
        """Call a method of each observer that has it."""
        self._call(method, lambda plugin: args)

    def call_each(self, method: str, argument: Callable[[str], object]) -> None:
        """Call a method of each observer that has it, with the argument for its plugin."""
        self._call(method, lambda plugin: (argument(plugin),))

    def _call(self, method: str, args: Callable[[str], tuple[object, ...]]) -> None:
        for plugin, observer in self._observers:
            if (notify := getattr(observer, method, None)) is None:
                continue
            try:
                result: object = notify(*args(plugin))
                if inspect.iscoroutine(result):  # of a function that is not visibly async
                    result.close()
                    raise TypeError("the method is async, and has to be a plain function")
            except Exception as error:
                if (plugin, method) not in self._failed:
                    self._failed.add((plugin, method))
                    _log.error(
                        "plugin %s: observer.%s failed: %r", plugin, method, error, exc_info=error
                    )


class _NamedMechanism:
    """A plugin's mechanism whose failures name the plugin.

    No text shows what the mechanism returned, which may hold a password.
    """

    def __init__(self, plugin: str, made: Any) -> None:
        self._who = f"plugin {plugin}: the mechanism's"
        self._made = made

    # These are plain functions, as the plugin's may be: those of GSSAPI are called in a thread.
    def first(self) -> Any:
        """Return the first message, or an awaitable of it."""
        return self._called("first")

    def respond(self, challenge: bytes) -> Any:
        """Return the response to a message of the broker, or an awaitable of it.

        ``None`` ends the exchange.
        """
        return self._called("respond", challenge)

    def _called(self, method: str, *args: bytes) -> Any:
        with _blaming(f"{self._who} {method}()"):
            said = getattr(self._made, method)(*args)
        if inspect.isawaitable(said):
            return self._awaited(method, said)
        if _is_message(method, said):
            return said
        kind = type(said)
        said = None
        raise self._refused(method, kind)

    async def _awaited(self, method: str, result: Awaitable[Any]) -> Any:
        with _blaming(f"{self._who} {method}()"):
            said = await result
        if _is_message(method, said):
            return said
        kind = type(said)
        said = None
        raise self._refused(method, kind)

    def _refused(self, method: str, kind: type) -> PluginError:
        name = "None" if kind is type(None) else kind.__name__
        return PluginError(f"{self._who} {method}() returned {name}, not bytes")


def _is_message(method: str, said: object) -> bool:
    return isinstance(said, bytes) or (said is None and method == "respond")


@contextmanager
def _blaming(who: str) -> Iterator[None]:
    """Raise a :exc:`PluginError` for an error of a plugin that is not trikafka's."""
    try:
        yield
    except TrikafkaError:
        raise
    except Exception as raised:
        if holds_text(raised):  # the caller raises an error without it
            raise
        error = unwrapped(raised)  # a nursery in an async function raises its errors in a group
        if isinstance(error, TrikafkaError):
            raise error from error.__cause__
        raise PluginError(f"{who} failed: {type(error).__name__}: {outlined(error)}") from raised


async def _mechanism(plugin: str, factory: Callable[[Node], Any], node: Node) -> Any:
    """Return a plugin's mechanism for one authentication.

    Raises:
        PluginError: The plugin's function failed, or returned no mechanism.
    """
    who = f"plugin {plugin}: the function of trikafka_sasl"
    with _blaming(who):
        made = factory(node)
        if inspect.isawaitable(made):
            made = await made
    methods = ("first", "respond")
    if missing := [name for name in methods if not callable(getattr(made, name, None))]:
        kind = "None" if made is None else type(made).__name__
        raise PluginError(
            f"{who} returned {kind}, which is not a mechanism: it has no {', '.join(missing)}"
        )
    return _NamedMechanism(plugin, made)


class _PluginContext:
    """A client's context for one plugin; only the tasks that it starts differ."""

    def __init__(self, shared: Any, service: Service, plugin: str) -> None:
        self._shared = shared
        self._service = service
        self._plugin = plugin

    def __getattr__(self, name: str) -> Any:
        # The members of the contract are properties of the class (see `_view_of`). The property of
        # a part that is made later raises an AttributeError, and Python then asks here.
        if name in vars(type(self)):
            raise AttributeError(
                f"{name!r} does not exist yet, as the client is being opened: keep the context, "
                "and ask for it later"
            )
        raise AttributeError(f"{name!r} is not part of the contract of a plugin's context")

    def manager(self, kind: ManagerKind) -> object:
        """Return the manager in a slot, if it is filled already."""
        with self._named():
            return self._shared.manager(kind)

    def builtin(self, kind: ManagerKind) -> Any:
        """Return trikafka's own manager for a slot."""
        with self._named():
            return self._shared.builtin(kind)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the plugin in an error of a call that is not legal yet."""
        try:
            yield
        except IllegalStateError as error:
            raise IllegalStateError(f"plugin {self._plugin}: {error}") from None

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task that ends with the client.

        Its failure ends the client with an error that names the plugin.
        """
        given: object = async_fn
        if inspect.iscoroutine(given):
            given.close()
            called = given.__qualname__
            raise PluginError(
                f"plugin {self._plugin}: context.start_soon takes an async function and its "
                f"arguments, not the coroutine {called}(...): write start_soon({called}, ...)"
            )
        if not callable(given):
            raise PluginError(
                f"plugin {self._plugin}: context.start_soon takes an async function, not "
                f"{type(given).__name__}"
            )
        while isinstance(given, partial):
            given = given.func
        task = getattr(given, "__qualname__", type(given).__qualname__)
        name = f"plugin {self._plugin}: {task}"
        self._service.start_soon(async_fn, *args, blame=self._blame(task), name=name)

    def _blame(self, task: str) -> Callable[[Exception], Exception]:
        def blamed(error: Exception) -> Exception:
            if isinstance(error, PluginError):
                return error
            named = PluginError(
                f"plugin {self._plugin}: its background task {task} failed: {error!r}"
            )
            named.__cause__ = error
            return named

        return blamed


#: The Protocol of the client's context, by its settings.
_CONTRACTS: dict[type[ClientConfig], type] = {
    ConsumerConfig: interfaces.ConsumerContext,
    ProducerConfig: interfaces.ProducerContext,
    ShareConsumerConfig: interfaces.ShareConsumerContext,
}


@cache
def _view_of(contract: type) -> type[_PluginContext]:
    """Return the class of contexts with the members of ``contract``.

    They are properties of the class, not left to ``__getattr__``: ``isinstance`` with a Protocol
    looks for them there.
    """
    names = members_of(contract) - vars(_PluginContext).keys()
    return type(
        "PluginContext",
        (_PluginContext,),
        {name: property(attrgetter(f"_shared.{name}")) for name in names},
    )


class Context(SharedContext, Generic[Config]):
    """A client's :class:`~trikafka.interfaces.ClientContext`.

    Plugins are loaded and checked in the constructor. ``builtin`` makes the managers for which no
    plugin has one.
    """

    def __init__(self, config: Config, service: Service, builtin: BuiltinPlugin) -> None:
        self.config = config
        self.plugins = load_plugins(config.plugins, builtin)
        self._builtin = builtin
        self._service = service
        #: Each call of a user begins with ``home.check()``.
        self.home = service
        self._security = Security(config, self._sasl_mechanism())
        self.metrics = meter_of(config)
        self.brokers = Brokers(config, service.start_soon, self._security, self.metrics)
        self._given: dict[str, _PluginContext] = {}
        self._managers_by_kind: dict[ManagerKind, Any] = {}
        self.plugins_in: dict[ManagerKind, str] = {}  # the slots that a plugin fills, and its name
        self._closed = False
        self.observers = Observers(
            answers(self.plugins, "trikafka_observer", Observer, context=self)
        )
        if (watch := self.observers.caller("connection_changed")) is not None:
            self.brokers.when_changed(watch)
        service.when_failed(lambda error: self.observers.call("failed", error))

    async def check_files(self) -> None:
        """Read the files that the settings name, before the first contact with a broker.

        Raises :exc:`ConfigurationError` for files that cannot be used.
        """
        await self._security.check()

    def _sasl_mechanism(self) -> Callable[[Node], Any] | None:
        """Return a plugin's factory for ``sasl_mechanism``, if one offers it.

        Raises :exc:`ConfigurationError` if the mechanism is unknown.
        """
        name = self.config.sasl_mechanism
        if name is None or not self.config.uses_sasl:
            return None
        offered = first_answer(self.plugins, "trikafka_sasl", mechanism=name, config=self.config)
        if offered is None:
            if name not in SASL_BUILTIN:
                known = ", ".join(SASL_BUILTIN)
                meant = f" (did you mean {name.upper()!r}?)" if name.upper() in SASL_BUILTIN else ""
                raise ConfigurationError(
                    f"sasl_mechanism: no plugin offers {name!r}{meant}; without plugins there are "
                    f"{known}"
                )
            return None
        plugin, factory = offered
        if not callable(factory):
            raise PluginError(
                f"plugin {plugin}: trikafka_sasl returned {type(factory).__name__}, which "
                "cannot be called"
            )
        who = f"plugin {plugin}: the function of trikafka_sasl"
        check_takes(factory, (None,), PluginError, who, may_wait=True)
        return partial(_mechanism, plugin, factory)

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task that ends with the client; its failure ends the client."""
        self._service.start_soon(async_fn, *args)

    def for_plugin(self, plugin: str) -> ClientContext:
        """Return this context for a plugin, whose failing tasks raise :exc:`PluginError`."""
        if plugin not in self._given:
            self._given[plugin] = _view_of(_CONTRACTS.get(type(self.config), ClientContext))(
                self, self._service, plugin
            )
        return cast("ClientContext", self._given[plugin])

    def fill(self, kind: ManagerKind) -> None:
        """Let the plugins make the manager of ``kind``.

        Raises :exc:`PluginError` if the result is not such a manager.
        """
        shape = _SHAPES[kind]
        made = first_answer(
            self.plugins, "trikafka_request_manager", shape, kind=kind, context=self
        )
        if made is None:
            raise PluginError(f"no plugin makes a request manager for {kind!r}")
        plugin, manager = made
        if plugin != BUILTIN:
            self.plugins_in[kind] = plugin
            manager = guarded(manager, shape, self.slot(plugin, kind))
        self._managers_by_kind[kind] = manager

    def slot(self, plugin: str, kind: str) -> PluginSlot:
        """Return the slot of a plugin's object, for errors that name it."""
        return PluginSlot(plugin, kind, self.config.default_api_timeout, lambda: self._closed)

    @overload
    def manager(self, kind: Literal["metadata"]) -> interfaces.MetadataManager: ...
    @overload
    def manager(self, kind: Literal["coordinator"]) -> interfaces.CoordinatorManager: ...
    @overload
    def manager(self, kind: Literal["offsets"]) -> interfaces.OffsetsManager: ...
    @overload
    def manager(self, kind: Literal["commit"]) -> interfaces.CommitManager: ...
    @overload
    def manager(self, kind: Literal["positions"]) -> interfaces.PositionsManager: ...
    @overload
    def manager(self, kind: Literal["fetch"]) -> interfaces.FetchManager: ...
    @overload
    def manager(self, kind: Literal["heartbeat"]) -> interfaces.HeartbeatManager: ...
    @overload
    def manager(self, kind: Literal["membership"]) -> interfaces.MembershipManager: ...
    @overload
    def manager(self, kind: Literal["produce"]) -> interfaces.ProduceManager: ...
    @overload
    def manager(self, kind: Literal["transactions"]) -> interfaces.TransactionManager: ...
    @overload
    def manager(self, kind: Literal["share_membership"]) -> interfaces.ShareMembershipManager: ...
    @overload
    def manager(self, kind: Literal["share_fetch"]) -> interfaces.ShareFetchManager: ...
    @overload
    def manager(self, kind: Literal["telemetry"]) -> interfaces.TelemetryManager: ...

    def manager(self, kind: ManagerKind) -> object:
        """Return the manager in a slot.

        Raises :exc:`IllegalStateError` if the slot is empty.
        """
        if kind not in self._managers_by_kind:
            raise IllegalStateError(
                f"this client has no manager for {kind!r} (yet); it has "
                f"{', '.join(self._managers_by_kind) or 'none so far'}"
            )
        return self._managers_by_kind[kind]

    def builtin(self, kind: ManagerKind) -> Any:
        """Return a new manager for ``kind`` of trikafka's own.

        ``None`` if this client has no such seat. Raises :exc:`IllegalStateError` if no client has.
        """
        if kind not in _SHAPES:
            raise IllegalStateError(f"there is no seat {kind!r}; the seats: {', '.join(_SHAPES)}")
        return self._builtin.trikafka_request_manager(kind, self)

    def notify_opened(self) -> None:
        """Notify the observers that the client is open."""
        self.observers.call_each("opened", self.for_plugin)

    def notify_closed(self) -> None:
        """Notify the observers that the client is closed."""
        self._closed = True
        self.observers.call("closed")
