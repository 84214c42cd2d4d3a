"""The frame around a client: its nursery, what ends it, and how errors come out. Used by every ``open_*``.

The body of the user's ``async with`` runs inside the nursery of the client's tasks. This module sees to it that an exception of
the body comes out as it is, that a background failure comes out as one :exc:`ClientFailedError`, that the client is closed in
order on every way out, and that no task is left.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Protocol, TypeVar

import trio

from .._net.interrupts import interrupt_in
from .._net.singleflight import ClientClosed
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
    """The background tasks of one client. A task that fails ends the client with its cause.

    A scope around the client that is cancelled cancels the body, not these tasks: they are needed to leave in order.
    """

    def __init__(self, body: trio.CancelScope) -> None:
        self._body = body
        self._scope = trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._ready = trio.Event()
        self.closing = trio.CancelScope(shield=True)
        self.failure: Exception | None = None
        self.interrupt: BaseException | None = None  # Ctrl-C, where it hit a background task
        self._on_failure: Callable[[Exception], None] = lambda error: None

    def __enter__(self) -> Service:
        return self

    @trio.lowlevel.enable_ki_protection  # Ctrl-C before the stop, and the block that waits for the host would wait for ever
    def __exit__(self, *_: object) -> None:
        self.stop()

    @trio.lowlevel.enable_ki_protection
    async def host(self) -> None:
        """Be the task whose children the background tasks are, until :meth:`stop`."""
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    self._ready.set()
                    await trio.sleep_forever()
        finally:
            self._nursery = None

    async def ready(self) -> None:
        """Wait until there is room for tasks. (``nursery.start`` would wait for ever in a scope that is cancelled already: it
        leaves a task that has started there to its cancellation, against which this one is shielded.)"""
        with trio.CancelScope(shield=True):
            await self._ready.wait()

    def stop(self) -> None:
        """Cancel all background tasks, also those that are started later."""
        self._scope.cancel()

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a background task. What it raises ends the ``async with`` block. Raises :exc:`ClientClosed` after that."""
        if self._nursery is None:
            raise ClientClosed("the client was closed")
        try:
            self._nursery.start_soon(self._guard, async_fn, args, name=async_fn)
        except RuntimeError as error:  # its last task has just ended
            raise ClientClosed("the client was closed") from error

    @trio.lowlevel.enable_ki_protection  # Ctrl-C is for the task of the user, who waits for these or will soon
    async def _guard(self, async_fn: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        try:
            await async_fn(*args)
        except ClientClosed:
            pass  # it has nothing left to do
        except Exception as error:
            self._stopped_by(_single(error))
        except BaseExceptionGroup as group:
            cancelled, rest = group.split(trio.Cancelled)
            if rest is not None:
                self._stopped_by(_single(rest))
            if cancelled is not None:
                raise cancelled from None
        except (KeyboardInterrupt, SystemExit) as interrupt:
            self._stopped_by(interrupt)

    def _stopped_by(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.fail(error)
        else:
            self.interrupt = self.interrupt or error
            self._body.cancel()
            self._hurry()

    def when_failed(self, tell: Callable[[Exception], None]) -> None:
        """Have ``tell`` called with the failure that ends the client, if one does."""
        self._on_failure = tell

    def fail(self, error: Exception) -> None:
        """End the ``async with`` block with ``error`` as the cause. The first failure counts."""
        if self.failure is None:
            self.failure = error
            _log.debug("a background task failed", exc_info=error)
            self._body.cancel()
            self._hurry()
            self._on_failure(error)

    def _hurry(self) -> None:
        """What closing waits for may never come now."""
        self.closing.deadline = min(self.closing.deadline, trio.current_time() + CANCELLED_CLOSE_LIMIT)


class Closing(Protocol):
    """What the frame asks of a client."""

    async def _finish(self, how: Exit) -> None:
        """Leave in order. Runs shielded, within the limit; is called once the body has ended. May be called twice."""


Client = TypeVar("Client", bound=Closing)


@asynccontextmanager
async def run_client(config: ClientConfig, start: Callable[[Service], Awaitable[Client]]) -> AsyncIterator[Client]:
    """Open a client with ``start``, hand it to the body, and close it on every way out."""
    error: BaseException | None = None
    body = trio.CancelScope()
    service = Service(body)
    try:
        async with trio.open_nursery() as nursery:
            with service:
                nursery.start_soon(service.host)
                await service.ready()
                client: Client | None = None
                try:
                    with body:
                        client = await _started(start, service)
                        yield client
                except BaseException as failed:
                    error = failed
                try:
                    if client is not None:
                        await _close(client, config, error, service)
                except BaseException as failed:
                    if (interrupt := interrupt_in(failed)) is not None:
                        service.interrupt = service.interrupt or interrupt
                    elif service.failure is None:
                        error = failed if error is None else _with(error, failed)
                    else:
                        _log.debug("a client that had failed could not be closed in order", exc_info=failed)
    except BaseException as failed:  # the body's are kept above: this is Ctrl-C between the steps, or the scope around
        if (interrupt := interrupt_in(failed)) is None:
            raise
        service.interrupt = service.interrupt or interrupt
    if service.interrupt is not None:
        raise service.interrupt
    if error is not None and service.failure is not None:
        _log.error("the client failed in the background", exc_info=service.failure)
    if error is None and service.failure is not None:
        text = str(service.failure) or repr(service.failure)
        raise ClientFailedError(f"the client failed in the background: {text}") from service.failure
    if error is not None:
        try:
            raise error
        finally:
            del error, service


async def _started(start: Callable[[Service], Awaitable[Client]], service: Service) -> Client:
    """Start. Ctrl-C in it comes out as it is, and not in the group of a nursery in which it found the task."""
    try:
        return await start(service)
    except BaseExceptionGroup as group:
        raise interrupt_in(group) or group from None


async def _close(client: Closing, config: ClientConfig, error: BaseException | None, service: Service) -> None:
    how = Exit.CLEAN if error is None else Exit.FAILED if isinstance(error, Exception) else Exit.CANCELLED
    if error is None and service.failure is not None:
        how = Exit.FAILED  # the body was cut short: what it was handed may not be done
    if service.interrupt is not None or (isinstance(error, BaseExceptionGroup) and error.split(trio.Cancelled)[0] is not None):
        how = Exit.CANCELLED
    limit = config.close_timeout_ms / 1000
    if how is Exit.CANCELLED:
        limit = min(limit, CANCELLED_CLOSE_LIMIT)
    service.closing.deadline = trio.current_time() + limit  # a failure that comes now shortens it
    with service.closing:
        await client._finish(how)


def _with(error: BaseException, failed: BaseException) -> BaseException:
    """The body's exception, with a note of what went wrong besides, on closing: neither is lost."""
    if isinstance(failed, Exception):
        text = "".join(traceback.format_exception(failed, chain=False)).rstrip()
        error.add_note(f"When the client was closed after this, something else failed:\n{text}")
        _log.error("closing failed too, after an exception of the program", exc_info=failed)
    return error


def _single(error: BaseException) -> BaseException:
    """The first exception of a group; groups of our tasks are no business of the user's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
