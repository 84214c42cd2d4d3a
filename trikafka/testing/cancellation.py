"""One cancellation test for every await: run a scenario again and again, cancelled one checkpoint later each time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import trio


class _CancelAtStep(trio.abc.Instrument):
    """Cancels a scope when a task has suspended itself for the given time (0: the first)."""

    def __init__(self, task: trio.lowlevel.Task, step: int, scope: trio.CancelScope) -> None:
        self._task, self._left, self._scope = task, step, scope
        self.fired = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._task or self.fired:
            return
        if self._left:
            self._left -= 1
            return
        self.fired = True
        self._scope.cancel()


async def assert_all_awaits_cancellable(
    scenario: Callable[..., Awaitable[object]],
    check: Callable[..., Awaitable[object]] | None = None,
    *,
    setup: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    limit: int = 1000,
) -> int:
    """Run ``scenario`` until it finishes, after having cancelled it at each of its checkpoints, one a run. Return their number.

    With ``setup`` each run has a fresh context manager around it, whose value is given to ``scenario`` and ``check``; without, both
    are called with nothing. ``check`` runs after every run, the last included: it makes sure that the cancelled call has left
    nothing behind. A task that is still there after that, and after the end of the context, is an ``AssertionError``. Whatever the
    scenario raises but ``Cancelled`` comes out, with a note that says at which checkpoint it was cancelled. A scenario that hangs
    when cancelled hangs here: put ``trio.fail_after`` around. More than ``limit`` checkpoints are an ``AssertionError``.
    """
    for step in range(limit):
        tasks = trio.lowlevel.current_statistics().tasks_living
        try:
            fired = await _run_once(scenario, check, setup, step)
            more = trio.lowlevel.current_statistics().tasks_living - tasks
            assert more <= 0, f"{more} tasks are left"
            if not fired:
                return step
        except Exception as error:
            error.add_note(f"in the run that was cancelled at checkpoint {step}")
            raise
    raise AssertionError(f"the scenario has more than {limit} checkpoints")


async def _run_once(
    scenario: Callable[..., Awaitable[object]],
    check: Callable[..., Awaitable[object]] | None,
    setup: Callable[[], AbstractAsyncContextManager[Any]] | None,
    step: int,
) -> bool:
    async with AsyncExitStack() as stack:
        given = () if setup is None else (await stack.enter_async_context(setup()),)
        scope = trio.CancelScope()
        instrument = _CancelAtStep(trio.lowlevel.current_task(), step, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            with scope:
                await scenario(*given)
        finally:
            trio.lowlevel.remove_instrument(instrument)
        if check is not None:
            await check(*given)
        return instrument.fired
