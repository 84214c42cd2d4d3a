"""What every client is built on: its settings, brokers and plugins, and the managers in their seats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .. import interfaces
from .._net.brokers import Brokers
from ..config import ClientConfig
from ..errors import IllegalStateError, PluginError
from ..hooks import call_all, call_first, load_plugins
from ..interfaces import ManagerKind, Observer
from .builtin import Builtin
from .service import Service

Config = TypeVar("Config", bound=ClientConfig)

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
}


class Context(Generic[Config]):
    """A client's :class:`~trikafka.interfaces.ClientContext`. Plugins are loaded and checked when it is made."""

    def __init__(self, config: Config, service: Service) -> None:
        self.config = config
        self.plugins = load_plugins(config.plugins, Builtin())
        self.start_soon: Callable[..., None] = service.start_soon
        self.brokers = Brokers(config, service.start_soon)
        self._seats: dict[ManagerKind, Any] = {}
        self.observers = call_all(self.plugins, "trikafka_observer", Observer, context=self)
        service.on_failure = self._failed

    def fill(self, kind: ManagerKind) -> Any:
        """Have the plugins make the manager of ``kind``. Raises :exc:`PluginError` if what they make is none."""
        made: Any = call_first(self.plugins, "trikafka_request_manager", _SHAPES[kind], kind=kind, context=self)
        if made is None:
            raise PluginError(f"no plugin makes a request manager for {kind!r}")
        self._seats[kind] = made
        return made

    def manager(self, kind: ManagerKind) -> Any:
        """The manager in a seat. Raises :exc:`IllegalStateError` if the seat is not filled (yet)."""
        if kind not in self._seats:
            raise IllegalStateError(f"this client has no manager for {kind!r} (yet)")
        return self._seats[kind]

    def tell_opened(self) -> None:
        """Tell the observers that the client is open."""
        for observer in self.observers:
            observer.opened(self)

    def tell_closed(self) -> None:
        """Tell the observers that the client is closed."""
        for observer in self.observers:
            observer.closed()

    def _failed(self, error: Exception) -> None:
        for observer in self.observers:
            observer.failed(error)
