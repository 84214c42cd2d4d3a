"""Access of a manager to the brokers, and the deadline of its steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from ..types import Node

T = TypeVar("T")

#: The purpose of a connection. A broker handles the requests of one connection in order, so
#: requests that may wait inside the broker have connections of their own.
Purpose = Literal["general", "fetch", "produce", "coordinator", "group", "telemetry"]


class Response(Protocol):
    """The response to a request sent by :meth:`BrokerConnection.begin`."""

    def body(self) -> tuple[memoryview, int]:
        """Return the undecoded bytes of the response and its version.

        Raises:
            TrikafkaError: As :meth:`BrokerConnection.request`.
        """

    def response(self) -> Any:
        """Return the response, decoded; ``None`` for a request without a response.

        Raises:
            TrikafkaError: As :meth:`BrokerConnection.request`.
        """


class BrokerConnection(Protocol):
    """A connection to a broker, with API versions negotiated.

    ``message`` is a request of kafka-python, or an object with the same attributes.
    """

    @property
    def features(self) -> Mapping[str, int]:
        """The cluster's features with their finalized levels (KIP-584).

        An example of a feature is ``transaction.version``.
        """

    async def request(self, message: Any, response_timeout: float | None = None) -> Any:
        """Send ``message`` in the newest common version; return the response.

        Args:
            message: The request.
            response_timeout: Seconds to wait for the response; ``None`` means
                ``request_timeout_ms``.

        Raises:
            TrikafkaError: As :meth:`BrokerAccess.request`.
        """

    def begin(
        self, message: Any, on_end: Callable[[Any], object], response_timeout: float | None = None
    ) -> None:
        """Send ``message`` without waiting for the response.

        Args:
            message: The request.
            on_end: Called with the :class:`Response` by the task that reads the connection. The
                function must return quickly.
            response_timeout: Seconds to wait for the response; ``None`` means
                ``request_timeout_ms``.
        """


class OutageLog(Protocol):
    """A log of unreachable parts of the cluster.

    Each outage is logged once when it begins and once when it ends.
    """

    def coordinator_found(self, what: str, node: Node) -> None:
        """Record that ``node`` coordinates ``what``, such as ``group 'g'``."""

    def coordinator_missing(self, what: str, error: Exception) -> None:
        """Record that no coordinator of ``what`` was found, and why."""


@runtime_checkable
class BrokerAccess(Protocol):
    """All connections of one client.

    Each method makes one attempt. The caller's deadline (:class:`Call`) decides about retries.
    """

    @property
    def outages(self) -> OutageLog:
        """The log of unreachable brokers and coordinators."""

    async def connection(self, node: Node, purpose: Purpose = "general") -> BrokerConnection:
        """Return the connection to a broker; open it if necessary.

        Args:
            node: The broker.
            purpose: The kind of requests that the connection carries.

        Raises:
            KafkaConnectionError: The broker could not be reached.
            ProtocolError: The broker violated the protocol.
        """

    async def request(
        self,
        node: Node,
        message: Any,
        *,
        purpose: Purpose = "general",
        response_timeout: float | None = None,
    ) -> Any:
        """Send a request and return its response.

        If the caller is cancelled, the connection stays usable and the late response is discarded.

        Args:
            node: The broker.
            message: The request, of a class of kafka-python.
            purpose: The kind of connection to use.
            response_timeout: Seconds to wait for the response; ``None`` means
                ``request_timeout_ms``.

        Returns:
            The response, of the class that belongs to the request.

        Raises:
            KafkaConnectionError: The broker could not be reached, or the connection failed.
            ProtocolError: The broker violated the protocol.
            UnsupportedVersionError: The broker has no common version of the request.
            trio.ClosedResourceError: The client is closed.
        """


class Call(Protocol):
    """One API call in progress, with its deadline."""

    @property
    def left(self) -> float:
        """Seconds until the call's deadline; 0 once it has passed."""

    async def step(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run one step of the call within its deadline.

        Args:
            what: The step's name, for the error.
            work: The function to run.

        Raises:
            RequestTimedOutError: The deadline passed. The message names ``what``.
        """
