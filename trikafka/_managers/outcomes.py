"""Waiting for the outcome of batches: what acks, tables and a flush have in common."""

from __future__ import annotations

from .._net.waiters import Waiters
from .._state.producer_batch import ProducerBatch


def waiters_of(batch: ProducerBatch) -> Waiters:
    """Who waits until the batch, which has no outcome yet, gets it or is split, to learn what it is: so a failure is not logged."""
    batch.outcome.claim()
    return batch.outcome.signal_for(Waiters)


async def settled(batch: ProducerBatch) -> None:
    """Wait until the batch, or all that it was split into, has its outcome."""
    while not batch.settled:
        if not batch.outcome.parts:
            await batch.outcome.signal_for(Waiters).wait()
        for part in batch.outcome.parts:
            await settled(part)
        if batch.outcome.parts:
            return
