"""Spark's blocking calls in the threads of a Trio program, cancelled with their scope."""

# Why a thread needs the active session
# -------------------------------------
#
# Spark finds Python data sources, such as ``trikafka``, by the *active session* of the thread that
# calls it. A thread that did not make the session has none, and there
# ``frame.write.format("trikafka")`` and ``writeStream`` say ``DATA_SOURCE_NOT_FOUND``. A Trio
# program calls Spark in worker threads, so it always meets that.
#
# The JVM looks the source up in the active session, and an active session belongs to a thread. So
# nothing can be registered for all threads. PySpark's readers make their session the active one
# before they call the JVM; its writers do not. :func:`.register` wraps the writers so that they do.
# Each function here that has a session makes it active, too.
#
# Cancellation: a Spark job can be cancelled by its tag, from any thread. Tags belong to the thread
# that starts the job, and Trio uses a thread again for other work, so ``_tagged`` removes the tag
# where it was set. Calls that are not jobs of Spark, such as planning, cannot be interrupted: the
# thread goes on until it ends, and a warning is logged.

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import trio

from .active_session import active
from .cancellable_call import CancellableCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_log = logging.getLogger("trikafka.spark")
#: How many calls of :func:`in_thread` run at a time, without a limiter of the caller's.
_THREADS = 16
#: How long a cancelled :func:`run_query` waits for its stream to stop (seconds).
_STOP_LIMIT = 10.0
_default_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar(
    "trikafka_spark_threads"
)


async def in_thread(
    spark: SparkSession,
    function: Callable[[*Ts], T],
    *args: *Ts,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Call ``function(*args)`` in a thread where ``spark`` is the active session.

    Args:
        spark: The session that the function uses.
        function: A plain function that calls Spark. It may block.
        args: The arguments of the function.
        limiter: Bounds the number of threads. By default all calls of ``in_thread`` in one Trio run
            share sixteen.

    Returns:
        The function's result.

    Raises:
        Exception: The error of the function.

    Cancellation: the Spark jobs that the function has started, or starts yet, are cancelled. The
    call waits until the function has returned, usually a tenth of a second and at most five (half a
    second if the JVM does not respond). A function that is not in a Spark job goes on in its
    thread, with a warning. Streams that the function has started go on as well: see
    :func:`run_query`.
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
            _log.warning(
                "Spark did not end a cancelled call (%r); its thread continues in the background",
                function,
            )
        raise


async def run_query(spark: SparkSession, start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a stream, wait until it has ended, and return it.

    Args:
        spark: The session of the stream.
        start: A function that starts the stream, such as ``frame.writeStream....start``. It is
            called in a thread.

    Returns:
        The query, which has ended.

    Raises:
        pyspark.errors.StreamingQueryException: The stream has failed.
        Exception: The error of ``start``.

    Cancellation: the stream is stopped, and the call waits for its end for at most ten seconds. The
    next run of the stream goes on from its checkpoint.
    """
    stream = _Stream(start)
    waiting = trio.CapacityLimiter(1)  # a stream lasts long, and must take no thread from calls
    try:
        query = await in_thread(spark, stream.begin)
        await trio.to_thread.run_sync(
            query.awaitTermination, abandon_on_cancel=True, limiter=waiting
        )
    except trio.Cancelled:
        with trio.move_on_after(_STOP_LIMIT, shield=True) as scope:
            await trio.to_thread.run_sync(
                stream.stop, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
        if scope.cancelled_caught:
            _log.warning(
                "Spark did not stop a stream within %s s; it may continue in the background",
                _STOP_LIMIT,
            )
        raise
    return query


class _Stream:
    """A stream that one thread starts, and that may be unwanted before it has started.

    All methods block.
    """

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
    """Give the jobs of this thread a tag for the block.

    Tags belong to threads, and Trio uses threads again.
    """
    if hasattr(spark, "_jsparkSession"):
        add, remove = spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag
    else:
        add, remove = spark.addTag, spark.removeTag
    add(tag)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the JVM may be gone
            remove(tag)


def _cancel(spark: SparkSession, tag: str) -> None:
    """Cancel the jobs with the tag.

    Without Connect ``interruptTag`` finds only the jobs of its own thread.
    """
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
