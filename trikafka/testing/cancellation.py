"""A cancellation test for every await: a scenario runs repeatedly, each time cancelled later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import trio


class _CancelAtStep(trio.abc.Instrument):
    """An instrument that cancels a scope at the given suspension of a task (0: the first)."""

    def __init__(self, task: trio.lowlevel.Task, step: int, scope: trio.CancelScope) -> None:
        self._task = task
        self._left = step
        self._scope = scope
        self.fired = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._task or self.fired:
            return
        if self._left:
            self._left -= 1
            return
        self.fired = True
        self._scope.cancel()


# Every await is a place where a cancellation may arrive, and each needs a test. Writing one test
# per await misses the awaits that a later change adds. So the scenario is run once per checkpoint:
# run N is cancelled when the task suspends itself for the N-th time, until a run ends without
# having been cancelled.
#
# The instrument counts the steps of the scenario's own task, so the scenario must be deterministic:
# with MockClock and the scripted cluster it is.
async def assert_all_awaits_cancellable(
    scenario: Callable[..., Awaitable[object]],
    check: Callable[..., Awaitable[object]] | None = None,
    *,
    setup: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    limit: int = 1000,
) -> int:
    """Run ``scenario`` once per checkpoint, cancelled there, and once to its end.

    A scenario that hangs when cancelled hangs here: wrap the call in ``trio.fail_after``. An
    exception other than ``Cancelled`` is raised with a note that names the checkpoint.

    Args:
        scenario: The function to test.
        check: Called after every run, also the last; it checks that the cancelled call left nothing
            behind.
        setup: Returns a fresh context manager for each run. Its value is the argument of
            ``scenario`` and ``check``. Without it, both are called without arguments.
        limit: The largest number of checkpoints.

    Returns:
        The number of checkpoints.

    Raises:
        AssertionError: Tasks remain after the end of a run's context, or the scenario has more than
            ``limit`` checkpoints.
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
