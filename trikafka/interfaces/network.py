"""How a manager reaches the brokers, and the deadline that its steps run under: what a client's context hands out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from ..types import Node

T = TypeVar("T")

#: A broker responds to the requests of one connection one after the other. What may wait inside the broker has one of its own.
Purpose = Literal["general", "fetch", "produce", "coordinator", "group"]


class Response(Protocol):
    """The response to a request that nobody waited for (:meth:`BrokerConnection.begin`)."""

    def body(self) -> tuple[memoryview, int]:
        """Its bytes, not decoded, and the version that they are in. Raises as :meth:`BrokerConnection.request`."""

    def response(self) -> Any:
        """The response, of the class that goes with the request; ``None`` where none is sent. Raises likewise."""


class BrokerConnection(Protocol):
    """A connection whose versions are negotiated. ``message`` is a request of kafka-python's, or has the same attributes."""

    @property
    def features(self) -> Mapping[str, int]:
        """The cluster's features and their finalized levels, such as ``transaction.version`` (KIP-584)."""

    async def request(self, message: Any, response_timeout: float | None = None) -> Any:
        """Send ``message`` in the newest common version and return the response. As :meth:`BrokerAccess.request`."""

    def begin(self, message: Any, on_end: Callable[[Any], object], response_timeout: float | None = None) -> None:
        """Send without waiting: ``on_end`` is called with the :class:`Response`, in the reader's step. It must be quick."""


class OutageLog(Protocol):
    """Says in the log, once, that something cannot be reached, and once that it is back."""

    def coordinator_found(self, what: str, node: Node) -> None:
        """``node`` coordinates ``what`` (such as ``group 'g'``)."""

    def coordinator_missing(self, what: str, error: Exception) -> None:
        """The coordinator of ``what`` could not be found."""


@runtime_checkable
class BrokerAccess(Protocol):
    """All connections of one client. Each method makes one attempt; trying again is the business of the call's deadline."""

    @property
    def outages(self) -> OutageLog:
        """What of the cluster cannot be reached."""

    async def connection(self, node: Node, purpose: Purpose = "general") -> BrokerConnection:
        """The connection to a broker, dialled if need be. Raises :exc:`KafkaConnectionError`, :exc:`ProtocolError`."""

    async def request(
        self, node: Node, message: Any, *, purpose: Purpose = "general", response_timeout: float | None = None
    ) -> Any:
        """Send a request (a class of kafka-python's) and return the response, of the class that goes with it.

        ``response_timeout`` is in seconds (default ``request_timeout_ms``). Raises :exc:`KafkaConnectionError`,
        :exc:`ProtocolError`, :exc:`UnsupportedVersionError`, :exc:`trio.ClosedResourceError` once the client is closed.
        Cancelled: the connection stays usable, a late response is dropped.
        """


class Call(Protocol):
    """One API call under way, and what is left of its time."""

    @property
    def left(self) -> float:
        """Seconds until the call's limit; 0 past it."""

    async def step(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run one step of the call within its limit. Raises :exc:`RequestTimedOutError` past that, naming ``what``."""
