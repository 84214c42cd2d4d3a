"""The offsets of a consumer group in SQLite, beside the results of the program.

A result and the offset after its record are written in one transaction.
"""

import os
import sqlite3
from contextlib import closing
from functools import partial

import trio

from trikafka import CommitFailedError, OffsetAndMetadata, TopicPartition, hookimpl

_TABLE = (
    'create table if not exists kafka_offsets ("group", topic, part, next, note, primary key '
    '("group", topic, part))'
)
_PUT = (
    "insert into kafka_offsets values (?, ?, ?, ?, ?) on conflict do update set next = "
    "excluded.next, note = excluded.note"
)


def advance(database, group, batch):
    """Record, in the caller's transaction, that ``batch`` is processed.

    Raises:
        CommitFailedError: Another member has processed records beyond the batch's first one.
    """
    database.execute(_TABLE)
    row = (group, batch.topic, batch.partition, batch.next_offset, "", batch.offsets[0])
    if not database.execute(f"{_PUT} where next <= ?", row).rowcount:
        raise CommitFailedError(
            f"{batch.topic}-{batch.partition} was processed beyond {batch.offsets[0]} by another "
            "member"
        )


class SqliteOffsets:
    """The plugin, for one database file.

    Usage: ``open_consumer(..., plugins=[SqliteOffsets("results.db")])``.
    """

    def __init__(self, path):
        self.path = path

    @hookimpl
    def trikafka_request_manager(self, kind, context):
        return _Commits(self.path, context.config) if kind == "commit" and self.path else None


class _Commits:
    def __init__(self, path, config):
        self._path = path
        self._group = config.group_id
        self._limit = config.default_api_timeout

    async def commit(self, offsets, *, timeout=None, name="commit", check=lambda: None):
        check()
        await self._run(
            [(_PUT, (self._group, *tp, at.offset, at.metadata)) for tp, at in offsets.items()],
            timeout,
        )

    async def committed(self, partitions, *, timeout=None, name="committed"):
        rows = await self._run(
            [('select * from kafka_offsets where "group" = ?', (self._group,))], timeout
        )
        found = {
            TopicPartition(topic, part): OffsetAndMetadata(at, metadata=note)
            for _, topic, part, at, note in rows
        }
        return found if partitions is None else {tp: found.get(tp) for tp in partitions}

    async def fetch_once(self, call, partitions):
        return await self.committed(partitions, timeout=call.left)

    def recover(self, error):
        """No-op: there is no coordinator to look up again."""

    async def _run(self, statements, timeout):
        return await trio.to_thread.run_sync(
            partial(self._query, statements, self._limit if timeout is None else timeout)
        )

    def _query(self, statements, limit):
        # ``database`` as a context manager is one transaction.
        with closing(sqlite3.connect(self._path, timeout=limit)) as database, database:
            database.execute(_TABLE)
            return [row for sql, values in statements for row in database.execute(sql, values)]


plugin = SqliteOffsets(os.environ.get("TRIKAFKA_OFFSETS_DB"))
