"""The active session of a thread, by which Spark finds Python data sources.

:func:`register` wraps PySpark's writers, so that writes find them in every thread.
"""

# The wrapped methods are PySpark's own class attributes: PySpark has no hook for that, and each
# frame makes a new writer. A mark on the wrapper (``_WRAPPED``) makes a second call harmless, also
# when two threads register at once.

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The attribute that marks a wrapped method.
_WRAPPED = "_trikafka_wrapped"
#: Guards the wrapping.
_wrapping = threading.Lock()


def register(spark: SparkSession) -> None:
    """Have writes and streams find ``format("trikafka")`` in every thread of this program.

    Call this function once, after the session was made; another call has no effect. It wraps
    ``DataFrameWriter.save`` and ``DataStreamWriter.start`` of PySpark, for all formats: while they
    run, the frame's session is the active session of the thread. With Spark Connect it does
    nothing, since the server looks up the source.

    Args:
        spark: The session of the program.
    """
    if hasattr(spark, "_jsparkSession"):
        wrap_writers()


def wrap_writers() -> None:
    """Have ``save`` and ``start`` make the session of their frame the active one.

    It is the active session of the calling thread while they run. Imports pyspark.
    """
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for writer, name in ((DataFrameWriter, "save"), (DataStreamWriter, "start")):
        with _wrapping:
            method = getattr(writer, name)
            if not hasattr(method, _WRAPPED):
                setattr(writer, name, _in_its_session(method))


def _in_its_session(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(writer: Any, *args: Any, **named: Any) -> Any:
        with active(writer._spark):
            return method(writer, *args, **named)

    setattr(call, _WRAPPED, True)
    return call


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make ``spark`` the active session of this thread for the block.

    At the end the session that was active before is active again. This is for threads of the
    program's own that did not make the session: Spark finds Python data sources by it. It calls
    :func:`register`, which is enough for writes and streams. It blocks briefly, so use it in the
    thread that calls Spark; :func:`.in_thread` does. With Spark Connect it has no effect.

    Args:
        spark: The session to make active.
    """
    session: Any = spark
    if not hasattr(session, "_jsparkSession"):
        yield
        return
    wrap_writers()
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
