"""In which tasks handlers of ``run_tasks`` run: what waits for them must not be called there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from .consumer import Consumer

_TASKS: dict[trio.lowlevel.Task, Consumer] = {}


@contextmanager
def running_handlers(consumer: Consumer) -> Iterator[None]:
    """This task, which has no nursery yet, and those below it run handlers of records of ``consumer``."""
    task = trio.lowlevel.current_task()
    _TASKS[task] = consumer
    try:
        yield
    finally:
        del _TASKS[task]


def inside_handler(consumer: Consumer) -> bool:
    """Whether this task runs such a handler, or was started inside one to end with it."""
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task() if _TASKS else None
    while task is not None and _TASKS.get(task) is not consumer:
        nursery = task.parent_nursery
        task = None if nursery is None else nursery.parent_task
    return task is not None
