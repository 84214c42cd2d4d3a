"""The frame around a client: its nursery, what ends it, and how errors come out. Used by every ``open_*``.

The body of the user's ``async with`` runs inside the nursery of the client's tasks. This module sees to it that an exception of
the body comes out as it is, that a background failure comes out as one :exc:`ClientFailedError`, that the client is closed in
order on every way out, and that no task is left.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Protocol, TypeVar

import trio

from ..config import ClientConfig
from ..errors import ClientFailedError

_log = logging.getLogger("trikafka")

#: What a cancelled exit may still take (seconds), to leave the group or to hand over what is in flight.
CANCELLED_CLOSE_LIMIT = 1.0


class Exit(Enum):
    """How the body of ``async with`` ended."""

    CLEAN = "clean"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Service:
    """The nursery of one client. A task that fails ends the client with its cause."""

    def __init__(self, nursery: trio.Nursery, body: trio.CancelScope) -> None:
        self._nursery, self._body = nursery, body
        self.failure: Exception | None = None
        self.on_failure: Callable[[Exception], None] = lambda error: None

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a background task. What it raises ends the ``async with`` block."""
        self._nursery.start_soon(self._guard, async_fn, args)

    async def _guard(self, async_fn: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        try:
            await async_fn(*args)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the ``async with`` block with ``error`` as the cause. The first failure counts."""
        if self.failure is None:
            self.failure = error
            _log.debug("a background task failed", exc_info=error)
            self._body.cancel()
            self.on_failure(error)


class Closing(Protocol):
    """What the frame asks of a client."""

    async def _finish(self, how: Exit) -> None:
        """Leave in order. Runs shielded, within the limit; is called once the body has ended. May be called twice."""


Client = TypeVar("Client", bound=Closing)


@asynccontextmanager
async def run_client(config: ClientConfig, start: Callable[[Service], Awaitable[Client]]) -> AsyncIterator[Client]:
    """Open a client with ``start``, hand it to the body, and close it on every way out."""
    error: BaseException | None = None
    body_scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        service = Service(nursery, body_scope)
        try:
            client = await start(service)
        except BaseException as failed:
            error = failed
        else:
            try:
                with body_scope:
                    yield client
            except BaseException as failed:
                error = failed
            try:
                await _close(client, config, error)
            except BaseException as failed:
                error = error or failed
        nursery.cancel_scope.cancel()
    if error is None and service.failure is not None:
        text = str(service.failure) or repr(service.failure)
        raise ClientFailedError(f"the client failed in the background: {text}") from service.failure
    if error is not None:
        try:
            raise error
        finally:
            del error, service


async def _close(client: Closing, config: ClientConfig, error: BaseException | None) -> None:
    how = Exit.CLEAN if error is None else Exit.FAILED if isinstance(error, Exception) else Exit.CANCELLED
    if isinstance(error, BaseExceptionGroup) and error.split(trio.Cancelled)[0] is not None:
        how = Exit.CANCELLED
    limit = config.close_timeout_ms / 1000
    if how is Exit.CANCELLED:
        limit = min(limit, CANCELLED_CLOSE_LIMIT)
    with trio.move_on_after(limit, shield=True):
        await client._finish(how)
