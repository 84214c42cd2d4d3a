"""The scripted cluster for tests of programs that run on asyncio.

It is :class:`trikafka.testing.ScriptedCluster`, run by the same guest as the clients of
:mod:`trikafka.aio`. A program does not need this module, so :mod:`trikafka.aio` does not import it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .. import testing
from ..errors import IllegalStateError
from ..testing import Rule, Seen
from ..testing.messages import Api, Message
from ..testing.script import Default, Handler, Predicate
from .crossing import Client, cross, on_host
from .guest import Guest
from .opening import Opening

__all__ = ["ScriptedCluster"]


class ScriptedCluster(testing.ScriptedCluster):
    """A :class:`trikafka.testing.ScriptedCluster` for a program of asyncio.

    The arguments and methods are the same, and so is the use: pass :attr:`bootstrap_servers` and
    :meth:`dial` to clients of :mod:`trikafka.aio`, opened inside of the cluster's block. The block
    can be entered once.

    * Time is asyncio's, so it is real. For a session that ends within the test, give
      ``session_timeouts`` or ``consumer_session_timeout``.
    * Handlers of :meth:`on` run in asyncio; predicates must not wait.
    * An exception in a handler cancels the task that entered the block, and is raised at its end.
    """

    # The cluster lives in a Trio task of the guest, as a client does, and `Opening` is the block
    # around both. All methods but three are plain functions that change the cluster's state. They
    # are called directly: same thread, same objects. Some of them make a Trio task ready, and the
    # guest notices that at its next tick only, so each use of a public name asks for one.
    #
    # The tick comes in a later turn of the loop, so it may be asked for before the call.
    _guest: Guest | None = None
    _block: Opening[Any] | None = None

    if not TYPE_CHECKING:  # type checkers would take every name for one of the cluster's

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_") and (guest := self._guest) is not None:
                guest.wake()
            return super().__getattribute__(name)

    async def __aenter__(self) -> Self:
        if self._block is not None:
            raise IllegalStateError("the block of a scripted cluster can be entered once")
        block = Opening("testing.ScriptedCluster", self._face, partial(_TrioSide, self))
        await block.__aenter__()
        self._block = block
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._block is not None
        try:
            await self._block.__aexit__(kind, error, trace)
        finally:
            self._guest = None

    async def seen(
        self, api: Api, count: int = 1, *, node: int | None = None, where: Predicate | None = None
    ) -> Seen:
        """Wait until ``count`` matching requests have arrived since the start; return the last one.

        Args:
            api: The name or number of the API.
            count: The number of requests.
            node: The node id; ``None`` for all.
            where: A predicate of the decoded request.
        """
        guest = self._guest
        if guest is None:
            raise IllegalStateError("a scripted cluster runs in its 'async with' block only")
        return await cross(guest, partial(super().seen, api, count, node=node, where=where))

    def on(
        self,
        api: Api,
        handler: Handler,
        times: int | None = None,
        *,
        node: int | None = None,
        where: Predicate | None = None,
    ) -> Rule:
        """Let the test respond by ``async def handler(request, default) -> response | None``.

        The handler and ``default`` are called in asyncio. All else is as in
        :meth:`trikafka.testing.ScriptedCluster.on`.
        """

        @wraps(handler, updated=())
        async def in_trio(request: Message, default: Default) -> Message | None:
            guest = self._guest
            assert guest is not None, "requests arrive inside of the block"
            execute: Callable[[], Awaitable[Message | None]] = partial(cross, guest, default)
            return await on_host(guest, "a cluster's handler", handler, request, execute)

        return super().on(api, in_trio, times, node=node, where=where)

    def _face(self, guest: Guest, _: object) -> Client:
        self._guest = guest
        return Client(guest, self)


class _TrioSide:
    """The cluster's block in Trio."""

    def __init__(self, cluster: ScriptedCluster, _: Guest) -> None:
        self._cluster = cluster

    async def __aenter__(self) -> ScriptedCluster:
        await testing.ScriptedCluster.__aenter__(self._cluster)
        return self._cluster

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await testing.ScriptedCluster.__aexit__(self._cluster, kind, error, trace)
