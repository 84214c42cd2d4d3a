"""Trio as a guest of an asyncio loop: one a thread, started with the first client.

The guest owns the run of Trio, its driver and the count of clients. The clients and calls own their
tasks.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import trio

from ..errors import IllegalStateError
from ..errors.counts import counted

_log = logging.getLogger("trikafka.aio")
#: Seconds within which clients whose loop was closed leave their groups.
_ALONE_LIMIT = 5.0


class Closeable(Protocol):
    """A client's Trio task, as far as the guest needs it."""

    def abandon(self) -> None:
        """Cancel the client: its loop is gone."""


class Guest:
    """The Trio run of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.process = os.getpid()  # not that of a fork
        self.clients: set[Closeable] = set()
        self._opening = 0  # clients that hold a reference and are not in ``clients`` yet
        self._nursery: trio.Nursery | None = None
        self._closing = trio.Event()
        self.ending = False  # True once the last client has ended
        self.ended = False
        self.clock_shift = 0.0  # from Trio's clock to ``time.monotonic``
        self._failure: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []  # for the start or the end
        self._driver = _driver(loop)
        # Ticks and callbacks belong to no task, so they must not run in the context of one.
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._driver.soon_threadsafe,
            run_sync_soon_not_threadsafe=self._driver.soon,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
            clock=self._driver.clock,
            restrict_keyboard_interrupt_to_checkpoints=True,
        )
        #: Give the guest a tick soon. To be called after anything that Trio has to react to.
        self.wake = self._driver.wake

    # --- the run ---

    async def _main(self) -> None:
        self.clock_shift = time.monotonic() - trio.current_time()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._notify()
            while not self._closing.is_set():
                try:
                    await self._closing.wait()
                except KeyboardInterrupt:
                    # Ctrl-C is a matter of the program, which is asyncio's. Raised from a callback
                    # it leaves run_forever(), as it would in a program without a guest.
                    self.call_host(_interrupt)
            nursery.cancel_scope.cancel()
        self._nursery = None

    def _done(self, result: Any) -> None:
        self.ending = self.ended = True
        self._driver.stop()
        _here.forget(self)
        try:
            result.unwrap()
        except BaseException as error:  # of Trio itself: no task of ours raises
            self._failure = error
            _log.error("Trio's run under the event loop has failed", exc_info=error)
        self._notify()

    def _notify(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for future in waiting:
            resolve(future)

    async def _change(self) -> None:
        future = self.loop.create_future()
        self._waiting.append(future)
        await future

    @property
    def nursery(self) -> trio.Nursery:
        """The nursery of clients and calls.

        Raises :exc:`IllegalStateError` if the run has ended.
        """
        if self._nursery is None:
            raise IllegalStateError("Trio's run under this event loop has ended") from self._failure
        return self._nursery

    def check_loop(self) -> None:
        """Raise :exc:`IllegalStateError` unless the calling code runs in the guest's loop."""
        running = asyncio._get_running_loop()
        if running is not self.loop:
            self.check_process()
            where = "belongs to another event loop"
            if running is None:
                where = "was called outside of its event loop"
            raise IllegalStateError(
                f"this client {where}: use it in a coroutine where it was opened, and from a "
                "thread by asyncio.run_coroutine_threadsafe()"
            )

    @property
    def in_fork(self) -> bool:
        """True in a fork of the guest's process."""
        return self.process != os.getpid()

    def check_process(self) -> None:
        """Raise :exc:`IllegalStateError` in a fork of the guest's process."""
        # The fork has a copy of the guest and of Trio's run, without the loop that drives both. A
        # thread has no trace of either.
        if self.in_fork:
            raise IllegalStateError(
                "this process was forked while trikafka clients were open: they belong to the "
                "parent, and the fork cannot open others in this thread; open clients in a new "
                "thread of the fork, or start the process by 'spawn' or 'forkserver'"
            )

    def call_host(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in asyncio's loop, outside of Trio's tick."""
        try:
            self.loop.call_soon(function, *args)
        except RuntimeError:  # the loop was closed, so no program waits for the call
            _log.debug("the event loop was closed before %r was called", function)

    # --- references ---

    def opened(self, client: Closeable) -> None:
        """Turn the reference of :func:`acquire` into one of the client's task."""
        self._opening -= 1
        self.clients.add(client)

    def not_opened(self) -> None:
        """Return the reference of :func:`acquire`."""
        self._opening -= 1
        self._end_if_unused()

    def closed(self, client: Closeable) -> None:
        """Drop the reference of a client whose task has ended."""
        self.clients.discard(client)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if not self.clients and not self._opening:
            self._end()
            self.wake()

    def _end(self) -> None:
        self.ending = True
        self._closing.set()

    async def wait_ended(self) -> None:
        """Wait until the run has ended, if it is ending."""
        while self.ending and not self.ended:
            await self._change()

    async def wait_ended_shielded(self) -> asyncio.CancelledError | None:
        """Wait until the run has ended, if it is ending.

        Returns:
            A cancellation that came meanwhile, for the caller to raise.
        """
        cancelled = None
        while self.ending and not self.ended:
            try:
                await self._change()
            except asyncio.CancelledError as error:
                cancelled = error
        return cancelled

    def end_alone(self) -> None:
        """End all clients and the run without the loop, which was closed."""
        _log.warning(
            "an event loop was closed with %s left open; they are closed now",
            counted(len(self.clients), "trikafka client"),
        )
        for client in list(self.clients):
            client.abandon()
        self._end()
        # At its end Trio restores the hooks for asynchronous generators that it has found: those of
        # the closed loop. The loop that runs now has its own.
        hooks = sys.get_asyncgen_hooks()
        self._driver.run_alone(lambda: self.ended, time.perf_counter() + _ALONE_LIMIT)
        sys.set_asyncgen_hooks(*hooks)
        if not self.ended:
            raise IllegalStateError(
                "an event loop of this thread was closed while trikafka clients were open in it, "
                f"and they did not close within {_ALONE_LIMIT:g} s: close clients before the loop"
            )


class _Here(threading.local):
    """The guest of this thread."""

    guest: Guest | None = None
    _thread_end: _ThreadEnd | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> Guest:
        """Start the guest of ``loop``."""
        # The context of the first caller must not become that of all ticks.
        guest = self.guest = contextvars.Context().run(Guest, loop)
        self._thread_end = _ThreadEnd(guest)
        return guest

    def forget(self, guest: Guest) -> None:
        """Forget a guest that has ended."""
        if self.guest is guest:
            self.guest = None
            self._thread_end = None


class _ThreadEnd:
    """A part of a thread's local data, which Python frees when the thread ends."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    # Nothing is closed here: the thread has no loop any more, and Python waits for it. Another
    # thread writes the line: logging would enter this one among the living threads once more.
    def __del__(self) -> None:
        """Log that the thread has left clients open; the main thread has ``_end_at_exit``."""
        guest = self._guest
        if guest.ended or not guest.clients or guest.in_fork or sys.is_finalizing():
            return
        line = (
            f"a thread has ended with {counted(len(guest.clients), 'trikafka client')} left open: "
            "leave their 'async with' blocks, or records may be lost"
        )
        with suppress(RuntimeError):  # Python ends, and starts no thread any more
            threading.Thread(target=_log.warning, args=(line,), daemon=False).start()


_here = _Here()


# asyncio.run() closes its loop without notice to the code that uses it. If a program has not left
# the block of a client, the records in the client's buffer would be lost silently, and its group
# would wait until its session ends.
def _end_at_exit() -> None:
    """End the clients that the main thread has left open; called when the program ends."""
    guest = _here.guest
    if guest is None or not guest.clients or guest.in_fork:
        return
    if guest.loop.is_closed():
        guest.end_alone()
    else:
        _log.warning(
            "the program ends with %s left open: leave their 'async with' blocks, or "
            "records may be lost",
            counted(len(guest.clients), "trikafka client"),
        )


atexit.register(_end_at_exit)


async def acquire() -> Guest:
    """Return the guest of the running loop with a reference; start one if there is none.

    Raises:
        IllegalStateError: Trio runs in this thread already, another loop of this thread has open
            clients, or the process was forked while clients were open.
    """
    # No await lies between the last look at the guest and the reference: a guest that is ending
    # takes no client.
    loop = asyncio.get_running_loop()
    while True:
        guest = _here.guest
        if guest is not None and guest.loop is not loop:
            guest.check_process()
            if not guest.loop.is_closed():
                raise IllegalStateError(
                    "another event loop of this thread has open trikafka clients: close them first"
                )
            guest.end_alone()
            continue
        if guest is None:
            if trio.lowlevel.in_trio_run():
                raise IllegalStateError(
                    "Trio runs in this thread already: use trikafka.open_consumer() and the like "
                    "in its tasks"
                )
            guest = _here.start(loop)
        if guest.ending:
            await guest.wait_ended()
            continue
        guest._opening += 1
        break
    try:
        while guest._nursery is None:
            if guest.ended:
                raise IllegalStateError("Trio could not start") from guest._failure
            await guest._change()
    except BaseException as error:
        guest.not_opened()
        if isinstance(error, asyncio.CancelledError):
            # The caller may stop the loop at once. A run that was just started must have ended.
            await guest.wait_ended_shielded()
        raise
    return guest


def _interrupt() -> None:
    raise KeyboardInterrupt


def resolve(future: asyncio.Future[None]) -> None:
    """Resolve a future, even if its loop was closed meanwhile.

    Does nothing if the task that waited for the future was cancelled.
    """
    if not future.done():
        try:
            future.set_result(None)
        except RuntimeError:
            _log.debug("the event loop was closed before a call returned")


# --- drivers ------------------------------------------------------------------------------------

Function = Callable[[], object]


class _Driver:
    """The base of both drivers: it calls Trio's tick in the loop, or without it once it is closed.

    At most one tick is due at a time.
    """

    clock: trio.abc.Clock | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = contextvars.Context()
        self._due: Function | None = None
        self._alone = False

    def wake(self) -> None:
        """Give Trio a tick soon."""

    def stop(self) -> None:
        """Stop watching for Trio: its run has ended."""

    def soon(self, function: Function) -> None:
        """Call a function of Trio soon; from the loop's thread."""
        self._due = function
        if not self._alone:
            self._loop.call_soon(self._run_due, context=self._context)

    def soon_threadsafe(self, function: Function) -> None:
        """Call a function of Trio soon; from any thread."""
        self._due = function
        with suppress(RuntimeError):  # the loop was closed; ``run_alone`` finds the function
            self._loop.call_soon_threadsafe(self._run_due, context=self._context)

    def _run_due(self) -> None:
        function = self._due
        self._due = None
        if function is not None:
            function()

    def run_alone(self, ended: Callable[[], bool], deadline: float) -> None:
        """Run Trio without the loop until ``ended()``, at most until ``deadline``."""
        self._alone = True
        self.wake()  # the caller has cancelled tasks, of which a waiting Trio knows nothing
        while not ended() and time.perf_counter() < deadline:
            if self._due is None:
                self._rest(deadline)
            else:
                self._context.run(self._run_due)

    def _rest(self, deadline: float) -> None:
        """Wait a little for the next tick to become due."""
        time.sleep(0.001)


class ThreadDriver(_Driver):
    """Trio waits for its sockets in a thread, as its guest mode does by default.

    Trio itself wakes that thread when a task becomes ready.
    """


class PollDriver(_Driver):
    """The loop waits for Trio's sockets: it watches the descriptor of Trio's epoll.

    It reads three attributes of Trio's guest, which :func:`can_poll` checks: the runner with its
    I/O manager, and the events of the last look, to which it adds.
    """

    # Trio's guest_tick() runs what is ready, looks for events without waiting, and then does one of
    # two things. If it expects to be needed at once (a task is ready, an event was there), it asks
    # ``soon`` for the next tick. Otherwise it starts a thread that waits in epoll, which costs 0.2
    # to 0.3 ms when that thread is woken for each call.
    #
    # ``soon`` is ours, and the time to wait comes from the clock, which is ours, too. So this clock
    # always says "no time to wait". Trio then never starts the thread, always asks ``soon``, and
    # leaves the decision when to tick to this class:
    #
    # 1. The clock was asked for the time to wait: no task was ready. If the look found no event
    #    either, the guest is idle. The next tick follows a readable epoll descriptor, the deadline
    #    that the clock saw, or ``wake``.
    # 2. Otherwise the next tick is due in the next turn of the loop.
    #
    # A tick deals with the events of the look before it. An idle guest has an empty list of them, so
    # the tick after a readable descriptor would only look, and a further tick would deal with what
    # it found. ``_readable`` looks itself, and adds the events to that list. That took a tenth to a
    # fifth from the processor time of a lone ``send()``.
    #
    # Trio believes that a tick is scheduled all the time, so it does not interrupt a wait when the
    # host makes a task ready. Every call from the host is followed by ``wake`` for that reason.
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.clock = _HostClock(self)
        self.idle_until: float | None = None  # set by the clock if no task is ready
        self._tick: Function | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0  # the timer's time; uvloop's handle of a time that is over has none
        self._epoll = -1  # a copy of Trio's descriptor: Trio closes its own before the end
        self._look: Callable[[float], list[Any]] | None = None  # Trio's, to find events
        self._idle_events: list[Any] | None = None  # the last look's, while the guest is idle

    def soon(self, function: Function) -> None:
        state: Any = function.__self__  # type: ignore[attr-defined]
        if self._tick is None:
            self._tick = function
            manager = state.runner.io_manager
            self._look = manager.get_events
            self._epoll = os.dup(manager._epoll.fileno())
            self._loop.add_reader(self._epoll, self._readable)
        idle_until = self.idle_until
        events = getattr(state.unrolled_run_next_send, "value", None)
        if idle_until is None or events != []:
            self.wake()
            return
        self._idle_events = events
        if idle_until < math.inf and not self._alone:
            self._arm(idle_until)

    def wake(self) -> None:
        if self._due is None and self._tick is not None:
            self._due = self._tick
            if not self._alone:
                self._loop.call_soon(self._run_due, context=self._context)

    def _run_due(self) -> None:
        self.idle_until = None
        self._idle_events = None
        super()._run_due()

    def _readable(self) -> None:
        if self._idle_events is not None:
            assert self._look is not None
            self._idle_events.extend(self._look(0))
        self._due = self._tick
        self._run_due()

    def _arm(self, when: float) -> None:
        # A timer that rings too early costs one tick. So one that rings before ``when`` stays.
        due = self._loop.time() + max(0.0, when - time.perf_counter())
        if self._timer is not None:
            if self._timer_due <= due + 0.0005:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._ring, context=self._context)

    def _ring(self) -> None:
        self._timer = None
        self._readable()

    def stop(self) -> None:
        self._tick = None
        if self._timer is not None:
            self._timer.cancel()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._epoll)
        os.close(self._epoll)

    def _rest(self, deadline: float) -> None:
        until = deadline if self.idle_until is None else min(deadline, self.idle_until)
        select.select([self._epoll], [], [], max(0.0, until - time.perf_counter()))
        self.wake()


class _HostClock(trio.abc.Clock):
    """The monotonic clock; it notes the next deadline instead of asking Trio to wait for it."""

    def __init__(self, driver: PollDriver) -> None:
        self._driver = driver

    def start_clock(self) -> None:
        """No-op: the clock has no offset."""

    def current_time(self) -> float:
        return time.perf_counter()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self._driver.idle_until = deadline
        return 0.0


def _driver(loop: asyncio.AbstractEventLoop) -> _Driver:
    return PollDriver(loop) if can_poll(loop) else ThreadDriver(loop)


def can_poll(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop can wait for Trio's sockets itself.

    ``TRIKAFKA_AIO_THREAD=1`` in the environment says no: Trio then waits in its thread, and nothing
    of Trio that is private is used.
    """
    if not hasattr(select, "epoll") or os.environ.get("TRIKAFKA_AIO_THREAD") == "1":
        return False
    try:
        from trio._core._io_epoll import EpollIOManager
        from trio._core._run import GuestState
    except ImportError:
        return False
    known = hasattr(EpollIOManager, "_epoll") and hasattr(GuestState, "guest_tick")
    known &= hasattr(GuestState, "unrolled_run_next_send") and hasattr(GuestState, "runner")
    return known and type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader
