"""The opening of the clients of a write.

A bootstrap address that does not respond is tried again, for as long as a send may wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

import trio

from trikafka import BootstrapError, ProducerConfig, RequestTimedOutError

from .write_options import WriteOptions

_log = logging.getLogger("trikafka.spark")
Client = TypeVar("Client")


async def enter(
    stack: AsyncExitStack,
    options: WriteOptions,
    make: Callable[[], AbstractAsyncContextManager[Client]],
) -> Client:
    """Enter the client that ``make`` makes, and return it.

    If no address responds, the opening is repeated for up to ``max.block.ms``. The last attempt is
    waited for: it takes ``request.timeout.ms``. If a connection is refused, there is no broker at
    the address, and the error is raised at once.
    """
    limit = options.settings.get("max_block_ms", ProducerConfig().max_block_ms) / 1000
    ends, logged = trio.current_time() + limit, False
    while True:
        try:
            client: Client = await stack.enter_async_context(make())
        except BootstrapError as error:
            if not isinstance(error.__cause__, RequestTimedOutError) or trio.current_time() >= ends:
                raise
            if not logged:
                _log.warning(
                    "%s; it is asked again for up to %g s (kafka.max.block.ms)", error, limit
                )
            logged = True
        else:
            return client
