"""Requests to several brokers at once, as one attempt of a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

from ..errors import TrikafkaError


async def all_of(works: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all works at the same time; wait for all; then raise the first error that is not retriable, or else the first.

    Cancellation: all are cancelled.
    """
    errors: list[TrikafkaError] = []

    async def one(work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except TrikafkaError as error:
            errors.append(error)

    todo = list(works)
    if len(todo) == 1:
        await todo[0]()
        return
    async with trio.open_nursery() as nursery:
        for work in todo:
            nursery.start_soon(one, work)
    if errors:
        raise next((error for error in errors if not error.retriable), errors[0])


async def with_background(works: Iterable[Callable[[], Awaitable[object]]], main: Callable[[], Awaitable[None]]) -> None:
    """Run ``main`` with ``works`` beside it; they are cancelled when it ends. An exception of ``main`` comes out as it is."""
    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)
        try:
            await main()
        except Exception as error:
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
