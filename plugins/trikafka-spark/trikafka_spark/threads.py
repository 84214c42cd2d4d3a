"""Spark in a Trio program: its blocking calls in threads, with the session that it looks for there, cancelled with their scope.

Spark finds Python data sources, such as ``trikafka``, by the *active session* of the thread that calls it. A thread of
``trio.to_thread`` has none: there ``frame.write.format("trikafka")`` and ``writeStream`` say ``DATA_SOURCE_NOT_FOUND``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import trio

from .cancelling import CancellableCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger("trikafka.spark")
#: How many calls of :func:`in_thread` run at a time, unless it is given another limiter.
_THREADS = 16
#: How long a stream may take to stop when the scope is cancelled (seconds). Then it is left to Spark.
_STOP_LIMIT = 10.0
_default_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("trikafka_spark_threads")


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make ``spark`` the active session of this thread, and what was active before again at the end.

    For threads that did not make the session: Spark finds ``format("trikafka")`` by it in writes and streams. Blocks, briefly:
    call it in the thread that calls Spark (:func:`in_thread` does). By Spark Connect it does nothing, for there the server knows.
    """
    session: Any = spark
    if not hasattr(session, "_jsparkSession"):
        yield
        return
    sessions = session._get_j_spark_session_class(session._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the JVM may be gone
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


async def in_thread(
    spark: SparkSession, function: Callable[[*Ts], T], *args: *Ts, limiter: trio.CapacityLimiter | None = None
) -> T:
    """Call ``function(*args)``, which calls Spark, in a thread where ``spark`` is the active session; return what it returns.

    ``limiter`` says how many threads there may be: by default sixteen, for all calls of this function. Raises what the function
    raises.

    Cancellation: a cancelled scope cancels the Spark jobs that the function has started or starts yet, and waits until it has
    come back, usually a tenth of a second, at most five (half a second where the JVM does not answer at all). What is no job of
    Spark's goes on in its thread then: a warning says so. Streams that the function has started go on: see :func:`run_query`.
    """
    tag = f"trikafka-{uuid.uuid4()}"

    def work() -> T:
        with active(spark), _tagged(spark, tag):
            return function(*args)

    call = CancellableCall(work, lambda: _cancel(spark, tag), limiter or _limiter())
    try:
        return await call.run()
    except trio.Cancelled:
        if call.left_behind:
            _log.warning("Spark does not end a cancelled call (%r): its thread is left alone", function)
        raise


async def run_query(spark: SparkSession, start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a stream (``start`` is such as ``frame.writeStream....start``), wait until it has ended, and return it.

    Raises what ``start`` raises, and :exc:`pyspark.errors.StreamingQueryException` where the stream has failed.

    Cancellation: a cancelled scope stops the stream and waits for that, at most ten seconds. Its next run goes on from its
    checkpoint.
    """
    stream = _Stream(start)
    waiting = trio.CapacityLimiter(1)  # a stream lasts: it takes no thread from calls that do not
    try:
        query = await in_thread(spark, stream.begin)
        await trio.to_thread.run_sync(query.awaitTermination, abandon_on_cancel=True, limiter=waiting)
    except trio.Cancelled:
        with trio.move_on_after(_STOP_LIMIT, shield=True) as scope:
            await trio.to_thread.run_sync(stream.stop, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
        if scope.cancelled_caught:
            _log.warning("Spark does not stop a stream within %s s: it is left to it", _STOP_LIMIT)
        raise
    return query


class _Stream:
    """A stream that is being started by one thread, and may be unwanted before it has begun. All methods block."""

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._handing_over = threading.Lock()
        self._query: StreamingQuery | None = None
        self._unwanted = False

    def begin(self) -> StreamingQuery:
        query = self._start()
        with self._handing_over:
            self._query = query
            unwanted = self._unwanted
        if unwanted:
            query.stop()
        return query

    def stop(self) -> None:
        with self._handing_over:
            self._unwanted = True
            query = self._query
        if query is not None:
            query.stop()


@contextmanager
def _tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Jobs of this thread have the tag meanwhile. (Tags belong to threads, and Trio uses threads again.)"""
    tags: Any = spark.sparkContext if hasattr(spark, "_jsparkSession") else spark
    add, remove = (tags.addJobTag, tags.removeJobTag) if hasattr(tags, "addJobTag") else (tags.addTag, tags.removeTag)
    add(tag)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the JVM may be gone
            remove(tag)


def _cancel(spark: SparkSession, tag: str) -> None:
    """Cancel the jobs with the tag. Without Connect ``interruptTag`` finds only those of its own thread."""
    if hasattr(spark, "_jsparkSession"):
        spark.sparkContext.cancelJobsWithTag(tag)
    else:
        spark.interruptTag(tag)


def _limiter() -> trio.CapacityLimiter:
    try:
        return _default_limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_THREADS)
        _default_limiter.set(limiter)
        return limiter
