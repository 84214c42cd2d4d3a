"""A member of the share group, which writes down each handler's beginning and end.

It ends at SIGTERM, when its parent is gone, or when it is killed.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import struct
import sys
import time

import trio

import trikafka

#: Partition, offset, delivery count, beginning and end of the handler (the machine's monotonic
#: clock), and whether the handler ended by itself.
LINE = struct.Struct("<iqhdd?")
_HANDLERS = 4
#: One handler in so many takes some time; the others none.
_SLOW = 500


async def main(bootstrap: str, group: str, topic: str, log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch, nursery.cancel_scope)
            nursery.start_soon(_work, bootstrap, group, topic, out)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


async def _watch(scope: trio.CancelScope) -> None:
    """End with the process that holds the other end of the standard input."""
    async with trio.lowlevel.FdStream(os.dup(0)) as held:
        await held.receive_some(1)
    scope.cancel()


async def _work(bootstrap: str, group: str, topic: str, out: int) -> None:
    async with trikafka.open_share_consumer(
        topic, group_id=group, bootstrap_servers=bootstrap
    ) as queue:
        async with trio.open_nursery() as nursery:
            for _ in range(_HANDLERS):
                nursery.start_soon(_handle, queue, out)


async def _handle(queue: trikafka.ShareConsumer[bytes | None, bytes | None], out: int) -> None:
    async for delivery in queue:
        record = delivery.record
        began = time.monotonic()

        def note(whole: bool, record: trikafka.Record = record, began: float = began) -> None:
            count = delivery.delivery_count  # noqa: B023  # called within this turn of the loop
            line = (record.partition, record.offset, count, began, time.monotonic(), whole)
            os.write(out, LINE.pack(*line))

        try:
            async with delivery:
                try:
                    if random.randrange(_SLOW) == 0:
                        await trio.sleep(random.uniform(0, 2))
                except trio.Cancelled:
                    note(False)
                    raise
                note(True)
        except trikafka.LockLostError:
            pass


if __name__ == "__main__":
    trio.run(functools.partial(main, *sys.argv[1:]))
