"""Loops and their guests: threads, closed loops, Ctrl-C."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from hosting import (
    LIMIT,
    LOOPS,
    cluster_of,
    consumer_of,
    cut_off,
    member_of,
    new_loop,
    nothing_left,
    producer_of,
    run,
    until,
)

import trikafka
import trikafka.aio
from trikafka.aio import guest as guests


def test_guest_ends_with_the_last_client() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster:
            guest = guests._here.guest
            async with producer_of(cluster) as one, producer_of(cluster) as two:
                await asyncio.gather(one.send("t", b"1"), two.send("t", b"2"))
                assert len(guest.clients) == 3
            assert guests._here.guest is guest
        assert guest.ended
        async with cluster_of(1) as cluster, producer_of(cluster) as one:
            assert guests._here.guest is not guest
            await one.send("t", b"1")

    with nothing_left():
        run(main)


def test_clients_open_and_close_at_once() -> None:
    """A client that opens while the guest ends waits for that, and starts another."""

    async def main() -> None:
        async def use(delay: int) -> None:
            for _ in range(delay):
                await asyncio.sleep(0)
            async with cluster_of(1) as cluster, producer_of(cluster) as producer:
                await producer.send("t", b"x")

        for start in range(5):
            await asyncio.gather(*(use(start * delay) for delay in range(10)))

    with nothing_left():
        run(main)


@pytest.mark.parametrize("kind", LOOPS)
def test_two_loops_in_two_threads(kind: str) -> None:
    counts: list[int] = []

    async def main() -> None:
        async with cluster_of(2, records=500) as cluster, member_of(cluster) as consumer:
            count = 0
            async for _ in consumer:
                count += 1
                if count == 1_000:
                    break
            counts.append(count)

    with nothing_left(kind):
        threads = [threading.Thread(target=run, args=(main, kind)) for _ in range(2)]
        for thread in threads:
            thread.start()
        run(main, kind)
        for thread in threads:
            thread.join()
    assert counts == [1_000] * 3


def test_client_of_another_loop_is_refused() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            errors: list[BaseException] = []

            def elsewhere() -> None:
                with pytest.raises(
                    trikafka.IllegalStateError, match="another event loop"
                ) as caught:
                    asyncio.run(producer.send("t", b"x"))
                errors.append(caught.value)

            await asyncio.to_thread(elsewhere)
            assert errors

    run(main)


@pytest.mark.parametrize("driver", ["epoll", "threads"])
def test_closed_loop_is_cleaned_up_by_the_next(
    driver: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if driver == "threads":
        monkeypatch.setattr(guests, "can_poll", lambda loop: False)
    with nothing_left():
        loop = new_loop()
        kept: list[Any] = []

        async def leave_open() -> None:
            cluster = cluster_of(1, records=1)
            kept.append(cluster)
            inside = await cluster.__aenter__()
            opening = member_of(inside)
            consumer = await opening.__aenter__()
            await consumer.receive()
            kept.extend([opening, consumer])

        loop.run_until_complete(leave_open())
        loop.close()

        async def main() -> None:
            with pytest.raises(trikafka.IllegalStateError, match="another event loop"):
                await kept[-1].receive()
            async with cluster_of(1) as cluster, producer_of(cluster) as producer:
                await producer.send("t", b"x")

        run(main)
        assert "closed with 2 trikafka clients left open" in caplog.text


@pytest.mark.parametrize("turns", range(12))
def test_cancelled_first_opening_ends_its_guest(turns: int) -> None:
    """The loop stops as soon as the opening has ended."""

    async def use() -> None:
        async with trikafka.aio.open_producer(bootstrap_servers="localhost:1"):
            pass

    with nothing_left():
        loop = new_loop()
        _, error = loop.run_until_complete(cut_off(use(), turns))
        loop.close()
        assert isinstance(error, asyncio.CancelledError)


def test_idle_guest_of_a_closed_loop_is_ended() -> None:
    """Trio waits for nothing but sockets when the next client cancels its tasks."""

    async def leave_open() -> None:
        kept.append(cluster := cluster_of(1))
        await cluster.__aenter__()

    async def idle(driver: guests.PollDriver) -> None:
        async with asyncio.timeout(LIMIT):
            await until(lambda: driver._due is None and driver.idle_until == math.inf)

    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            await producer.send("t", b"x")

    kept: list[Any] = []
    with nothing_left():
        loop = new_loop()
        loop.run_until_complete(leave_open())
        guest = guests._here.guest
        assert guest is not None
        assert isinstance(guest._driver, guests.PollDriver)
        loop.run_until_complete(idle(guest._driver))
        loop.close()
        run(main)
        assert guest.ended


def test_leaving_in_another_loop_is_refused() -> None:
    async def leave(opening: Any) -> None:
        with pytest.raises(trikafka.IllegalStateError, match="another event loop"):
            await opening.__aexit__(None, None, None)

    async def main() -> None:
        async with cluster_of(1) as cluster:
            opening = producer_of(cluster)
            async with opening as producer:
                await asyncio.to_thread(asyncio.run, leave(opening))
                await producer.send("t", b"x")

    run(main)


def test_one_opening_is_entered_by_one_task() -> None:
    async def main() -> None:
        opening = trikafka.aio.open_producer(bootstrap_servers="localhost:1")
        tasks = [asyncio.create_task(opening.__aenter__()) for _ in range(2)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(trikafka.IllegalStateError, match="entered once"):
            await tasks[1]
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]

    with nothing_left():
        run(main)


def test_open_clients_of_a_paused_loop_are_kept() -> None:
    """pytest-asyncio and notebooks run one loop in several turns."""
    loop = new_loop()
    cluster_block = cluster_of(1)
    cluster = loop.run_until_complete(cluster_block.__aenter__())
    block = producer_of(cluster)
    producer = loop.run_until_complete(block.__aenter__())

    async def other_loop() -> None:
        with pytest.raises(trikafka.IllegalStateError, match="another event loop of this thread"):
            async with consumer_of(cluster):
                pass

    run(other_loop)
    loop.run_until_complete(producer.send("t", b"x"))
    loop.run_until_complete(block.__aexit__(None, None, None))
    loop.run_until_complete(cluster_block.__aexit__(None, None, None))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert guests._here.guest is None


PROGRAM = """
    import asyncio, sys
    sys.path[:0] = {path!r}
    from hosting import *

    async def main():
        async with cluster_of(1, records=1) as cluster:
            try:
                async with member_of(cluster) as consumer:
                    await consumer.receive()
                    # Not in this task: the signal may come while the line is printed, and would
                    # end the task instead of the loop.
                    asyncio.get_running_loop().call_soon(lambda: print("ready", flush=True))
                    await consumer.receive()
            finally:
                print("members", len(cluster.group("g").members), flush=True)

    def interrupted(start):
        try:
            start()
        except KeyboardInterrupt:
            print("interrupted", flush=True)

    {start}
    assert guests._here.guest is None
    print("end", flush=True)
"""
RUNNERS = {
    "asyncio.run": "interrupted(lambda: asyncio.run(main()))",
    "run_until_complete": """
    loop = new_loop()
    task = loop.create_task(main())
    interrupted(lambda: loop.run_until_complete(task))
    assert not task.done()  # Ctrl-C left the loop, as it does without a guest
    task.cancel()
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        pass
    loop.close()
    """,
    "uvloop": "interrupted(lambda: asyncio.Runner(loop_factory=lambda: new_loop('uvloop')).run(main()))",
}


@pytest.mark.parametrize(
    "runner", ["asyncio.run", "run_until_complete", *(["uvloop"] if "uvloop" in LOOPS else [])]
)
def test_ctrl_c_ends_the_program_in_order(runner: str, tmp_path: Path) -> None:
    here = Path(__file__).parent
    start = textwrap.dedent(RUNNERS[runner]).strip().replace("\n", "\n    ")
    text = PROGRAM.format(path=[str(here), str(here.parent), str(here.parents[1])], start=start)
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(text))
    with subprocess.Popen(
        [sys.executable, "-X", "dev", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n", program.communicate(timeout=240)[1]
        program.send_signal(signal.SIGINT)
        try:
            out, err = program.communicate(timeout=240)
        finally:
            program.kill()  # leaving the block would wait for it without a limit
    assert sorted(out.split("\n")) == ["", "end", "interrupted", "members 0"], err
    assert program.returncode == 0, err
    assert "Traceback" not in err, err


LEFT_OPEN = """
    import asyncio, sys, threading
    sys.path[:0] = {path!r}
    from hosting import *

    kept = []

    async def main():
        kept.append(cluster_block := cluster_of(1))
        cluster = await cluster_block.__aenter__()
        kept.append(block := producer_of(cluster, linger_ms=60_000))
        producer = await block.__aenter__()
        await producer.enqueue("t", b"x")

    {start}
    print("end", flush=True)
"""


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("asyncio.run(main())", "left open; they are closed now"),
        (
            "loop = new_loop(); loop.run_until_complete(main())",
            "the program ends with 2 trikafka clients left open",
        ),
        (
            "t = threading.Thread(target=lambda: asyncio.run(main())); t.start(); t.join()",
            "a thread has ended with 1 trikafka client left open",
        ),
    ],
)
def test_clients_left_open_are_not_silent(start: str, says: str, tmp_path: Path) -> None:
    """Once, the records in their buffers were lost without a word."""
    here = Path(__file__).parent
    file = tmp_path / "program.py"
    path = [str(here), str(here.parent), str(here.parents[1])]
    file.write_text(textwrap.dedent(LEFT_OPEN.format(path=path, start=start)))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == "end\n"
    assert says in done.stderr


FORKED = """
    import asyncio, multiprocessing, sys, threading
    sys.path[:0] = {path!r}
    from hosting import *

    async def send():
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            print("offset", (await producer.send("t", b"x")).offset, flush=True)

    async def use(producer):
        await producer.send("t", b"x")

    def forked(producer):
        for program in send(), use(producer):
            try:
                asyncio.run(program)
            except trikafka.IllegalStateError as error:
                print(error, flush=True)
        thread = threading.Thread(target=lambda: asyncio.run(send()))
        thread.start()
        thread.join()

    async def main():
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            await producer.send("t", b"x")
            fork = multiprocessing.get_context("fork").Process(target=forked, args=(producer,))
            fork.start()
            fork.join()
            print("parent", (await producer.send("t", b"x")).offset, fork.exitcode)

    asyncio.run(main())
"""


def test_fork_opens_its_own_clients_in_a_thread(tmp_path: Path) -> None:
    """Trio's run of the parent is in the way of another one in the thread that forked."""
    here = Path(__file__).parent
    file = tmp_path / "program.py"
    path = [str(here), str(here.parent), str(here.parents[1])]
    file.write_text(textwrap.dedent(FORKED.format(path=path)))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=240, check=True
    )
    *refused, own, parent = done.stdout.splitlines()
    assert len(refused) == 2
    for line in refused:
        assert "forked while trikafka clients were open" in line
    assert (own, parent) == ("offset 0", "parent 1 0")


FORK_EXITS = """
    import asyncio, os, sys
    sys.path[:0] = {path!r}
    from hosting import *

    async def main():
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            if (fork := os.fork()) == 0:
                sys.exit(3)
            _, status = os.waitpid(fork, 0)
            print(os.waitstatus_to_exitcode(status), (await producer.send("t", b"x")).offset)

    asyncio.run(main())
"""


def test_fork_exits_with_its_own_status(tmp_path: Path) -> None:
    here = Path(__file__).parent
    file = tmp_path / "program.py"
    path = [str(here), str(here.parent), str(here.parents[1])]
    file.write_text(textwrap.dedent(FORK_EXITS.format(path=path)))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=240, check=True
    )
    assert (done.stdout, done.stderr) == ("3 0\n", "")


def test_call_outside_of_the_loop_is_explained() -> None:
    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            await producer.send("t", b"x")
            with pytest.raises(trikafka.IllegalStateError, match="outside of its event loop"):
                await asyncio.to_thread(producer.health)

    with nothing_left():
        run(main)


def test_fork_leaves_the_parents_clients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy of them would write to the parent's connections, and leave the parent's group."""

    async def leave_open() -> None:
        kept.append(cluster := cluster_of(1))
        await cluster.__aenter__()

    async def main() -> None:
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            await producer.send("t", b"x")

    kept: list[Any] = []
    with nothing_left():
        loop = new_loop()
        loop.run_until_complete(leave_open())
        loop.close()
        guest = guests._here.guest
        assert guest is not None
        with monkeypatch.context() as fork:
            fork.setattr(guest, "process", guest.process + 1)
            with pytest.raises(trikafka.IllegalStateError, match="was forked"):
                run(main)
        assert guest.clients
        assert not guest.ended
        run(main)
        assert guest.ended


def test_ctrl_c_in_a_tick_leaves_clients_open() -> None:
    """Trio's handler catches it there; it is raised in asyncio's loop all the same."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with nothing_left():
        loop = new_loop()
        steps: list[str] = []

        async def interrupt() -> None:
            signal.raise_signal(signal.SIGINT)

        async def main() -> None:
            async with cluster_of(1) as cluster, producer_of(cluster) as producer:
                await trikafka.aio.crossing.cross(producer._guest, interrupt)
                await asyncio.sleep(0.01)
                metadata = await producer.send("t", b"x")
                steps.append(f"offset {metadata.offset}")

        task = loop.create_task(main())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        loop.run_until_complete(task)
        loop.close()
        assert steps == ["offset 0"]


def test_trikafka_alone_does_not_import_asyncio() -> None:
    code = "import sys, trikafka; print(sorted({'asyncio', 'trio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("driver", ["epoll", "threads"])
def test_handler_of_a_closed_loop_is_left(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn comes in which the handler could end: the next client must not wait for it."""
    if driver == "threads":
        monkeypatch.setattr(guests, "can_poll", lambda loop: False)
    loop = new_loop()
    kept: list[Any] = []

    async def leave_open() -> None:
        cluster = cluster_of(1, records=1)
        opening = member_of(await cluster.__aenter__(), enable_auto_commit=False)
        consumer = await opening.__aenter__()
        begun = asyncio.Event()

        async def handler(record: trikafka.Record) -> None:
            begun.set()
            await asyncio.sleep(3600)

        kept.extend([cluster, opening])
        kept.append(asyncio.create_task(trikafka.aio.run_tasks(consumer, handler)))
        await begun.wait()

    loop.run_until_complete(leave_open())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()

    async def main() -> None:
        hooks = sys.get_asyncgen_hooks()
        async with cluster_of(1) as cluster, producer_of(cluster) as producer:
            await producer.send("t", b"x")
        assert sys.get_asyncgen_hooks() == hooks

    run(main)
    assert guests._here.guest is None
