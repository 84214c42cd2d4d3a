"""Spark contexts: what they need of the machine, starting one, stopping it. All functions block: call them in a thread.

Never in the main thread: there SparkContext takes the handler of SIGINT away from Trio.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

import trikafka
from trikafka import ExportError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

_LEAST_JAVA = 17
_starting = threading.Lock()


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
    """The process's Spark context, if there is one. PySpark has no public way to ask without making one."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def start(master: str | None, app_name: str, conf: Mapping[str, str], unwanted: Callable[[], bool]) -> tuple[SparkContext, bool]:
    """Return a Spark context and whether it was started here; one that the process has already is used as it is.

    When ``unwanted()`` has become true by then (the caller was cancelled) what was started is stopped again. Raises
    :exc:`ExportError`.
    """
    with _starting:
        context = _running()
        if context is not None:
            return context, False
        _compile_quietly()
        from pyspark import SparkConf

        # PySpark imports pandas, where it is installed, for its own checks.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support", FutureWarning)
        spark_conf = SparkConf(loadDefaults=False)
        for name, value in {**_defaults(master, app_name), **conf}.items():
            spark_conf.set(name, value)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        with tempfile.TemporaryFile() as said:
            try:
                context = _launch(spark_conf, said)
            except Exception as error:
                raise ExportError(f"Spark could not be started: {_last_words(said) or first_line(error)}") from error
        if unwanted():
            context.stop()
        return context, True


def _launch(conf: SparkConf, said: IO[bytes]) -> SparkContext:
    """Start a JVM, unless the process has one, whose standard error goes to ``said`` and not to the terminal."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    gateway = SparkContext._gateway or launch_gateway(conf, {"stderr": said})  # type: ignore[no-untyped-call]
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
        places = dict.fromkeys(str(Path(package.__path__[0]).parent) for package in (trikafka, sys.modules[__package__]))
        defaults |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log.as_uri()}",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
    return defaults


def first_line(error: BaseException) -> str:
    """What an error of PySpark says, without Java's stack."""
    text = str(error)
    if (java := getattr(error, "java_exception", None)) is not None:
        try:
            text = str(java.getMessage())
        except Exception:  # the JVM may be gone
            text = type(error).__name__
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
