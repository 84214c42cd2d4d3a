"""The raw limit of a share group: a member that acknowledges whatever it gets, and decodes nothing.

A share session has one request in flight. So a member on a plain socket that sends the next
ShareFetch, with the acknowledgements, as soon as it has read which offsets were acquired, shows how
fast the broker serves one member.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID, uuid4

import trio

from trikafka import open_admin
from trikafka._wire import messages
from trikafka._wire.share import (
    AckBatch,
    AckType,
    FetchLimits,
    ShareAcknowledgeMessage,
    ShareFetchMessage,
    SharePartition,
)
from trikafka._wire.writing import RawRequest

from .. import tuning
from ..jobs import Job, Outcome, Window
from ..share_groups import new_share_group
from .raw import connected, fill

_VERSION = 2
_PATIENCE = 60.0
_ACCEPT = bytes((AckType.ACCEPT,))
_CLOSES = -1
_LAST_EPOCH = 2**31 - 1


class _Member:
    """A session with the broker that leads all partitions."""

    def __init__(self, job: Job, group: str, topic_id: UUID) -> None:
        self._socket = connected(job)
        self._group = group
        self._member = str(uuid4())
        self._epoch = 0
        most = tuning.RAW_SHARE["max_records"]
        self._limits = FetchLimits(500, 1, tuning.RAW_SHARE["fetch_max_bytes"], most, most)
        #: What the next request names: at first all partitions, then what is acknowledged.
        self._named: dict[SharePartition, list[AckBatch]] = {
            (topic_id, number): [] for number in range(job.partitions)
        }

    def fetch(self) -> int:
        """Fetch, and acknowledge what the last fetch brought; return how many records came."""
        request = ShareFetchMessage(
            self._group, self._member, self._epoch, self._named, self._limits
        )
        response: Any = self._exchange(request)
        self._epoch = self._epoch % _LAST_EPOCH + 1
        self._named = {}
        count = 0
        for part in response.partitions:
            if code := part.error_code or part.acknowledge_error:
                raise RuntimeError(f"partition {part.partition}: error code {code}")
            if part.acquired:
                self._named[part.key] = [
                    AckBatch(first, last, _ACCEPT) for first, last, _ in part.acquired
                ]
                count += sum(last - first + 1 for first, last, _ in part.acquired)
        return count

    def close(self) -> None:
        """Acknowledge the rest, and end the session."""
        self._exchange(ShareAcknowledgeMessage(self._group, self._member, _CLOSES, self._named))
        self._socket.close()

    def _exchange(self, request: RawRequest) -> Any:
        encoded = messages.encode_request(request, _VERSION, self._epoch, "raw")
        self._socket.sendall(encoded.frame)
        response = request.response.decode(self._received(), _VERSION)
        if response.error_code:
            raise RuntimeError(f"error code {response.error_code}")
        return response

    def _received(self) -> memoryview:
        """Return the body of a response, after the correlation id and no tagged fields."""
        head = bytearray(4)
        fill(self._socket, memoryview(head))
        frame = memoryview(bytearray(int.from_bytes(head, "big")))
        fill(self._socket, frame)
        return frame[5:]


async def _prepare(job: Job) -> tuple[str, UUID]:
    group = await new_share_group(job.bootstrap, {})
    async with open_admin(bootstrap_servers=job.bootstrap) as admin:
        topic = (await admin.describe_topics([job.topic]))[job.topic]
    assert topic.topic_id is not None
    return group, topic.topic_id


def share(job: Job) -> Outcome:
    member = _Member(job, *trio.run(_prepare, job))
    # The broker opens the partitions of a new group with the first fetches.
    limit = time.monotonic() + _PATIENCE
    while not member.fetch():
        if time.monotonic() > limit:
            raise TimeoutError("the broker delivers nothing")
    count = 0
    with Window() as window:
        while count < job.records:
            count += member.fetch()
        member.close()
    return Outcome(
        count, count * job.size, window, "ShareFetch that accepts", dict(tuning.RAW_SHARE)
    )


WAYS = {("share", "batch"): share}
