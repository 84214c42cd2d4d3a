"""The functions that open clients, and the block around each."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial, wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, overload

import trio

from .. import open_admin as _open_admin
from .. import open_consumer as _open_consumer
from .. import open_producer as _open_producer
from .. import open_share_consumer as _open_share_consumer
from ..config.typed import (
    AdminSettings,
    BytesConsumerSettings,
    BytesShareConsumerSettings,
    ProducerSettings,
)
from ..errors import ClientFailedError, ConfigurationError, IllegalStateError
from ..toolkit import Unopened, calling_for_host, set_host, shown
from ..types import AsyncDeserializer, Deserializer, Key, SubscriptionPattern, Value
from .admin import Admin
from .consumer import Consumer
from .crossing import AsyncioHost, Client, Wait, on_host
from .guest import Guest, acquire
from .producer import Producer
from .sharing import ShareConsumer

_log = logging.getLogger("trikafka.aio")
P = ParamSpec("P")
Face = TypeVar("Face", bound=Client)
#: The methods that describe a client, also after its end.
_REPORTS = ("health", "statistics")


# A client lives in one Trio task, `_Host.run`, from its opening to its end. The asyncio task that
# enters and leaves the block only asks for both and waits. How the body ended is repeated in the
# Trio task, because the client closes by it: in order, or within a second after a cancellation.
class _Host:
    """The Trio task of one client."""

    def __init__(self, guest: Guest, open_client: Callable[[], Any]) -> None:
        self._guest = guest
        self._open_client = open_client
        self._scope = trio.CancelScope()
        self._leave = trio.Event()
        self._body_error: Exception | None = None
        self._leaver: asyncio.Task[Any] | None = None
        self.client: Any = None
        self.error: BaseException | None = None
        self.last: dict[str, Any] = {}  # the client's reports at its end, by method
        self.opened = Wait(guest)
        self.ended = Wait(guest)
        self.on_end: Callable[[], object] = lambda: None

    async def run(self) -> None:
        """Open the client, wait for the end of the body, and close the client."""
        set_host(AsyncioHost(self._guest))
        try:
            with self._scope, ExitStack() as calls:
                async with self._open_client() as self.client:
                    self.opened.finish()
                    try:
                        await self._leave.wait()
                    finally:  # the end of the block is a call of the task that leaves it
                        calls.enter_context(calling_for_host(self._leaver))
                    if self._body_error is not None:
                        raise self._body_error
        except trio.Cancelled:  # of the guest
            raise
        except BaseException as error:
            self.error = error
        finally:
            self._keep_reports()
            self.ended.finish()
            self.opened.finish()
            self._guest.closed(self)
            self.on_end()

    def _keep_reports(self) -> None:
        # Probes ask for the health of a client that has failed, too. By then Trio's run, whose
        # clock the reports need, may have ended.
        for name in _REPORTS:
            if (describe := getattr(self.client, name, None)) is not None:
                try:
                    self.last[name] = describe()
                except Exception:  # of a plugin's part
                    _log.exception("the last %s() of a client has failed", name)

    def leave(self, error: BaseException | None) -> None:
        """End the client's body as the body of the block has ended."""
        self._leaver = asyncio.current_task()
        if error is None or isinstance(error, Exception):
            self._body_error = error
            self._leave.set()
        else:
            self._scope.cancel()
        self._guest.wake()

    def abandon(self) -> None:
        """Cancel the client."""
        self._scope.cancel()


class Opening(Unopened, AbstractAsyncContextManager[Face], Generic[Face]):
    """A client of asyncio that ``async with`` will open; before that there is none."""

    package = "trikafka.aio"

    def __init__(
        self, call: str, face: Callable[[Guest, Any], Face], open_client: Callable[[Guest], Any]
    ) -> None:
        self.opens = call
        self._face = face
        self._open_client = open_client
        self._entered = False
        self._guest: Guest | None = None
        self._host: _Host
        self._client: Face
        self._owner: asyncio.Task[Any] | None = None
        self._cancelling = 0  # of the owner, when the block began
        self._interrupted = False  # this block has cancelled its owner

    async def __aenter__(self) -> Face:
        if self._entered:
            raise IllegalStateError(f"a block of {self.opens}() can be entered once: call it again")
        _check_asyncio(self.opens)
        self._entered = True
        guest = self._guest = await acquire()
        host = self._host = _Host(guest, partial(self._open_client, guest))
        guest.opened(host)
        guest.nursery.start_soon(host.run)
        guest.wake()
        cancelled = await host.opened.until_done(host.abandon)
        if cancelled is not None or host.ended.done:
            await self._wait_ended()
            if cancelled is not None:
                raise cancelled
            if host.error is not None:
                raise host.error
            raise IllegalStateError("Trio's run under this event loop has ended")
        self._client = self._face(guest, host.client)
        self._client._reported(host.last)
        self._owner = asyncio.current_task()
        self._cancelling = 0 if self._owner is None else self._owner.cancelling()
        host.on_end = self._ended_early
        return self._client

    def _ended_early(self) -> None:
        """Cancel the body: the client has failed in the background."""
        self._client._failed(self._host.error)
        owner = self._owner
        if owner is not None and not owner.done() and not self._guest_of().loop.is_closed():
            self._interrupted = True
            owner.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None:
        # Once the host has ended, no failure can interrupt the body any more. A cancellation that
        # this block has caused ends here, as in asyncio.timeout and asyncio.TaskGroup; another one
        # that came with it goes on.
        if error is not None and self._guest_of().in_fork:
            return None  # nothing can be closed here, and the fork may end by SystemExit
        self._guest_of().check_loop()
        host = self._host
        host.on_end = lambda: None
        host.leave(error)
        cancelled = await self._wait_ended()
        if error is not None:
            error.__traceback__ = trace  # Trio's side has raised it, too
        failed = host.error
        # Another task than the owner may leave the block: its cancellations are not this block's.
        owner = self._owner
        if self._interrupted and owner is not None and owner is asyncio.current_task():
            if cancelled is None and not isinstance(error, asyncio.CancelledError):
                try:
                    await asyncio.sleep(0)  # the body ended before the cancellation arrived
                except asyncio.CancelledError as late:
                    cancelled = late
            if owner.uncancel() <= self._cancelling:
                cancelled = None
                error = None if isinstance(error, asyncio.CancelledError) else error
        if self._interrupted and isinstance(error, trio.ClosedResourceError):
            error = None  # a call in the body met the end of the client
        if cancelled is not None:
            raise cancelled
        if failed is None or failed is error:
            return None
        if error is None or not isinstance(failed, ClientFailedError):
            raise failed
        _log.error("the client failed in the background", exc_info=failed)
        return None

    async def _wait_ended(self) -> asyncio.CancelledError | None:
        """Wait for the end of the client, and of the guest if this was its last one."""
        guest = self._guest_of()
        host = self._host
        cancelled = await host.ended.until_done(host.abandon)
        return await guest.wait_ended_shielded() or cancelled

    def _guest_of(self) -> Guest:
        if self._guest is None:
            raise IllegalStateError(f"the block of {self.opens}() was not entered")
        return self._guest


def _check_asyncio(call: str) -> None:
    if asyncio._get_running_loop() is None:
        where = "in a program of Trio" if trio.lowlevel.in_trio_run() else "outside of asyncio"
        raise IllegalStateError(
            f"trikafka.aio.{call}() needs a running loop of asyncio, and was called {where}; with "
            f"Trio use trikafka.{call}()"
        )


def _by_name(function: Callable[P, Opening[Face]]) -> Callable[P, Opening[Face]]:
    """Refuse settings without a name, with the right line."""

    @wraps(function)
    def call(*args: P.args, **settings: P.kwargs) -> Opening[Face]:
        if args:
            raise ConfigurationError(
                f"{function.__name__}() takes settings by their names, such as "
                f"trikafka.aio.{function.__name__}(bootstrap_servers={shown(args[0])})"
            )
        return function(**settings)  # type: ignore[call-arg]  # there are no others

    return call


@overload
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Awaitable[Key]] | AsyncDeserializer[Key],
    value_deserializer: Callable[[bytes], Awaitable[Value]] | AsyncDeserializer[Value],
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Key, Value]]: ...
@overload
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Awaitable[Key]] | AsyncDeserializer[Key],
    value_deserializer: Callable[[bytes], Value] | Deserializer[Value] | None = None,
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Key, Value]]: ...
@overload
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Key] | Deserializer[Key] | None = None,
    value_deserializer: Callable[[bytes], Awaitable[Value]] | AsyncDeserializer[Value],
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Key, Value]]: ...
@overload
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Key] | Deserializer[Key] | None = None,
    value_deserializer: Callable[[bytes], Value] | Deserializer[Value] | None = None,
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Key, Value]]: ...
def open_consumer(
    *topics: str | re.Pattern[str] | SubscriptionPattern,
    key_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = None,
    value_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = None,
    **settings: Unpack[BytesConsumerSettings],
) -> Opening[Consumer[Any, Any]]:
    """Open a consumer; subscribe it to ``topics`` if any are given.

    Use it with ``async with``. Arguments, errors and the end of the block are those of
    :func:`trikafka.open_consumer`.

    Args:
        topics: Names of topics, or one pattern alone; they need a ``group_id``.
        key_deserializer: As of :func:`trikafka.open_consumer`. An async one runs in asyncio.
        value_deserializer: The same for values.
        settings: The others of :class:`trikafka.ConsumerConfig`. An async
            ``sasl_oauth_token_provider`` or ``sasl_credentials`` runs in asyncio.

    Raises:
        IllegalStateError: No asyncio runs, or Trio runs in this thread.
        TrikafkaError: As :func:`trikafka.open_consumer`.

    When the block is cancelled, the consumer still leaves its group, within a second.
    """
    given: dict[str, Any] = {
        **settings,
        "key_deserializer": key_deserializer,
        "value_deserializer": value_deserializer,
    }

    def make(guest: Guest) -> Any:
        return _open_consumer(*topics, **_bridged(guest, given))

    face: type[Consumer[Any, Any]] = Consumer
    return Opening("open_consumer", face, make)


@overload
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Awaitable[Key]] | AsyncDeserializer[Key],
    value_deserializer: Callable[[bytes], Awaitable[Value]] | AsyncDeserializer[Value],
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Key, Value]]: ...
@overload
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Awaitable[Key]] | AsyncDeserializer[Key],
    value_deserializer: Callable[[bytes], Value] | Deserializer[Value] | None = None,
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Key, Value]]: ...
@overload
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Key] | Deserializer[Key] | None = None,
    value_deserializer: Callable[[bytes], Awaitable[Value]] | AsyncDeserializer[Value],
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Key, Value]]: ...
@overload
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Key] | Deserializer[Key] | None = None,
    value_deserializer: Callable[[bytes], Value] | Deserializer[Value] | None = None,
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Key, Value]]: ...
def open_share_consumer(
    *topics: str,
    key_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = None,
    value_deserializer: Callable[[bytes], Any] | Deserializer[Any] | None = None,
    **settings: Unpack[BytesShareConsumerSettings],
) -> Opening[ShareConsumer[Any, Any]]:
    """Open a share consumer: a member of a group that shares topics record by record.

    Use it with ``async with``. Arguments, errors and the end of the block are those of
    :func:`trikafka.open_share_consumer`.

    Args:
        topics: Names of topics, at least one.
        key_deserializer: As of :func:`trikafka.open_share_consumer`. An async one runs in asyncio.
        value_deserializer: The same for values.
        settings: The others of :class:`trikafka.ShareConsumerConfig`. An async
            ``sasl_oauth_token_provider`` or ``sasl_credentials`` runs in asyncio.

    Raises:
        IllegalStateError: No asyncio runs, or Trio runs in this thread.
        TrikafkaError: As :func:`trikafka.open_share_consumer`.

    When the block is cancelled, records that are held are released within a second.
    """
    given: dict[str, Any] = {
        **settings,
        "key_deserializer": key_deserializer,
        "value_deserializer": value_deserializer,
    }

    def make(guest: Guest) -> Any:
        return _open_share_consumer(*topics, **_bridged(guest, given))

    face: type[ShareConsumer[Any, Any]] = ShareConsumer
    return Opening("open_share_consumer", face, make)


@_by_name
def open_producer(**settings: Unpack[ProducerSettings]) -> Opening[Producer]:
    """Open a producer.

    Use it with ``async with``. Arguments, errors and the end of the block are those of
    :func:`trikafka.open_producer`.

    Args:
        settings: Those of :class:`trikafka.ProducerConfig`. An async ``sasl_oauth_token_provider``
            or ``sasl_credentials`` runs in asyncio.

    Raises:
        IllegalStateError: No asyncio runs, or Trio runs in this thread.
        TrikafkaError: As :func:`trikafka.open_producer`.

    When the block is cancelled, accepted records are flushed for a second at most.
    """
    return Opening(
        "open_producer", Producer, lambda guest: _open_producer(**_bridged(guest, settings))
    )


@_by_name
def open_admin(**settings: Unpack[AdminSettings]) -> Opening[Admin]:
    """Open a client for administration.

    Use it with ``async with``. Arguments, errors and the end of the block are those of
    :func:`trikafka.open_admin`.

    Args:
        settings: Those of :class:`trikafka.AdminConfig`. An async ``sasl_oauth_token_provider``
            or ``sasl_credentials`` runs in asyncio.

    Raises:
        IllegalStateError: No asyncio runs, or Trio runs in this thread.
        TrikafkaError: As :func:`trikafka.open_admin`.
    """
    return Opening("open_admin", Admin, lambda guest: _open_admin(**_bridged(guest, settings)))


def _bridged(guest: Guest, settings: Any) -> Any:
    """Return the settings with the user's async functions called in asyncio."""
    functions = ("sasl_oauth_token_provider", "sasl_credentials")
    given = {name: settings[name] for name in functions if callable(settings.get(name))}
    return {**settings, **{name: _asked(guest, name, one) for name, one in given.items()}}


def _asked(guest: Guest, name: str, function: Callable[[], Any]) -> Callable[[], Any]:
    """Return ``function``, with an awaitable that it returns awaited in asyncio."""

    # A partial, or an object with an async ``__call__``, is known by what it returns.
    @wraps(function, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    def ask() -> Any:
        answer = function()
        if not inspect.isawaitable(answer):
            return answer
        return on_host(guest, name, lambda: answer)

    return ask
