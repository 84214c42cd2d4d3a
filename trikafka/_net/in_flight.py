"""The requests of one connection, from their encoding until their responses have come. No I/O.

The connection alone writes here. A request is first queued. Once taken out of the queue, its bytes
are in ``rest`` until the stream has them, and it is in flight, or without a response to come
(``acks=0``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .._wire import messages
from .._wire.messages import EncodedRequest
from ..errors import ProtocolError
from . import bounds
from .transport import Views, without

_WRITE_BYTES = 262_144
#: The version from which these responses begin with a throttle time that the client has to keep,
#: and that the broker has not kept itself before it responded (KIP-219).
_THROTTLES = {
    "FetchRequest": 8,
    "ListOffsetsRequest": 3,
    "MetadataRequest": 6,
    "OffsetCommitRequest": 4,
    "OffsetFetchRequest": 4,
    "FindCoordinatorRequest": 2,
    "JoinGroupRequest": 3,
    "HeartbeatRequest": 2,
    "LeaveGroupRequest": 2,
    "SyncGroupRequest": 2,
    "DescribeGroupsRequest": 2,
    "ListGroupsRequest": 2,
    "CreateTopicsRequest": 3,
    "DeleteTopicsRequest": 2,
    "DescribeConfigsRequest": 2,
    "CreatePartitionsRequest": 1,
    "IncrementalAlterConfigsRequest": 0,
    "DeleteRecordsRequest": 1,
    "DeleteGroupsRequest": 1,
    "InitProducerIdRequest": 1,
    "AddPartitionsToTxnRequest": 1,
    "AddOffsetsToTxnRequest": 1,
    "EndTxnRequest": 1,
    "TxnOffsetCommitRequest": 1,
    "ConsumerGroupHeartbeatRequest": 0,
}


class InFlightRequest:
    """A request from its encoding until its response has come, or its connection is gone."""

    __slots__ = (
        "abandoned",
        "begins",
        "correlation_id",
        "error",
        "expires",
        "frame",
        "on_end",
        "outgoing",
        "overdue",
        "unsent",
        "waited_for",
    )

    outgoing: EncodedRequest

    def __init__(self, on_end: Callable[[InFlightRequest], object], *, waited_for: bool) -> None:
        self.waited_for = waited_for  # by a task that has waited for room
        self.correlation_id = 0
        self.begins = self.overdue = self.expires = 0.0
        self.on_end = on_end
        self.frame: memoryview | None = None
        self.error: Exception | None = None
        self.abandoned = False
        self.unsent = True  # True while the stream has had no byte of it

    def body(self) -> tuple[memoryview, int]:
        """Return the response's undecoded body and version. Raises as ``Connection.request``."""
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return messages.response_body(self.outgoing, self.frame), self.outgoing.version

    def response(self) -> Any:
        """Return the response; ``None`` where none is sent. Raises as ``Connection.request``."""
        if self.error is not None:
            raise self.error
        return None if self.frame is None else messages.decode_response(self.outgoing, self.frame)

    def encoded(self, outgoing: EncodedRequest, correlation_id: int) -> None:
        """Record the encoded request, which is ready to be written."""
        self.outgoing = outgoing
        self.correlation_id = correlation_id

    def timed(self, begins: float, overdue: float, expires: float) -> None:
        """Record when it may be written, when its silence is reported, and when it expires.

        All by Trio's clock.
        """
        self.begins = begins
        self.overdue = overdue
        self.expires = expires

    def begin_writing(self) -> None:
        """Record that its bytes go to the stream."""
        self.unsent = False

    def abandon(self) -> None:
        """Record that its caller does not wait any more."""
        self.abandoned = True

    def answered(self, frame: memoryview) -> None:
        """Record the response; drop it if the request was abandoned."""
        if not self.abandoned:
            self.frame = frame

    def lost(self, error: Exception) -> None:
        """Record that no response will come."""
        self.error = error

    def throttle(self, frame: memoryview) -> float:
        """Return the throttle time (seconds) in the response, where that is quick to read."""
        if self.outgoing.version < _THROTTLES.get(self.outgoing.api, 1 << 15):
            return 0.0
        try:
            milliseconds = int.from_bytes(
                messages.response_body(self.outgoing, frame)[:4], "big", signed=True
            )
        except ProtocolError:  # the reader of the response raises it
            return 0.0
        return max(0, milliseconds) / 1000


class RequestQueue:
    """The requests that wait to be written, and those that wait for responses."""

    __slots__ = ("_held", "_unanswered", "in_flight", "queued", "rest", "served")

    def __init__(self) -> None:
        # Encoded and not written. The connection bounds its length.
        self.queued: deque[InFlightRequest] = deque()
        # While the connection authenticates again: all other requests.
        self._held: deque[InFlightRequest] | None = None
        # Given to the stream, in the order of writing, until the response comes.
        self.in_flight: dict[int, InFlightRequest] = {}
        # Being given to the stream, and without a response to come.
        self._unanswered: list[InFlightRequest] = []
        self.rest: Views = ()  # of what was taken out of the queue
        self.served = False  # a response has come beyond the negotiation

    def __len__(self) -> int:
        return len(self.in_flight) + len(self.queued) + len(self._held or ())

    def enqueue(self, request: InFlightRequest, *, first: bool = False) -> None:
        """Queue a request; with ``first`` also while others are held."""
        (self.queued if self._held is None or first else self._held).append(request)

    def hold(self) -> None:
        """Hold back the requests that are not written yet, and new ones."""
        self._held = self.queued
        self.queued = deque()

    def release(self) -> None:
        """Queue the requests that were held."""
        held = self._held or deque()
        self._held = None
        self.queued.extend(held)

    def pop_frames(self) -> Views:
        """Take as many requests out of the queue as are written at a time; return their bytes."""
        frames: list[memoryview] = []
        size = 0
        while self.queued and (not frames or size < _WRITE_BYTES):
            request = self.queued.popleft()
            request.begin_writing()
            frames += map(memoryview, request.outgoing.pieces)
            size += sum(map(len, request.outgoing.pieces))
            if request.outgoing.expects_response:
                self.in_flight[request.correlation_id] = request
            else:
                self._unanswered.append(request)
        return frames

    def gave(self, views: Views, count: int) -> Sequence[InFlightRequest]:
        """Record that the stream took ``count`` bytes of ``views``; the rest is left over.

        Returns the requests that end with being written, once nothing is left over.
        """
        self.rest = without(views, count)
        if not self._unanswered or self.rest:
            return ()
        sent = self._unanswered
        self._unanswered = []
        return sent

    def excess(self, size: int) -> str | None:
        """Return what is wrong with a response of ``size`` bytes now; ``None``: nothing.

        The response belongs to the oldest request in flight.
        """
        oldest = next(iter(self.in_flight.values()), None)
        return (
            f"sent {size:,} bytes and was not asked for anything"
            if oldest is None
            else bounds.excess(oldest.outgoing, size)
        )

    def responded(self, correlation_id: int) -> InFlightRequest | None:
        """Take out the request whose response has come.

        ``None`` if it was not made, or is not the oldest one in flight. Brokers respond in order. A
        response that overtakes another means that the other one is lost. Behind a producer's batch
        whose response is lost nothing may be acknowledged, because the broker remembers only five
        batches.
        """
        if next(iter(self.in_flight), None) != correlation_id:
            return None
        request = self.in_flight.pop(correlation_id)
        if not self.served:
            self.served = request.outgoing.api != "ApiVersionsRequest"
        return request

    def remove_queued(self, request: InFlightRequest) -> bool:
        """Take back a request that is not being written yet; return whether that was possible."""
        for waiting in (self.queued, self._held or ()):
            if request in waiting:
                waiting.remove(request)  # type: ignore[union-attr]  # the empty tuple has none
                return True
        return False

    def waiting(self) -> list[InFlightRequest]:
        """Return all requests that have not ended."""
        return [*self.in_flight.values(), *self._unanswered, *self.queued, *(self._held or ())]

    def clear(self) -> list[InFlightRequest]:
        """Forget all requests; return them."""
        waiting = self.waiting()
        self.in_flight.clear()
        self._unanswered.clear()
        self.queued.clear()
        self._held = None
        return waiting
