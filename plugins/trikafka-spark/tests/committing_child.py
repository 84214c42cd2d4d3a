"""A program that exports into a table, to be killed: ``committing_child.py SERVERS TOPIC DESTINATION MOMENT OPTIONS``.

It stands still at a stage of the export, as ``exporting_child.py`` does, ``partly`` through its ranges, or just ``before`` the
table's log is changed (all has been looked up) or just ``after``, until it is killed or gets SIGUSR1; then it goes on and says
how it ended.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import trio
from exporting_child import is_at

import trikafka
from trikafka import ExportProgress, TrikafkaError


def stand() -> None:
    print("standing", flush=True)
    signal.sigwait({signal.SIGUSR1})


def around(change: Callable[..., Any], moment: str) -> Callable[..., Any]:
    """The call that changes the log, with a halt at one side of it."""

    def halting(*arguments: Any, **named: Any) -> Any:
        if moment == "before":
            stand()
        result = change(*arguments, **named)
        if moment == "after":
            stand()
        return result

    return halting


def halt_at_the_first_range() -> None:
    """Some ranges are written, and the plan is not: the thread that has written the first one stands still."""
    from trikafka_spark import local  # now: threads of what it imports must block SIGUSR1, too

    write, first = local.write_range, threading.Lock()

    def halting(*arguments: Any) -> Any:
        result = write(*arguments)
        if first.acquire(blocking=False):
            stand()
        return result

    vars(local)["write_range"] = halting


def halt(format: str, moment: str) -> None:
    if moment == "partly":
        halt_at_the_first_range()
    elif format == "delta":
        import deltalake

        table: Any = deltalake.DeltaTable
        table.create_write_transaction = around(table.create_write_transaction, moment)
    else:
        from pyiceberg.table import Transaction

        transaction: Any = Transaction
        commit = transaction.commit_transaction

        def only_ours(self: Any) -> Any:
            ours = bool(self._snapshot_producers)
            return (around(commit, moment) if ours else commit)(self)

        transaction.commit_transaction = only_ours


async def main(servers: str, topic: str, destination: str, moment: str, options: str) -> None:
    given = json.loads(options)
    halt(given["format"], moment)

    def tell(step: ExportProgress) -> None:
        if moment != "partly" and is_at(moment, step):
            stand()

    try:
        result = await trikafka.export(
            topic, destination, bootstrap_servers=servers, max_records_per_file=200, on_progress=tell, sink_options=given
        )
        print("done", result.rows)
    except TrikafkaError as error:
        print(type(error).__name__, error)
    print("ended", flush=True)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    trio.run(main, *sys.argv[1:])
