"""A member of the share group, which writes down each handler's end and each word of the broker.

It ends at SIGTERM, when its parent is gone, or when it is killed.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
import time
from typing import Any

import trio

import trikafka
from benchmarks.soak import run_worker

from .judge import LINE, Event

_HANDLERS = 4
#: One handler in so many takes up to so many seconds; the others none. The longest take longer than
#: a lock.
_TIMES = {500: 2.0, 5_000: 20.0}
#: The most accepts whose outcome is awaited at once, and the seconds before that wait begins. A
#: wait sends acknowledgements alone; before it they go out with a fetch. On a busy machine a line
#: about an accept comes as late as these take, and the judge must have it within some seconds: with
#: 10,000 it came 40 s late.
_UNHEARD, _TRAVEL = 500, 0.1


class Log:
    """The log of one process."""

    def __init__(self, path: str) -> None:
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, delivery: trikafka.Delivery[Any, Any], began: float, event: Event) -> None:
        """Write down that something of a record has happened now."""
        record = delivery.record
        line = (record.partition, record.offset, delivery.delivery_count, began)
        os.write(self._out, LINE.pack(*line, time.monotonic(), event))


Unheard = tuple[trikafka.Delivery[Any, Any], float]


async def main(bootstrap: str, group: str, topic: str, ports: str, path: str) -> None:
    proxied = {(host, port): own for host, port, own in json.loads(ports)}

    async def dial(host: str, port: int) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", proxied[host, port])

    async def work() -> None:
        async with (
            trikafka.open_share_consumer(
                topic, group_id=group, bootstrap_servers=bootstrap, dial=dial
            ) as queue,
            trio.open_nursery() as nursery,
        ):
            log = Log(path)
            accepts, unheard = trio.open_memory_channel[Unheard](_UNHEARD)
            nursery.start_soon(_collect, unheard, log)
            async with accepts, trio.open_nursery() as handlers:
                for _ in range(_HANDLERS):
                    handlers.start_soon(_handle, queue, accepts.clone(), log)

    await run_worker(work)


async def _handle(
    queue: trikafka.ShareConsumer[Any, Any], accepts: trio.MemorySendChannel[Unheard], log: Log
) -> None:
    async with accepts:
        async for delivery in queue:
            began = time.monotonic()
            try:
                async with delivery:
                    try:
                        await _work()
                    except trio.Cancelled:
                        log.note(delivery, began, Event.CUT)
                        raise
                    log.note(delivery, began, Event.DONE)
            except trikafka.LockLostError:
                continue
            await accepts.send((delivery, began))


async def _work() -> None:
    for one_in, longest in _TIMES.items():
        if random.randrange(one_in) == 0:
            await trio.sleep(random.uniform(0, longest))


# At the end of the run this goes on until each accept has its outcome. An acknowledgement has one
# when its lock ends, at the latest.
async def _collect(unheard: trio.MemoryReceiveChannel[Unheard], log: Log) -> None:
    with trio.CancelScope(shield=True):
        async for first in unheard:
            await trio.sleep(_TRAVEL)
            some = [first]
            while True:
                try:
                    some.append(unheard.receive_nowait())
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
            for delivery, began in some:
                try:
                    await delivery.acknowledged()
                except (trikafka.AcknowledgementError, trikafka.LockLostError):
                    continue
                log.note(delivery, began, Event.ACCEPTED)


if __name__ == "__main__":
    trio.run(functools.partial(main, *sys.argv[1:]))
