"""Spark contexts: what they need of the machine, starting one, sharing it, stopping it. All functions block: call them in a
thread.

A context that was started here is shared by the exports that run meanwhile, and stopped when the last gives it back. One that
somebody else started is used as it is and never stopped. A JVM may die at any time: then PySpark is made to forget it, which it
does not do by itself, so that the next export starts another.

Never in the main thread: there SparkContext takes the handler of SIGINT away from Trio.
"""

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

import trikafka
from trikafka import ExportError

from . import scratch
from .jvm_settings import in_a_file

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

_LEAST_JAVA = 17
_MOST_CAUSES = 20
_log = logging.getLogger("trikafka.spark")
#: Held while a context is started or stopped, and for what follows: the context started here, how many use it, and the
#: directory for temporary files of the JVM that was started here, and that JVM (a ``Popen``).
_lock = threading.Lock()
_ours: SparkContext | None = None
_users = 0
_scratch: Path | None = None
_jvm: Any = None


def check_requirements() -> None:
    """Raise :exc:`ExportError` if Spark or Java is missing, or Java is too old. Quick: starts nothing but ``java -version``."""
    if importlib.util.find_spec("pyspark") is None:
        raise ExportError("Spark is missing: pip install 'pyspark>=4.2,<5'")
    if _running() is None:
        _check_java()


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = f"Spark needs Java {_LEAST_JAVA} or newer: install a JDK (such as openjdk-{_LEAST_JAVA}-jre-headless)"
    if java is None:
        raise ExportError(f"no java on the PATH and no JAVA_HOME; {advice}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        raise ExportError(f"{java} does not run; {advice}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if version is not None and int(version[1]) < _LEAST_JAVA:
        raise ExportError(f"{java} is Java {version[1]}; {advice}")


def _running() -> SparkContext | None:
    """The process's Spark context, if there is one that works. PySpark has no public way to ask without making one."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return context if context is not None and answers(context) else None


def answers(context: SparkContext) -> bool:
    """Whether a context is neither stopped nor without its JVM."""
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # Py4J raises its own errors, and those of sockets
        return False


def acquire(master: str | None, app_name: str, conf: Mapping[str, str]) -> SparkContext:
    """Return the process's Spark context; start one if it has none that works. To be given back by :func:`release`.

    Raises :exc:`ExportError`.
    """
    global _ours, _users
    with _lock:
        context = _running()
        if context is None:
            _forget_dead()
            context = _ours = _start(master, app_name, conf)
            _users = 0
        if context is _ours:
            _users += 1
        return context


def release(context: SparkContext) -> None:
    """Give back what :func:`acquire` returned; stop it if it was started here and nobody else uses it. Never raises."""
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
    """End the JVM that was started here for ``context`` and does not answer; what waits for it then fails. Never blocks."""
    jvm = _jvm
    if jvm is not None and getattr(getattr(context, "_gateway", None), "proc", jvm) is jvm:
        _expect_its_end()
        with contextlib.suppress(OSError):
            jvm.kill()


def _expect_its_end() -> None:
    """PySpark warns of a JVM that has gone, and Py4J logs a traceback by the root logger for each call that it breaks."""
    warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
    logging.getLogger().addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _stop(context: SparkContext) -> None:
    for attempt in range(2):  # one that fails takes the JVM's part away, and leaves the rest to the next
        try:
            context.stop()
            return
        except Exception:  # the JVM may be gone
            _log.debug("stopping Spark failed (%d)", attempt, exc_info=True)


def _forget_dead() -> None:
    """Make PySpark forget a context that was stopped otherwise than by it, and a JVM that is gone."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None and hasattr(context, "_jsc") and not answers(context):  # without _jsc another thread just makes it
        _stop(context)
    gateway: Any = SparkContext._gateway
    jvm = SparkContext._jvm
    if gateway is None or jvm is None:
        return
    try:
        getattr(jvm, "java.lang.System").currentTimeMillis()
    except Exception:
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

    ignore_pandas()
    spark_conf = SparkConf(loadDefaults=False)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryFile() as said:
        try:
            _make_scratch()
            for name, value in _joined(_defaults(master, app_name), conf).items():
                spark_conf.set(name, value)
            return _launch(spark_conf, said)
        except Exception as error:
            raise ExportError(f"Spark could not be started: {_last_words(said) or first_line(error)}") from error


def ignore_pandas() -> None:
    """PySpark imports pandas, where it is installed, for its own checks, and warns of a new one, which is not used here."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)


def _make_scratch() -> None:
    """For the JVM that is about to be started, if the process has none."""
    global _scratch
    from pyspark import SparkContext

    if SparkContext._gateway is None:
        _scratch = scratch.make()
        scratch.remove_at_exit(_scratch, _end_jvm)


def _end_jvm() -> None:
    """At the end of the process: let the JVM that was started here end. One that is just being started is killed, and then the
    thread that starts it takes back what it has made meanwhile."""
    jvm = _jvm
    if jvm is None:
        return
    free = _lock.acquire(blocking=False)
    if not free:
        _expect_its_end()
        jvm.kill()
        free = _lock.acquire(timeout=5)
    if free:
        _lock.release()  # this is called for each directory that was made
    with contextlib.suppress(OSError, ValueError):
        jvm.stdin.close()  # what a JVM of PySpark ends on
    try:
        jvm.wait(5)
    except subprocess.TimeoutExpired:  # frozen
        _expect_its_end()
        jvm.kill()


def _launch(conf: SparkConf, said: IO[bytes]) -> SparkContext:
    """Start a JVM, unless the process has one, whose standard error goes to ``said`` and not to the terminal."""
    from pyspark import SparkContext, java_gateway

    class Noted(subprocess.Popen[bytes]):
        """PySpark keeps the process to itself until the JVM answers; it would show all settings to whoever lists processes."""

        def __init__(self, command: list[str], **kwargs: Any) -> None:
            global _jvm
            super().__init__(in_a_file(command, conf.getAll(), Path(file.name)), **kwargs)
            _jvm = self

    if SparkContext._gateway is not None:
        return SparkContext(conf=conf, gateway=SparkContext._gateway)
    plain = java_gateway.Popen  # type: ignore[attr-defined]
    java_gateway.Popen = Noted  # type: ignore[assignment,attr-defined]
    try:
        with tempfile.NamedTemporaryFile(dir=_scratch, suffix=".properties") as file:  # nobody else may read it
            gateway = java_gateway.launch_gateway(None, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]
    finally:
        java_gateway.Popen = plain  # type: ignore[attr-defined]
    return SparkContext(conf=conf, gateway=gateway)


def _last_words(said: IO[bytes]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said.read(100_000).decode(errors="replace").splitlines()]
    wrong = [line for line in lines if re.search(r"error|exception|not found", line, re.IGNORECASE)]
    return wrong[0] if wrong else ""


def _compile_quietly() -> None:
    """Have another process make the bytecode if there is none yet: compiling one module of PySpark takes a second, in
    which no other Python thread of this process would run."""
    for name in ("pyspark", "pandas"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and not Path(importlib.util.cache_from_source(spec.origin)).exists():
            subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, stdin=subprocess.DEVNULL, check=False)


def _defaults(master: str | None, app_name: str) -> dict[str, str]:
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
        places = dict.fromkeys(str(Path(package.__path__[0]).parent) for package in (trikafka, sys.modules[__package__]))
        defaults |= own | {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log.as_uri()}{temporary}",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
    return defaults


def _joined(ours: dict[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """The user's settings over ours; options of the JVM stand behind each other, where a later one wins."""
    options = "spark.driver.extraJavaOptions"
    both = " ".join(each[options] for each in (ours, theirs) if options in each)
    return {**ours, **theirs, **({options: both} if both else {})}


def text_of(error: BaseException) -> str:
    """All that an error of PySpark says, and what caused it in the JVM, which is asked for that."""
    return "\n".join(causes_of(error))


def causes_of(error: BaseException) -> list[str]:
    """What an error of PySpark says, what caused that in the JVM, and so on; at least one text."""
    texts = [str(error)]
    try:
        java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        while java is not None and len(texts) < _MOST_CAUSES:
            texts.append(str(java))
            java = java.getCause()
    except Exception:  # the JVM may be gone
        return [type(error).__name__]
    return texts


def first_line(error: BaseException) -> str:
    """What an error of PySpark says, without Java's stack."""
    try:
        java = getattr(error, "java_exception", None)
        text = str(error if java is None else java.getMessage())
    except Exception:  # the JVM may be gone
        text = type(error).__name__
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
