"""A program that exports into a table, and is killed.

Usage: ``committing_child.py SERVERS TOPIC DESTINATION MOMENT OPTIONS``. Like ``exporting_child.py``
it stops at a moment: a stage of the export, ``partly`` through its ranges, just ``before`` the
table's log is changed (after all look-ups), or just ``after`` that. It waits there until it is
killed or gets SIGUSR1. After the signal it continues and prints how the export ended.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import trio
from exporting_child import halt_at_the_first_range, is_at, stand

import trikafka
from trikafka import ExportProgress, TrikafkaError


def around(change: Callable[..., Any], moment: str) -> Callable[..., Any]:
    """Wrap the call that changes the log, with a halt before or after it."""

    def halting(*arguments: Any, **named: Any) -> Any:
        if moment == "before":
            stand()
        result = change(*arguments, **named)
        if moment == "after":
            stand()
        return result

    return halting


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
            topic,
            destination,
            bootstrap_servers=servers,
            max_records_per_file=200,
            on_progress=tell,
            sink_options=given,
        )
        print("done", result.rows)
    except TrikafkaError as error:
        print(type(error).__name__, error)
    print("ended", flush=True)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    trio.run(main, *sys.argv[1:])
