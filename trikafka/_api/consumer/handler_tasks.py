"""The tasks in which handlers of ``run_tasks`` run.

Calls that wait for the handlers refuse to run inside one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..._net.callers import caller_of
from ..._net.run_local import RunLocal

#: The tasks that run handlers, and the consumers whose records these handle: one for each block
#: that is open.
_handlers: RunLocal[dict[trio.lowlevel.Task, list[object]]] = RunLocal("trikafka_handlers", dict)


@contextmanager
def running_handlers(consumer: object) -> Iterator[None]:
    """Mark this task, and all tasks below it, as handlers of ``consumer``'s records.

    The task must not have a nursery yet.
    """
    task = trio.lowlevel.current_task()
    handlers = _handlers.get()
    mine = handlers.setdefault(task, [])
    mine.append(consumer)
    try:
        yield
    finally:
        mine.remove(consumer)
        if not mine:
            del handlers[task]


def inside_handler(consumer: object) -> bool:
    """Return whether this task runs such a handler, or was started inside one to end with it."""
    handlers = _handlers.get()
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task() if handlers else None
    while task is not None and consumer not in handlers.get(task, ()):
        nursery = task.parent_nursery
        task = caller_of(task) or (None if nursery is None else nursery.parent_task)
    return task is not None
