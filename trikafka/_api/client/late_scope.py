"""A cancel scope around a block of code that is made only when the block has to be cancelled.

A ``trio.CancelScope`` costs 5 µs, several times all the rest of a delivery's block, and hardly any
block is ever cancelled. So a block notes where in the task's stack of scopes it begins, and
:func:`cancel_from` puts a scope there, below the scopes and nurseries that the block has opened
since. From then on that scope is one like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import trio

_TAKES_REASON = "reason" in inspect.signature(trio.CancelScope.cancel).parameters


def known_tasks() -> Callable[[], Any] | None:
    """Return Trio's function for the running task; ``None`` if its tasks have other attributes.

    The attributes are not public, so their presence is checked. Where they are missing, a block
    needs a scope from its beginning on.
    """
    task: Any = trio.lowlevel.current_task()
    try:
        status = task._cancel_status
        known = isinstance(status.effectively_cancelled, bool)
        known &= isinstance(task._runner.ki_pending, bool)
        known &= callable(task._activate_cancel_status) and callable(status.recalculate)
        known &= task in status._tasks and status.parent is status._parent
        scope = trio.CancelScope()
        known &= scope._cancel_status is None and scope._has_been_entered is False
        known &= {"scope", "parent"} <= set(inspect.signature(type(status)).parameters)
    except (AttributeError, TypeError, ValueError):
        return None
    return trio.lowlevel.current_task if known else None


@trio.lowlevel.enable_ki_protection
def cancel_from(task: Any, below: Any, reason: str) -> trio.CancelScope | None:
    """Cancel what ``task`` does within a block; return the scope, which the block has to exit.

    Args:
        task: The task that has entered the block.
        below: The task's cancel status at that time.
        reason: Why, for Trio's exception.

    Returns ``None`` if the task is not within the block any more.
    """
    first = None
    status = task._cancel_status
    while status is not below:
        if status is None:
            return None
        first = status
        status = status.parent
    scope: Any = trio.CancelScope()
    scope._has_been_entered = True
    scope._cancel_status = type(below)(scope=scope, parent=below)
    if first is None:
        task._activate_cancel_status(scope._cancel_status)
    else:
        first.parent = scope._cancel_status
    cancel(scope, reason)
    return scope  # type: ignore[no-any-return]


def cancel(scope: trio.CancelScope, reason: str) -> None:
    """Cancel a scope, with the reason where this Trio takes one."""
    if _TAKES_REASON:
        scope.cancel(reason=reason)
    else:
        scope.cancel()
