"""The work of ``trikafka produce``. It succeeds only if every record was acknowledged."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from .._api.producer.ack import Ack
from .._api.producer.opening import open_producer
from .._api.producer.producer import Producer
from ..errors import TrikafkaError
from .admin import no_topic
from .progress import Meter, meter, note
from .record_lines import BadLineError, Line
from .running import Stop
from .source import Lines


@dataclass(frozen=True, slots=True)
class ProducePlan:
    """The lines to read and the records to write."""

    files: tuple[str, ...]
    topic: str | None
    read: Callable[[bytes], Line]
    skip_blank: bool
    key: bytes | None
    partition: int | None
    any_partition: bool
    headers: tuple[tuple[str, bytes | None], ...]


class Producing:
    """One run of the command."""

    def __init__(self, settings: dict[str, Any], plan: ProducePlan) -> None:
        self._settings = settings
        self._plan = plan
        self._acks: deque[tuple[str, Ack]] = deque()  # bounded by the producer's buffer_memory
        self._partitions: dict[str, int] = {}
        self._written = 0
        self._meter: Meter

    async def main(self, stop: Stop) -> None:
        """Write all lines; after a signal, those read so far.

        Raises the first failure, once the records before it are complete.
        """
        failed: click.ClickException | None = None
        text = f"to {self._plan.topic}" if self._plan.topic else "writing"
        with meter(text, "records", beside_output=False) as self._meter:
            async with open_producer(**self._settings) as producer:
                if self._plan.topic is not None:
                    await self._count_partitions(producer, self._plan.topic)
                try:
                    with stop.here():
                        for path in self._plan.files:
                            await self._send_file(producer, path)
                except click.ClickException as error:
                    failed = error
                try:
                    await producer.flush(
                        timeout=math.inf
                    )  # each record has its own limit, delivery_timeout_ms
                    await self._settle(everything=True)
                except click.ClickException as error:
                    failed = failed or error
        if failed is not None:
            before = (
                f"; {self._written} {'record was' if self._written == 1 else 'records were'} "
                "written"
            )
            raise click.ClickException(failed.message + before) from failed
        note(f"{self._written} records written")

    async def _send_file(self, producer: Producer, path: str) -> None:
        name = "" if path == "-" else f"{path}: "
        number = 0
        try:
            lines = Lines(path)
            try:
                while (some := await lines.read()) is not None:
                    for line in some:
                        number += 1
                        if line.strip() or not self._plan.skip_blank:
                            await self._send(producer, line, f"{name}line {number}")
                    await self._settle()
            finally:
                lines.close()
        except OSError as error:
            if isinstance(error, TrikafkaError):
                raise
            what = "the standard input" if path == "-" else path
            raise click.ClickException(
                f"cannot read {what}: {error.strerror or os.strerror(error.errno or 5)}"
            ) from error

    async def _send(self, producer: Producer, text: bytes, where: str) -> None:
        plan = self._plan
        try:
            line = plan.read(text)
            topic = plan.topic or line.topic
            if topic is None:
                raise BadLineError("it names no topic, and there is no --topic")
            partition = (
                plan.partition
                if plan.partition is not None
                else None
                if plan.any_partition
                else line.partition
            )
            count = self._partitions.get(topic) or await self._count_partitions(producer, topic)
            if partition is not None and partition >= count:
                hint = "" if plan.partition is not None else "; with --any-partition keys decide"
                raise BadLineError(
                    f"topic {topic!r} has {count} partitions, and no partition {partition}{hint}"
                )
            ack = await producer.enqueue(
                topic,
                line.value,
                key=line.key if line.key is not None else plan.key,
                headers=line.headers + plan.headers,
                timestamp=line.timestamp,
                partition=partition,
            )
        except (click.ClickException, TrikafkaError) as error:
            text_of = error.message if isinstance(error, click.ClickException) else str(error)
            raise BadLineError(f"{where}: {text_of}") from error
        self._acks.append((where, ack))

    async def _count_partitions(self, producer: Producer, topic: str) -> int:
        count = len(await producer.partitions_for(topic))
        if not count:
            raise await no_topic(self._settings, topic)
        self._partitions[topic] = count
        return count

    async def _settle(self, *, everything: bool = False) -> None:
        """Collect the known outcomes, or wait for all; raise the first failure."""
        failed: BadLineError | None = None
        while self._acks and (everything or self._acks[0][1].done):
            where, ack = self._acks.popleft()
            try:
                await ack.wait()
                self._written += 1
            except TrikafkaError as error:
                failed = failed or BadLineError(f"{where}: {error}")
                failed.__cause__ = failed.__cause__ or error
        self._meter(self._written)
        if failed is not None:
            raise failed
