"""How the tests are spread over processes (``make test`` has three of them, by pytest-xdist; without it nothing here is in force).

A file's tests stay together, for they share a broker. Files with a real broker come first: they wait more than they work, and
what is left for the end is quick. A test with the mark ``alone`` measures what a busy machine falsifies: nothing else runs then.
It waits for the tests that the other processes have begun, so its file comes when these are quick ones.

And what is chance in them, in any process: Trio shuffles its tasks, and retries have jitter. A test has the same of both each time,
by its name, so that a test that passes here passes elsewhere; and Hypothesis has the same examples. ``--chance 7`` gives others, to
look for what fails then. An example may take its time in any case: that a machine stood still is no failure.

Virtual time hardly moves while a thread works for the loop: that takes real time, and a clock that jumps as soon as nothing else is
to do runs through every limit before a busy machine has come to the thread. It jumps only after ten idle seconds then.
"""

from __future__ import annotations

import fcntl
import functools
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trio
from trio.testing import MockClock

hypothesis.settings.register_profile("others", deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile("the same each time", hypothesis.settings.get_profile("others"), derandomize=True)
hypothesis.settings.load_profile("the same each time")

ROOT = Path(__file__).parent
#: These take so long that whoever begins one last is waited for by all others. SPARK stands for many files.
SPARK = "spark"
LONGEST = [
    SPARK,
    "tests/live/test_bench_live.py",
    "tests/live/test_mixed_groups_live.py",
    "tests/live/test_consumer_protocol_live.py",
    "plugins/trikafka-spark/tests/test_spark_kill_live.py",
    "tests/live/test_groups_live.py",
    "plugins/trikafka-spark/tests/test_spark_stream_kill_live.py",
    "tests/deadlines/test_deadlines.py",
    "tests/live/test_producer_live.py",
    "plugins/trikafka-spark/tests/test_spark_standalone_live.py",
    "tests/live/test_transactions_live.py",
    "plugins/trikafka-broker/tests/test_broker_leftovers.py",
    "tests/live/test_sequences_live.py",
    "tests/live/test_exactly_once_live.py",
    "tests/live/test_fetching_live.py",
    "plugins/trikafka-spark/tests/test_spark_archive_live.py",
    "plugins/trikafka-spark/tests/test_lake_kill_live.py",
    "plugins/trikafka-spark/tests/test_spark_connect_live.py",
    "tests/wire/test_sanitized.py",
]


#: How long (real seconds) the loop has to be idle before virtual time jumps though a thread is at work.
_PATIENCE = 10.0
_run_in_thread = trio.to_thread.run_sync
_thresholds: dict[MockClock, float] = {}  # of the clocks that wait for threads
_at_work: Counter[MockClock] = Counter()


async def _without_jumps(*args: Any, **settings: Any) -> Any:
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, MockClock):
        return await _run_in_thread(*args, **settings)
    if not _at_work[clock] and clock.autojump_threshold < _PATIENCE:
        _thresholds[clock], clock.autojump_threshold = clock.autojump_threshold, _PATIENCE
    _at_work[clock] += 1
    try:
        return await _run_in_thread(*args, **settings)
    finally:
        _at_work[clock] -= 1
        if not _at_work[clock]:
            del _at_work[clock]
            clock.autojump_threshold = _thresholds.pop(clock, clock.autojump_threshold)


trio.to_thread.run_sync = _without_jumps


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--at-once", type=int, default=0, help="calls at once in tests/deadlines, at least (2000: five minutes)")
    parser.addoption("--chance", default="", help="any text: other orders of tasks, jitter and examples than without it")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--chance"):
        hypothesis.settings.load_profile("others")
    config.addinivalue_line("markers", "alone: no other test runs at the same time, in any process of this run")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _by_chance(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _by_chance(item)  # again: who has set up what it shares with other tests is another matter


def _by_chance(item: pytest.Item) -> None:
    seed = f"{item.config.getoption('--chance')} {item.nodeid}"
    random.seed(seed)
    trio._core._run._r.seed(seed)  # as pytest-trio has Hypothesis do it


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker; each comes to the same order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


@functools.cache
def _scope(file: str) -> str:
    """What goes to one process as a whole: a file, or those that share a Spark session, which takes some seconds and a gigabyte.

    Those that kill one Spark after the other take so long that what they need one for is no reason to wait for the rest.
    """
    if not file.startswith("plugins/trikafka-spark/tests/") or file.endswith("_kill_live.py"):
        return file
    if file.endswith("test_spark_cluster_live.py"):  # both look at what is new in Spark's own folder, and clear that
        return file.replace("_cluster_", "_archive_")
    return SPARK if re.search(r"\bspark_context\b|\bspark: ", (ROOT / file).read_text()) else file


def _turn(nodeid: str) -> int:
    scope = _scope(nodeid.partition("::")[0])
    if scope in LONGEST:
        return LONGEST.index(scope)
    if _has_alone(scope):
        return len(LONGEST) + 2
    return len(LONGEST) + (0 if scope.endswith("_live.py") else 1 if scope.startswith("tests/") else 3)


@functools.cache
def _has_alone(scope: str) -> bool:
    return scope.endswith("_live.py") and "pytest.mark.alone" in (ROOT / scope).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid.partition("::")[0])

    config.option.loadscopereorder = False  # it would sort by the number of tests
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with _at_its_turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _at_its_turn(alone: bool) -> Iterator[None]:
    """Others may be at work, too, or nobody may. Who waits to be alone holds the gate, so that nobody else begins meanwhile."""
    with open(ROOT / "conftest.py") as gate, open(ROOT / "pyproject.toml") as work:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(work, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(work, fcntl.LOCK_UN)  # and not only by closing it: a process that was forked may have it, too
