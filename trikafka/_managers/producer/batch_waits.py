"""Waiting for the outcome of batches, for acks, tables and a flush."""

from __future__ import annotations

from ..._net.waiters import Waiters
from ..._state.producer.producer_batch import ProducerBatch


def waiters_of(batch: ProducerBatch) -> Waiters:
    """Return the tasks waiting for this batch's outcome.

    The batch has no outcome yet; the tasks are also woken if it is split. Claiming the outcome
    keeps an unobserved failure out of the log.
    """
    batch.claim()
    return batch.signal_for(Waiters)


async def settled(batch: ProducerBatch) -> None:
    """Wait until the batch, or every part that it was split into, has its outcome."""
    while not batch.settled:
        if not batch.parts:
            await batch.signal_for(Waiters).wait()
        for part in batch.parts:
            await settled(part)
        if batch.parts:
            return
