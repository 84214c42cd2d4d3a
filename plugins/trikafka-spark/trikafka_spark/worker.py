"""What is done once in each Python worker of Spark."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle() -> None:
    """After the first task: leave what is there to stay out of garbage collections. Spark has a worker collect after each task,
    before it gets the next, and to look through all that was imported takes longer than many a task."""
    gc.collect()
    gc.freeze()
