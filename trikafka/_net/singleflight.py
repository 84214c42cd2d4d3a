"""Work that many callers share, done once by a task of the client.

A cancelled caller does not cancel the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import trio

from ..errors import ClientFailedError, TrikafkaError
from ..errors.copies import again
from .reasons import WaitContext, adopt, waiting_behind

T = TypeVar("T")


class ClientClosed(trio.ClosedResourceError):
    """The client was closed.

    A task of the user gets this as an error; a task of the client ends with it.
    """


class StartSoon(Protocol):
    """A function that starts a task in the client's nursery (as ``Nursery.start_soon`` does)."""

    def __call__(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> object: ...


class _Flight(Generic[T]):
    __slots__ = ("done", "error", "reason", "result")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: T | None = None
        self.error: Exception | None = None
        self.reason = WaitContext()


class SingleFlight(Generic[T]):
    """Work whose overlapping calls share one run.

    The run is a task of the client's nursery. If one caller is cancelled, the others still get the
    result. An error of trikafka or of the network is raised in every caller; any other error is a
    bug and ends the client.
    """

    def __init__(self, start_soon: StartSoon, work: Callable[[], Awaitable[T]]) -> None:
        self._start_soon = start_soon
        self._work = work
        self._flight: _Flight[T] | None = None

    @property
    def busy(self) -> bool:
        """True while a run is in progress."""
        return self._flight is not None

    async def __call__(self) -> T:
        """Return the result of the run in progress, or of a new one.

        Raises a copy of the run's error, or :exc:`ClientClosed` if the client closes meanwhile.
        """
        flight = self._flight
        if flight is None:
            flight = _Flight()
            self._start_soon(self._run, flight)
            self._flight = flight
        with waiting_behind(flight.reason):
            await flight.done.wait()
        if flight.error is not None:
            raise again(flight.error)
        return flight.result  # type: ignore[return-value]

    async def _run(self, flight: _Flight[T]) -> None:
        # Stands only if this task is cancelled, which happens when the client closes.
        flight.error = ClientClosed("the client was closed meanwhile")
        adopt(flight.reason)
        try:
            flight.result = await self._work()
            flight.error = None
        except (TrikafkaError, OSError, ClientClosed) as error:
            flight.error = error
        except Exception as error:
            flight.error = ClientFailedError(f"the client failed in the background: {error!r}")
            flight.error.__cause__ = error
            raise
        finally:
            self._flight = None
            flight.reason.clear()
            flight.done.set()
