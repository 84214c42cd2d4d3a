"""Spark contexts: their requirements, their start, their shared use and their stop.

All functions block, so they belong in threads. Do not call them in the main thread: there
SparkContext takes the handler of SIGINT away from Trio.
"""

# What is kept in module state, and why
# -------------------------------------
#
# A process has at most one Spark context, in PySpark's own module state. Several exports may use it
# at the same time. So its owner and its users are counted here, per process: a context that an
# export has started is shared by the exports that run in the meantime, and stopped with the last. A
# context that the program has made is used as it is and never stopped.
#
# ``_lock`` guards this state while a context is started or stopped. It is held for the whole start,
# which takes seconds: two exports that start at the same time get one JVM.
#
# A JVM may die at any time. PySpark keeps its gateway and its context even then, and every later
# call fails. So ``_forget_dead`` clears them, and the next export starts another JVM. Scratch files
# and the JVM's process are kept for the end of the program: a JVM that is still starting is killed
# there, and its folder is removed.

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import trikafka_export
from trikafka_export import scratch

import trikafka
from trikafka import ExportError

from .active_session import wrap_writers
from .jvm_settings import in_a_file

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

_LEAST_JAVA = 17
_MOST_CAUSES = 20
_log = logging.getLogger("trikafka.spark")
#: Guards what follows: the context that was started here, the number of its users, the directory
#: for temporary files of its JVM, and that JVM (a ``Popen``).
_lock = threading.Lock()
_ours: SparkContext | None = None
_users = 0
_scratch: Path | None = None
_jvm: Any = None


def check_requirements() -> None:
    """Raise :exc:`ExportError` if Spark or Java is missing, or Java is too old.

    Starts nothing but ``java -version``.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ExportError("Spark is missing: pip install 'pyspark>=3.5,<5'")
    if _running() is None:
        _check_java()


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = (
        f"Spark needs Java {_LEAST_JAVA} or newer: install a JDK (such as "
        f"openjdk-{_LEAST_JAVA}-jre-headless)"
    )
    named = f"{java} (of JAVA_HOME)" if home else java
    if java is None:
        raise ExportError(f"no java is on the PATH, and JAVA_HOME is not set; {advice}")
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ExportError(f"{named} does not run; {advice}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if version is not None and int(version[1]) < _LEAST_JAVA:
        raise ExportError(f"{named} is Java {version[1]}; {advice}")


def _running() -> SparkContext | None:
    """Return the process's Spark context if there is one that works.

    PySpark has no public function for that which would not start one.
    """
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return context if context is not None and answers(context) else None


def answers(context: SparkContext) -> bool:
    """Return whether a context is not stopped and its JVM responds."""
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # Py4J raises its own errors, and those of sockets
        return False


def acquire(master: str | None, app_name: str, conf: Mapping[str, str]) -> SparkContext:
    """Return the process's Spark context; start one if it has none that works.

    :func:`release` ends its use. Raises :exc:`ExportError` if Spark cannot be started.
    """
    global _ours, _users
    with _lock:
        context = _running()
        if context is None:
            _forget_dead()
            context = _ours = _start(master, app_name, conf)
            _users = 0
            wrap_writers()  # the session is active in this thread only, which does not write
        if context is _ours:
            _users += 1
        return context


def release(context: SparkContext) -> None:
    """End one use of a context of :func:`acquire`.

    The last user's call stops the context if it was started here. Never raises.
    """
    global _ours, _users
    with _lock:
        if context is not _ours:
            return
        _users -= 1
        if _users:
            return
        _ours = None
        _stop(context)
        _forget_dead()


def kill(context: SparkContext) -> None:
    """Kill the JVM that was started here for ``context`` and does not respond.

    Calls that wait for the JVM then fail. Never blocks.
    """
    jvm = _jvm
    if jvm is not None and getattr(getattr(context, "_gateway", None), "proc", jvm) is jvm:
        _expect_its_end()
        with contextlib.suppress(OSError):
            jvm.kill()


def _expect_its_end() -> None:
    """Silence the warnings about a JVM that is about to be killed.

    PySpark warns of a JVM that has gone. Py4J logs a traceback by the root logger for each call
    that breaks.
    """
    warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def _stop(context: SparkContext) -> None:
    # A stop that fails has dropped the JVM's part of the context; the second stop does the rest.
    for attempt in range(2):
        try:
            context.stop()
            return
        except Exception:  # the JVM may be gone
            _log.debug("stopping Spark failed (%d)", attempt, exc_info=True)


def _forget_dead() -> None:
    """Clear a dead context and a dead JVM from PySpark's state.

    PySpark does not notice that a context is dead if another party has stopped it.
    """
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    # A context without _jsc is being made by another thread at this moment.
    if context is not None and hasattr(context, "_jsc") and not answers(context):
        _stop(context)
    gateway: Any = SparkContext._gateway
    jvm = SparkContext._jvm
    if gateway is None or jvm is None:
        return
    try:
        getattr(jvm, "java.lang.System").currentTimeMillis()
    except Exception:  # Py4J raises its own errors, and those of sockets
        with SparkContext._lock:
            if SparkContext._gateway is gateway:
                SparkContext._gateway = SparkContext._jvm = None
        with contextlib.suppress(Exception):
            gateway.shutdown_callback_server()
        if (process := getattr(gateway, "proc", None)) is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.poll()


def _start(master: str | None, app_name: str, conf: Mapping[str, str]) -> SparkContext:
    _compile_quietly()
    from pyspark import SparkConf

    # PySpark warns about new releases of pandas. It imports pandas for its own checks; nothing here
    # uses pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
    spark_conf = SparkConf(loadDefaults=False)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryFile() as output:
        try:
            _make_scratch()
            for name, value in _settings(master, app_name, conf).items():
                spark_conf.set(name, value)
            return _launch(spark_conf, output)
        except Exception as error:
            raise ExportError(
                f"Spark could not be started: {_first_error(output) or first_line(error)}"
            ) from error


def _make_scratch() -> None:
    """Make a directory for the JVM that is about to start, unless the process has a JVM."""
    global _scratch
    from pyspark import SparkContext

    if SparkContext._gateway is None:
        _scratch = scratch.make()
        scratch.remove_at_exit(_scratch, _end_jvm)


def _end_jvm() -> None:
    """End the JVM that was started here, at the end of the process.

    A JVM that is still starting is killed. The thread that starts it then undoes what it has made.
    """
    jvm = _jvm
    if jvm is None:
        return
    free = _lock.acquire(blocking=False)
    if not free:
        _expect_its_end()
        jvm.kill()
        free = _lock.acquire(timeout=5)
    if free:
        _lock.release()  # this function is called for each directory that was made
    with contextlib.suppress(OSError, ValueError):
        jvm.stdin.close()  # a JVM of PySpark exits when its standard input closes
    try:
        jvm.wait(5)
    except subprocess.TimeoutExpired:  # frozen
        _expect_its_end()
        jvm.kill()


def _launch(conf: SparkConf, output: IO[bytes]) -> SparkContext:
    """Start a JVM, unless the process has one.

    Its standard error goes to ``output`` and not to the terminal.
    """
    from pyspark import SparkContext, __version__, java_gateway

    class RecordedJvm(subprocess.Popen[bytes]):
        """The process of the JVM, which is recorded in ``_jvm``, with its settings in a file.

        PySpark returns the process only after the JVM has responded. It would also pass all
        settings as arguments, which every list of processes shows.
        """

        def __init__(self, command: list[str], **kwargs: Any) -> None:
            global _jvm
            super().__init__(
                in_a_file(command, conf.getAll(), Path(file.name), __version__), **kwargs
            )
            _jvm = self

    if SparkContext._gateway is not None:
        return SparkContext(conf=conf, gateway=SparkContext._gateway)
    plain = java_gateway.Popen  # type: ignore[attr-defined]
    java_gateway.Popen = RecordedJvm  # type: ignore[assignment,attr-defined]
    try:
        # The file is readable by this user only.
        with tempfile.NamedTemporaryFile(dir=_scratch, suffix=".properties") as file:
            gateway = java_gateway.launch_gateway(None, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
    finally:
        java_gateway.Popen = plain  # type: ignore[attr-defined]
    return SparkContext(conf=conf, gateway=gateway)


def _first_error(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read(100_000).decode(errors="replace").splitlines()]
    wrong = [line for line in lines if re.search(r"error|exception|not found", line, re.IGNORECASE)]
    return wrong[0] if wrong else ""


def _compile_quietly() -> None:
    """Compile PySpark to bytecode in another process, if that was not done before.

    To compile one of its modules takes a second, in which no other Python thread of this process
    would run.
    """
    for name in ("pyspark", "pandas"):
        spec = importlib.util.find_spec(name)
        if (
            spec is not None
            and spec.origin is not None
            and not Path(importlib.util.cache_from_source(spec.origin)).exists()
        ):
            subprocess.run(
                [sys.executable, "-c", f"import {name}"],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )


def _settings(master: str | None, app_name: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the user's settings over ours."""
    defaults = {
        "spark.master": master or "local[*]",
        "spark.app.name": app_name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if defaults["spark.master"].startswith("local"):
        log = Path(__file__).with_name("quiet-log4j2.properties")
        own = {} if _scratch is None or "," in str(_scratch) else {"spark.local.dir": str(_scratch)}
        temporary = "" if _scratch is None else f' "-Djava.io.tmpdir={_scratch}"'
        places = dict.fromkeys(
            str(Path(package.__path__[0]).parent)
            for package in (trikafka, trikafka_export, sys.modules[__package__])
        )
        logging_options = f"-Dlog4j2.configurationFile={log.as_uri()}{temporary}"
        defaults |= own | {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": logging_options,
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(
                [*places, *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
    options = "spark.driver.extraJavaOptions"
    if options in defaults and options in conf:
        # Both are given to the JVM, where a later option wins.
        conf = {**conf, options: f"{defaults[options]} {conf[options]}"}
    return {**defaults, **conf}


def text_of(error: BaseException) -> str:
    """Return the whole text of an error of PySpark, with its causes in the JVM."""
    texts = [str(error)]
    try:
        java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        while java is not None and len(texts) < _MOST_CAUSES:
            texts.append(str(java))
            java = java.getCause()
    except Exception:  # the JVM may be gone
        return type(error).__name__
    return "\n".join(texts)


def first_line(error: BaseException) -> str:
    """Return the first line of an error of PySpark, without Java's stack."""
    try:
        java = getattr(error, "java_exception", None)
        text = str(error if java is None else java.getMessage())
    except Exception:  # the JVM may be gone
        text = type(error).__name__
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
