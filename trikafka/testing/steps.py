"""Two events at exact steps of the tasks, for sweeps over every moment at which they can meet.

A step is the work of one task between two checkpoints. Faults that need two events in one step hide
from tests that wait for conditions, because a condition places an event only to within a few steps.
A sweep runs the same scenario once per moment:

    for moment in moments(["commit", "abort", "refuse"], steps=120, total=10_000):
        async with scenario() as events:
            await two_at_once(events[moment.first], events[moment.second], moment)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import trio
import trio.testing


class Moment(NamedTuple):
    """The times of two events, in steps.

    The first happens after ``at`` steps, the second ``gap`` steps after the first.
    """

    first: str
    second: str
    at: int
    gap: int


def moments(
    events: Sequence[str],
    *,
    steps: int,
    total: int,
    leave_out: Callable[[str, str], bool] = lambda first, second: False,
) -> Iterator[Moment]:
    """Yield ``total`` different moments, spread evenly over every ordered pair of ``events``.

    For each pair the first event is placed at every one of ``steps`` steps, if ``total`` is large
    enough. Otherwise the places are spread over all steps. The gap to the second event is 0, the
    same step, in the first round over the steps. It grows with each round: 1, 2, 3, 5, 8 and so on.

    Args:
        events: The names of the events.
        steps: The number of steps that the scenario takes.
        total: The number of moments.
        leave_out: Returns True for a pair without meaning, such as two refusals of one record.
    """
    pairs = [pair for pair in product(events, repeat=2) if not leave_out(*pair)]
    turns = min(steps, -(-total // len(pairs)))  # turns of one round
    gap, following = 0, 1
    for number in range(total):
        turn, pair = divmod(number, len(pairs))
        if number and not pair and not turn % turns:
            gap, following = following, max(2, gap + following)
        first, second = pairs[pair]
        yield Moment(first, second, (turn % turns * steps // turns + pair) % steps, gap)


class StepCounter(trio.abc.Instrument):
    """An instrument that counts the steps of all tasks and calls functions at given steps."""

    def __init__(self) -> None:
        self.count = 0
        #: The exception of a call. Trio would only log it and remove the instrument.
        self.failure: Exception | None = None
        self._due: list[tuple[int, Callable[[], object]]] = []

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a step.

        Trio calls this between the steps of two tasks, so an event never meets a task in mid-step.
        """
        self.count += 1
        while self._due and self._due[0][0] <= self.count:
            self.next_now()

    def plan(self, *due: tuple[int, Callable[[], object]]) -> None:
        """Call each function after that many further steps.

        The numbers must not decrease.
        """
        self._due += [(self.count + steps, call) for steps, call in due]

    def next_now(self) -> bool:
        """Call the next function at once; return False if all have been called."""
        if not self._due:
            return False
        _, call = self._due.pop(0)
        try:
            call()
        except Exception as error:
            self.failure = self.failure or error
        return True


async def two_at_once(
    first: Callable[[], object], second: Callable[[], object], moment: Moment
) -> None:
    """Call two functions at their steps, counted from now; return once both were called.

    The functions are synchronous. A call of several steps needs a task, which the function starts.
    If all tasks wait before an event's step is reached, the event happens then: nothing else would
    happen before it. An exception of a function is raised.

    Args:
        first: The first event.
        second: The second event.
        moment: The steps of both.
    """
    counter = StepCounter()
    counter.plan((moment.at, first), (moment.at + moment.gap, second))
    trio.lowlevel.add_instrument(counter)
    try:
        await trio.testing.wait_all_tasks_blocked()
        while counter.next_now():
            await trio.testing.wait_all_tasks_blocked()
    finally:
        trio.lowlevel.remove_instrument(counter)
    if counter.failure is not None:
        raise counter.failure
