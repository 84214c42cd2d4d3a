"""The numbers of records that were written to each partition, for the report at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import click

from ..types import PartitionDelivery, TopicPartition
from .running import ReaderGoneError
from .tables import say, say_rows

_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "records": "RECORDS",
    "first_offset": "FIRST OFFSET",
    "last_offset": "LAST OFFSET",
}


class Delivered:
    """The records that were acknowledged, by partition.

    ``count``: all of them. Records of other programs may lie between the first offset and the last.
    """

    def __init__(self) -> None:
        self.count = 0
        self._parts: dict[TopicPartition, PartitionDelivery] = {}

    def add(self, parts: Mapping[TopicPartition, PartitionDelivery]) -> None:
        """Add what was delivered. The failure of a table may be known before older outcomes."""
        for tp, part in parts.items():
            self.count += part.rows
            if (before := self._parts.get(tp)) is None:
                self._parts[tp] = part
                continue
            firsts = [at for at in (before.first_offset, part.first_offset) if at is not None]
            lasts = [at for at in (before.last_offset, part.last_offset) if at is not None]
            self._parts[tp] = PartitionDelivery(
                before.rows + part.rows, min(firsts, default=None), max(lasts, default=None)
            )

    @contextmanager
    def reporting(self, output: str) -> Iterator[None]:
        """Return a context after whose block the report is printed, also if the block fails.

        The block's failure is raised even if the report cannot be printed.
        """
        try:
            yield
        except BaseException:
            with suppress(ReaderGoneError, click.ClickException):
                self.report(output)
            raise
        try:
            self.report(output)
            if output != "json" and not self.count:
                say("no records were written")
        except click.ClickException as error:
            # Without this, a script might write the records once more.
            count = "1 record was" if self.count == 1 else f"{self.count} records were"
            raise click.ClickException(f"{error.message}; {count} written all the same") from error

    def report(self, output: str) -> None:
        """Print a row for each partition."""
        rows = [
            (tp.topic, tp.partition, part.rows, part.first_offset, part.last_offset)
            for tp, part in sorted(self._parts.items())
        ]
        if rows or output == "json":
            say_rows(output, _COLUMNS, rows)
