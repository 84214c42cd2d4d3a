"""The imports of a program's first client, in a thread beside the event loop."""

# Why a thread, and why more than a client needs
# ----------------------------------------------
#
# The first client of a program imports about four hundred modules, which takes half a second. In
# one step that would hold the event loop for the whole time: timeouts of other tasks would pass,
# and heartbeats of other clients would be late. A thread gives the interpreter's lock back every
# few milliseconds. Under a virtual clock the import happens in the task: such a clock does not wait
# for a thread, and time would jump past the test's timeouts.
#
# A client also loads what the program will do with it. Public names are imported on first use,
# ``trikafka.run_tasks`` for example. That use is an attribute access in the user's own task,
# without any checkpoint: the import would hold the loop there, and a signal that arrives in such a
# step waits for its end. Once a client is open, the access finds the module loaded.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import trio

from ..._importing import one_thread
from ..._kafka_python import allow_schemas

if TYPE_CHECKING:
    from ...config import ClientConfig

PRODUCER = ("trikafka._api.producer.producer", "trikafka._api.producer.builtin")
CONSUMER = (
    "trikafka._api.consumer.consumer",
    "trikafka._api.consumer.builtin",
    "trikafka._api.consumer.parts",
    *PRODUCER,
    "trikafka._api.admin.types",
    "trikafka.tasks.run_tasks",
    "trikafka.tasks.processing",
)
SHARE = (
    "trikafka._api.share.consumer",
    "trikafka._api.share.builtin",
    "trikafka._api.share.parts",
    *PRODUCER,
)
ADMIN = ("trikafka._api.admin.admin",)


async def load(names: tuple[str, ...], config: ClientConfig) -> None:
    """Import these modules, and those that a client with these settings needs."""
    if config.uses_sasl:
        names += ("trikafka._net.auth",)
    if config.sasl_oauth_token_endpoint_url is not None:
        names += ("trikafka._net.oauth",)
    if type(trio.lowlevel.current_clock()).__name__ == "SystemClock":
        # The limiter is this call's own: the program may have used up the tokens of Trio's.
        await trio.to_thread.run_sync(
            _import_all, names, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True
        )
    else:
        _import_all(names)
        await trio.lowlevel.checkpoint()
    from ..._wire import _implementation
    from ..._wire._implementation import warn_if_missing

    # The event loop's thread has probably made the objects; the thread above may have imported the
    # compiled part.
    _implementation.current.uncount_references()
    # At the ``async with``, above load(), open_*() and contextlib's __aenter__().
    warn_if_missing(stacklevel=4)


def _import_all(names: tuple[str, ...]) -> None:
    with one_thread():
        allow_schemas()
        for name in names:
            import_module(name)
