"""What every client is built on: its settings, brokers and plugins, and the managers in their seats."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Literal, TypeVar, overload

from .. import interfaces
from .._net.brokers import Brokers
from .._net.security import Security
from ..config import ClientConfig
from ..config.security import SASL_BUILTIN
from ..errors import ConfigurationError, IllegalStateError, PluginError
from ..hooks import BUILTIN, answers, first_answer, load_plugins
from ..interfaces import ManagerKind, Observer
from ..types import Node
from .builtin import Builtin
from .guard import Seat, guarded
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
}


class Observers:
    """Those who watch a client. What they raise is logged once for each method, and changes nothing."""

    def __init__(self, observers: list[tuple[str, Any]]) -> None:
        self._observers = observers
        self._failed: set[tuple[str, str]] = set()

    def has(self, method: str) -> bool:
        """Whether somebody is to be told of this."""
        return any(callable(getattr(observer, method, None)) for _, observer in self._observers)

    def tell(self, method: str, *args: object) -> None:
        """Call a method of each of them that has it."""
        for plugin, observer in self._observers:
            if (told := getattr(observer, method, None)) is None:
                continue
            try:
                told(*args)
            except Exception as error:
                if (plugin, method) not in self._failed:
                    self._failed.add((plugin, method))
                    _log.error("plugin %s: observer.%s failed: %r", plugin, method, error, exc_info=error)


class Context(Generic[Config]):
    """A client's :class:`~trikafka.interfaces.ClientContext`. Plugins are loaded and checked when it is made."""

    def __init__(self, config: Config, service: Service) -> None:
        self.config = config
        self.plugins = load_plugins(config.plugins, Builtin())
        self._service = service
        security = Security(config, self._sasl_mechanism())
        security.check()
        self.brokers = Brokers(config, service.start_soon, security)
        self._seats: dict[ManagerKind, Any] = {}
        self.plugins_in: dict[ManagerKind, str] = {}  # the seats that a plugin has, and its name
        self._closed = False
        self.observers = Observers(answers(self.plugins, "trikafka_observer", Observer, context=self))
        if self.observers.has("connection_changed"):
            self.brokers.when_changed(lambda event: self.observers.tell("connection_changed", event))
        service.when_failed(lambda error: self.observers.tell("failed", error))

    def _sasl_mechanism(self) -> Callable[[Node], Any] | None:
        """What a plugin offers for ``sasl_mechanism``. Raises :exc:`ConfigurationError` if nobody has it."""
        name = self.config.sasl_mechanism
        if name is None or not self.config.uses_sasl:
            return None
        offered = first_answer(self.plugins, "trikafka_sasl", mechanism=name, config=self.config)
        if offered is None:
            if name not in SASL_BUILTIN:
                known = ", ".join(SASL_BUILTIN)
                raise ConfigurationError(f"sasl_mechanism: no plugin offers {name!r}; without plugins there are {known}")
            return None
        plugin, factory = offered
        if not callable(factory):
            raise PluginError(f"plugin {plugin}: trikafka_sasl returned {factory!r}, which cannot be called")
        made: Callable[[Node], Any] = factory
        return made

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task that ends with the client, and whose failure ends it."""
        self._service.start_soon(async_fn, *args)

    def fill(self, kind: ManagerKind) -> None:
        """Have the plugins make the manager of ``kind``. Raises :exc:`PluginError` if what they make is none."""
        shape = _SHAPES[kind]
        made = first_answer(self.plugins, "trikafka_request_manager", shape, kind=kind, context=self)
        if made is None:
            raise PluginError(f"no plugin makes a request manager for {kind!r}")
        plugin, manager = made
        if plugin != BUILTIN:
            self.plugins_in[kind] = plugin
            manager = guarded(manager, shape, self.seat(plugin, kind))
        self._seats[kind] = manager

    def seat(self, plugin: str, kind: str) -> Seat:
        """Where a plugin's object sits, for the errors that name it."""
        return Seat(plugin, kind, self.config.default_api_timeout, lambda: self._closed)

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

    def manager(self, kind: ManagerKind) -> object:
        """The manager in a seat. Raises :exc:`IllegalStateError` if the seat is not filled (yet)."""
        if kind not in self._seats:
            raise IllegalStateError(f"this client has no manager for {kind!r} (yet)")
        return self._seats[kind]

    def builtin(self, kind: ManagerKind) -> Any:
        """A manager for ``kind`` as trikafka itself makes it."""
        return Builtin().trikafka_request_manager(kind, self)

    def tell_opened(self) -> None:
        """Tell the observers that the client is open."""
        self.observers.tell("opened", self)

    def tell_closed(self) -> None:
        """The client is closed: tell the observers."""
        self._closed = True
        self.observers.tell("closed")
