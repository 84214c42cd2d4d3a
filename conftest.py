"""The spread of the tests over processes, their randomness, and virtual time beside threads.

``make test`` runs several processes by pytest-xdist. Without it the order of tests is pytest's own.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import inspect
import logging
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trio
from trio.testing import MockClock

# Hypothesis has no time limit: neither per example, nor for the making of the first ones.
hypothesis.settings.register_profile(
    "others",
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "the same each time", hypothesis.settings.get_profile("others"), derandomize=True
)
hypothesis.settings.load_profile("the same each time")

# How the tests are spread over processes:
#
# * All tests of a file run in one process, because they share what the file's fixtures make. All
#   files that use the shared Spark session are one scope: a session takes seconds to start and a
#   gigabyte of memory. Files whose child processes start Sparks of their own are scopes of their
#   own.
# * All processes share the broker of the fixture ``kafka_broker``. So names of topics, groups and
#   transactions must be unique. The programs of the documentation's pages cannot have unique names:
#   the files that run them are one scope, in which a test deletes the topics that it has created.
# * The files that look at the parsed source are one scope, too: each source is parsed once.
# * Every process collects all tests, so every process must compute the same order. The order
#   depends only on names and contents of files.
# * The longest scopes come first. If one began last, all other processes would wait for it.
# * Then come the other files with a real broker, then the quick ones.
# * Files with a real broker wait for two thirds of their time, and files without one only compute.
#   So one process in five begins with the files without a broker, and computes while the other
#   processes wait. Quick files remain for the end, where they fill the gaps evenly.
# * A test marked ``alone`` measures something that a busy machine falsifies. No other test may run
#   at the same time. Such a test waits until the tests of the other processes have ended, so its
#   file comes when these are quick ones.

ROOT = Path(__file__).parent
#: The scope of the files that share a Spark session.
SPARK = "spark"
#: The scope of the files that run programs of the documentation with their topic ``greetings``.
PAGES = "pages"
#: The scope of the files that look at the parsed source.
PARSED = "tests/parsed.py"
#: Of this many processes, one begins with the files that do not wait.
COMPUTING = 5
#: The longest scopes, in the order in which they begin.
LONGEST = [
    SPARK,
    PAGES,
    "tests/live/test_bench_live.py",
    "tests/live/test_mixed_groups_live.py",
    "tests/live/test_consumer_protocol_live.py",
    "plugins/trikafka-spark/tests/test_spark_kill_live.py",
    "tests/live/test_groups_live.py",
    "plugins/trikafka-spark/tests/test_spark_stream_kill_live.py",
    "tests/deadlines/test_deadlines.py",
    "tests/live/test_producer_live.py",
    "plugins/trikafka-spark/tests/test_spark_standalone_live.py",
    PARSED,
    "tests/live/test_transactions_live.py",
    "plugins/trikafka-broker/tests/test_broker_leftovers.py",
    "tests/live/test_sequences_live.py",
    "tests/live/test_exactly_once_live.py",
    "tests/live/test_frozen_leader_live.py",
    "tests/live/test_broker_versions_live.py",
    "tests/live/test_fetching_live.py",
    "plugins/trikafka-spark/tests/test_spark_archive_live.py",
    "plugins/trikafka-export/tests/test_lake_kill_live.py",
    "plugins/trikafka-spark/tests/test_spark_connect_live.py",
    "tests/api/test_consumer_deadlines.py",
    "tests/api/test_interrupts.py",
    "tests/consumer/test_consumer_standstill.py",
    "tests/cli/test_command_endings.py",
    "tests/aio/test_aio_clients.py",
    "tests/api/test_loading.py",
    "tests/consumer/test_cancelling_streams.py",
    "tests/aio/test_aio_cancelling.py",
    "tests/producer/test_transactions_swept.py",
    "plugins/trikafka-export/tests/test_lake_abandoned_live.py",
    "tests/wire/test_sanitized.py",
    "tests/test_generated.py",
]


# Virtual time must not run away from threads.
#
# An autojump clock moves to the next deadline as soon as no task can run. A thread that works for
# a task (decoding a large response, for example) takes real time and is invisible to the clock. On
# a busy machine the clock then jumped over every time limit of the client before the thread was
# done, and the test failed with a timeout. So trio.to_thread.run_sync is replaced for all tests:
# while a thread is at work, the clock jumps only after 45 real seconds without a runnable task.
# So a test whose thread never returns still reaches its time limits.

#: Real seconds without a runnable task before virtual time jumps while a thread is at work.
_PATIENCE = 45.0
_run_in_thread = trio.to_thread.run_sync
#: The original thresholds of the clocks that wait for threads.
_thresholds: dict[MockClock, float] = {}
#: The number of threads at work under each clock.
_at_work: Counter[MockClock] = Counter()


async def _without_jumps(*args: Any, **settings: Any) -> Any:
    """Run a function in a thread, and raise the clock's threshold meanwhile."""
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, MockClock):
        return await _run_in_thread(*args, **settings)
    if not _at_work[clock] and clock.autojump_threshold < _PATIENCE:
        _thresholds[clock] = clock.autojump_threshold
        clock.autojump_threshold = _PATIENCE
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
    parser.addoption(
        "--aio-cancels",
        type=int,
        default=3_000,
        help="random cancellations in tests/aio (10000: half a minute)",
    )
    parser.addoption(
        "--at-once",
        type=int,
        default=0,
        help="calls at once in tests/deadlines, at least (2000: five minutes)",
    )
    parser.addoption(
        "--chance",
        default="",
        help="any text: other orders of tasks, jitter and examples than without it",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell without job control lets what it starts in the background ignore Ctrl-C, and every
    # process that this one starts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--chance"):
        hypothesis.settings.load_profile("others")
    config.addinivalue_line(
        "markers", "alone: no other test runs at the same time, in any process of this run"
    )
    # Hypothesis searches what refers to its random numbers, and finds nothing among the objects
    # that pytest_collection() freezes. Since Python 3.14 its own dictionary is one of them.
    config.addinivalue_line("filterwarnings", "ignore:It looks like `register_random` was passed")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _by_chance(item)
    # pytest-trio looks for a clock among the arguments of the test itself. With a clock that only a
    # fixture asks for, the test would run in real time, and pass or fail by the machine's speed.
    if isinstance(item, pytest.Function):
        for clock in {"autojump_clock", "mock_clock"} & set(item.fixturenames):
            if clock not in inspect.signature(item.function).parameters:
                pytest.fail(f"a fixture uses {clock}: name it among the test's arguments, too")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    # Seeded again: the setup of shared fixtures may have happened in another test, and must not
    # change this test's random numbers.
    _by_chance(item)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Restore the level of the loggers.

    A test may call the command with ``--debug`` in this process. Later tests would then see debug
    lines.
    """
    logging.getLogger("trikafka").setLevel(logging.NOTSET)


# Trio shuffles its runnable tasks, retries have jitter, and Hypothesis chooses examples. All three
# are seeded by the test's name, so a test that passes in one process passes in every other.
# ``--chance 7`` (any text) yields other orders and examples, to search for tests that depend on
# them. Hypothesis has no time limit, because a test may not fail when the machine stands still.


def _by_chance(item: pytest.Item) -> None:
    seed = f"{item.config.getoption('--chance')} {item.nodeid}"
    random.seed(seed)
    trio._core._run._r.seed(seed)  # the same generator that pytest-trio seeds for Hypothesis


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect the tests without the garbage collector, which then leaves their objects alone.

    The tests and the modules that they import are a million objects, in each process. None of them
    is garbage before the end. Visiting them again and again took half of the time of the collection
    of tests, and most of the time of every `gc.collect()` in a test.

    Afterwards the collector runs as seldom as in the command `trikafka`. With Python's default
    thresholds it takes a twelfth of the time of tests in virtual time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 10, 10)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests in a worker process. Every worker computes the same order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


@functools.cache
def _scope(file: str) -> str:
    """Return the scope of a file: its own name, or that of a group that stays in one process."""
    if file.startswith("plugins/trikafka-spark/tests/"):
        uses_spark = re.search(r"\bspark_context\b|\bspark: ", (ROOT / file).read_text())
        return SPARK if uses_spark else file
    if file.endswith("_live.py") and '"greetings"' in (ROOT / file).read_text():
        return PAGES
    if file.startswith("tests/") and "from parsed import" in (ROOT / file).read_text():
        return PARSED
    return file


def _turn(nodeid: str) -> int:
    """Return the place of a test's scope in the order: see "How the tests are spread" above."""
    scope = _scope(nodeid.partition("::")[0])
    if scope in LONGEST:
        return LONGEST.index(scope)
    if _has_alone(scope):
        return len(LONGEST) + 2
    return len(LONGEST) + (
        0 if scope.endswith("_live.py") else 1 if scope.startswith("tests/") else 3
    )


@functools.cache
def _has_alone(scope: str) -> bool:
    return scope.endswith("_live.py") and "pytest.mark.alone" in (ROOT / scope).read_text()


def _waits(scope: str) -> bool:
    """Return whether the tests of a scope wait for brokers and other processes most of the time."""
    return (
        scope in (SPARK, PAGES)
        or scope.endswith("_live.py")
        or scope.startswith("plugins/trikafka-broker/")
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid.partition("::")[0])

        def _assign_work_unit(self, node: Any) -> None:
            """Assign the next scope of the kind that the process prefers, or else of the other."""
            number = int("".join(filter(str.isdecimal, node.gateway.id)) or 0)
            computes = number % COMPUTING == COMPUTING - 1
            for scope in self.workqueue:
                if _waits(scope) is not computes:
                    self.workqueue.move_to_end(scope, last=False)
                    break
            super()._assign_work_unit(node)

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
    """Hold the lock that every running test holds: shared, or exclusive with ``alone``.

    A test that waits for the exclusive lock holds the gate meanwhile, so no other test can begin. A
    steady stream of shared locks would otherwise keep the test waiting until all others are done.
    The locks are two files of the repository; their contents do not matter.
    """
    with open(ROOT / "conftest.py") as gate, open(ROOT / "pyproject.toml") as work:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(work, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Closing the file is not enough: a forked process may hold the same open file.
            fcntl.flock(work, fcntl.LOCK_UN)
