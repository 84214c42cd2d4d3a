"""Works that run at the same time, such as the requests of one attempt to several brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from ..errors import TrikafkaError
from ..errors.groups import decisive, with_others
from .interrupts import interrupts_unwrapped

K = TypeVar("K")
V = TypeVar("V")


async def all_of(works: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all works at the same time and wait for all; raise an error if there is one.

    The first error that is not retriable is raised, or else the first, with notes about the others.
    An error that is not trikafka's (the client was closed meanwhile, a bug) cancels the others. On
    cancellation all are cancelled.
    """
    errors: list[Exception] = []

    @trio.lowlevel.enable_ki_protection
    async def one(work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except TrikafkaError as error:
            errors.append(error)
        except Exception as error:
            errors.insert(0, error)  # before trikafka's errors: `decisive` takes the first
            nursery.cancel_scope.cancel()

    todo = list(works)
    if len(todo) == 1:
        await todo[0]()
        return
    with interrupts_unwrapped():
        async with trio.open_nursery() as nursery:
            for work in todo:
                nursery.start_soon(one, work, name=work)
    if errors:
        raise with_others(decisive(errors), errors)


async def with_background(
    works: Iterable[Callable[[], Awaitable[object]]], main: Callable[[], Awaitable[None]]
) -> None:
    """Run ``main`` with other work beside it, which is cancelled when ``main`` ends.

    The first exception of any of them cancels the others, and is raised in no group, with notes
    about the others.

    Args:
        works: Functions to run beside ``main``.
        main: The function to wait for.
    """
    errors: list[Exception] = []

    @trio.lowlevel.enable_ki_protection
    async def guarded(work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        except Exception as error:
            errors.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(guarded, work, name=work)
        await guarded(main)
        nursery.cancel_scope.cancel()
    if errors:
        raise with_others(errors[0], errors)


async def call_each(
    work: Callable[[K], Awaitable[V]], keys: Iterable[K], at_once: int = 64
) -> tuple[dict[K, V], dict[K, TrikafkaError]]:
    """Call ``work`` with each key, ``at_once`` at a time, and wait for all calls.

    Args:
        work: The function to call.
        keys: The keys, which are all different.
        at_once: The most calls at the same time, at least 1.

    Returns:
        The results of the calls that succeeded, in the order of the keys; and the errors of
        trikafka of the other calls, the first error first.

    Raises:
        ValueError: ``at_once`` is below 1.
        ExceptionGroup: A call has raised another error, which cancels the other calls. Their
            results, and errors of trikafka, are lost.

    Cancellation: all calls are cancelled.
    """
    if at_once < 1:
        raise ValueError(f"at_once must be at least 1, not {at_once}")
    wanted = list(keys)
    results: dict[K, V] = {}
    errors: dict[K, TrikafkaError] = {}
    limiter = trio.CapacityLimiter(at_once)

    async def one(key: K) -> None:
        async with limiter:
            try:
                results[key] = await work(key)
            except TrikafkaError as error:
                errors[key] = error

    with interrupts_unwrapped():
        async with trio.open_nursery() as nursery:
            for key in wanted:
                nursery.start_soon(one, key)
    # An error refers to `one`, and so to `errors`: emptied, what the calls had is freed at once.
    failed = dict(errors)
    errors.clear()
    return {key: results[key] for key in wanted if key in results}, failed
