"""Work that many callers share: done once, by a task of the client, whoever of the callers gives up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import trio

from ..errors import ClientFailedError, TrikafkaError
from ..errors.copies import again
from .reasons import Reason, adopt, waiting_behind

T = TypeVar("T")


class ClientClosed(trio.ClosedResourceError):
    """The client was closed: in a task of the user the error, in a task of the client its end."""


class StartSoon(Protocol):
    """Starts a task in the client's nursery (as ``Nursery.start_soon`` does)."""

    def __call__(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> object: ...


class _Flight(Generic[T]):
    __slots__ = ("done", "error", "reason", "result")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: T | None = None
        self.error: Exception | None = None
        self.reason = Reason()


class SingleFlight(Generic[T]):
    """Calls of the same work that overlap share one run of it.

    The run belongs to the client's nursery: a caller that is cancelled leaves, the others get the result. An error of
    trikafka's goes to every caller; any other is a bug and ends the client.
    """

    def __init__(self, start_soon: StartSoon, work: Callable[[], Awaitable[T]]) -> None:
        self._start_soon, self._work = start_soon, work
        self._flight: _Flight[T] | None = None

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""
        return self._flight is not None

    async def __call__(self) -> T:
        """Return the result of the run under way, or of a new one. Raises what that raises, :exc:`ClientClosed` past the end."""
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
