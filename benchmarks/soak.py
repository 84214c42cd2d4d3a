"""Helpers of the soaks: arguments, folder, timed output, and programs that are killed."""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import kafka
import trio
from kafka.errors import KafkaError

import trikafka
from trikafka import NewTopic, TopicPartition

T = TypeVar("T")
ROOT = Path(__file__).parents[1]


def parser_of(
    package: str, description: str | None, *, keep: str = "", option: str = "--logs"
) -> argparse.ArgumentParser:
    """Return a parser of a soak's arguments, which has ``--seed``.

    Args:
        package: The package to run by ``python -m``.
        description: The soak, for ``--help``.
        keep: The contents of the folder that ``option`` names; nothing: there is no such option.
        option: The name of that option.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=description)
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(1_000_000),
        help="of the plan of faults (default: another one each time; it is printed)",
    )
    if keep:
        parser.add_argument(option, type=Path, help=f"where {keep} go (default: they are not kept)")
    return parser


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Yield ``keep``, created if missing, or a temporary folder."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        yield directory


def teller() -> Callable[[str], None]:
    """Return a function that prints a line after the seconds since this call."""
    begun = time.monotonic()
    return lambda line: print(f"{time.monotonic() - begun:6.1f} s  {line}", flush=True)


@contextmanager
def killed_at_the_end(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in its own process group, and append its output to ``log``.

    When the block is left, SIGKILL ends the whole group.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Worker:
    """A slot for a process of a soak: ``python -m module``, with arguments.

    The slot holds the process's standard input, whose end ends the process (:func:`run_worker`).
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._begins_at = 0  # the process's first byte in the log
        #: Exit codes of processes that ended without a signal of this slot; -1 for one that did not
        #: end at its signal.
        self.ends: Counter[int] = Counter()

    def start(self, *more: str) -> None:
        """Start the process unless it is running; ``more`` are further arguments."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._forget(self._process, code)
        if self._process is None:
            with self._log.open("ab") as log:
                self._begins_at = log.tell()
                self._process = subprocess.Popen(
                    [*self._command, *more], cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
                )

    def has_said(self, line: str) -> bool:
        """Return whether the last process that was started has written a line into its log."""
        with self._log.open("rb") as log:
            log.seek(self._begins_at)
            return line.encode() in log.read().splitlines()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, number: signal.Signals, limit: float = 300) -> None:
        """Send a signal that ends the process, and wait for its end; kill it after ``limit`` s."""
        process = self._process
        if process is None:
            return
        if (code := process.poll()) is not None:
            self._forget(process, code)
            return
        process.send_signal(number)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.ends[-1] += 1
        self._close(process)

    def _forget(self, process: subprocess.Popen[bytes], code: int) -> None:
        self.ends[code] += 1
        self._close(process)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        assert process.stdin is not None
        process.stdin.close()


async def run_worker(work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` in the process of a :class:`Worker`.

    It is cancelled at SIGTERM, and when the process that holds the other end of the standard input
    is gone.
    """
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async with trio.lowlevel.FdStream(os.dup(0)) as held:
                    await held.receive_some(1)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            nursery.start_soon(work)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


async def make_topics(servers: str, topics: Mapping[str, NewTopic]) -> None:
    """Create topics as :func:`create_known` does, by a client of its own."""
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await create_known(admin, topics)


async def create_known(
    admin: trikafka.Admin, topics: Mapping[str, NewTopic], limit: float = 240
) -> None:
    """Create topics, and wait up to ``limit`` seconds until the brokers report them.

    The controller responds before the brokers know a topic, and a producer looks for it for three
    seconds only. A broker that stood still for longer than its session takes no replica until it is
    back. Then there are too few brokers for a topic with a copy on each.
    """
    with trio.fail_after(limit):
        for name, topic in topics.items():
            while not await _created(admin, name, topic):  # noqa: ASYNC110
                await trio.sleep(0.1)
        while not topics.keys() <= (await admin.list_topics()).keys():  # noqa: ASYNC110
            await trio.sleep(0.05)


async def _created(admin: trikafka.Admin, name: str, topic: NewTopic) -> bool:
    try:
        await admin.create_topics({name: topic})
    except trikafka.BrokerResponseError as error:
        if error.name != "INVALID_REPLICATION_FACTOR":
            raise
        return False
    return True


async def opened_at_last(
    stack: AsyncExitStack, opening: Callable[[], AbstractAsyncContextManager[T]]
) -> T:
    """Open a client with a short limit of requests, until a busy broker answers in that time."""
    # No cancel scope: a client's nursery outlives this function.
    until = trio.current_time() + 240
    while True:
        try:
            return await stack.enter_async_context(opening())
        except trikafka.BootstrapError:
            if trio.current_time() > until:
                raise


async def no_transaction_open(servers: str, places: Sequence[TopicPartition]) -> None:
    """Wait until the last stable offsets are the ends of the partitions.

    A commit is answered, and a group's offsets may be visible as committed, before the
    transaction's markers are in the topics. The transaction of a killed worker stays open until its
    timeout. A reader of committed records stops before an open transaction and misses the records
    behind it.
    """
    async with (
        trikafka.open_consumer(bootstrap_servers=servers) as reader,
        trikafka.open_consumer(
            bootstrap_servers=servers, isolation_level="read_committed"
        ) as committed,
    ):
        # A coordinator that sent the markers to a frozen broker sends them again after 30 s.
        with trio.fail_after(300):
            while await committed.end_offsets(places) != await reader.end_offsets(places):  # noqa: ASYNC110
                await trio.sleep(0.2)


def move_leaders(bootstrap: str, topic: str, orders: Mapping[int, list[int]]) -> None:
    """Give the replicas of partitions another order, and have the first of each elected."""
    places = {kafka.TopicPartition(topic, number): order for number, order in orders.items()}
    with suppress(KafkaError):  # a broker may still be starting
        admin = kafka.KafkaAdminClient(
            bootstrap_servers=bootstrap.split(","), request_timeout_ms=10_000
        )
        try:
            admin.alter_partition_reassignments(places, timeout_ms=5_000)
            admin.elect_leaders(0, {topic: list(orders)}, timeout_ms=5_000, raise_errors=False)
        finally:
            admin.close()
