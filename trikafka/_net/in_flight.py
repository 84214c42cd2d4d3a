"""The requests of one connection, from when they are encoded until their responses have come. No I/O.

The connection alone writes here. A request is first queued; taken out of the queue its bytes are in ``rest`` until the stream has
them, and it is in flight, or without a response to come (``acks=0``).
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
#: From which version on these responses begin with a time to wait that the client has to keep, and the broker has not kept itself
#: before it responded (KIP-219).
_THROTTLES = {
    "FetchRequest": 8, "ListOffsetsRequest": 3, "MetadataRequest": 6, "OffsetCommitRequest": 4, "OffsetFetchRequest": 4,
    "FindCoordinatorRequest": 2, "JoinGroupRequest": 3, "HeartbeatRequest": 2, "LeaveGroupRequest": 2, "SyncGroupRequest": 2,
    "DescribeGroupsRequest": 2, "ListGroupsRequest": 2, "CreateTopicsRequest": 3, "DeleteTopicsRequest": 2,
    "DescribeConfigsRequest": 2, "CreatePartitionsRequest": 1, "DeleteGroupsRequest": 1, "InitProducerIdRequest": 1,
    "AddPartitionsToTxnRequest": 1, "AddOffsetsToTxnRequest": 1, "EndTxnRequest": 1, "TxnOffsetCommitRequest": 1,
    "ConsumerGroupHeartbeatRequest": 0,
}  # fmt: skip


class InFlightRequest:
    """A request from when it is encoded until its response has come (or its connection is gone)."""

    __slots__ = (
        "abandoned", "begins", "correlation_id", "error", "expires", "frame", "on_end", "outgoing", "overdue", "waited_for",
    )  # fmt: skip

    outgoing: EncodedRequest

    def __init__(self, on_end: Callable[[InFlightRequest], object], *, waited_for: bool) -> None:
        self.waited_for = waited_for  # by a task that has waited for room
        self.correlation_id = 0
        self.begins = self.overdue = self.expires = 0.0
        self.on_end = on_end
        self.frame: memoryview | None = None
        self.error: Exception | None = None
        self.abandoned = False

    def body(self) -> tuple[memoryview, int]:
        """The response's undecoded body and its version. Raises as ``Connection.request``."""
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return messages.response_body(self.outgoing, self.frame), self.outgoing.version

    def response(self) -> Any:
        """The response; ``None`` where none is sent. Raises as ``Connection.request``."""
        if self.error is not None:
            raise self.error
        return None if self.frame is None else messages.decode_response(self.outgoing, self.frame)

    def encoded(self, outgoing: EncodedRequest, correlation_id: int) -> None:
        """It is ready to be written."""
        self.outgoing, self.correlation_id = outgoing, correlation_id

    def timed(self, begins: float, overdue: float, expires: float) -> None:
        """From when on it may be written, when its silence is news, and when it is given up (Trio's clock)."""
        self.begins, self.overdue, self.expires = begins, overdue, expires

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self.abandoned = True

    def answered(self, frame: memoryview) -> None:
        """Its response has come."""
        if not self.abandoned:
            self.frame = frame

    def lost(self, error: Exception) -> None:
        """No response will come."""
        self.error = error

    def throttle(self, frame: memoryview) -> float:
        """For how long (seconds) the response ``frame`` asks to send nothing more, where that is quick to see."""
        if self.outgoing.version < _THROTTLES.get(self.outgoing.api, 1 << 15):
            return 0.0
        try:
            milliseconds = int.from_bytes(messages.response_body(self.outgoing, frame)[:4], "big", signed=True)
        except ProtocolError:  # whoever reads the response will say so
            return 0.0
        return max(0, milliseconds) / 1000


class RequestQueue:
    """What waits to be written, and what waits for responses."""

    __slots__ = ("_held", "_unanswered", "in_flight", "queued", "rest", "served")

    def __init__(self) -> None:
        self.queued: deque[InFlightRequest] = deque()  # encoded, not written; the connection bounds it
        self._held: deque[InFlightRequest] | None = None  # while the connection authenticates anew: all others
        self.in_flight: dict[int, InFlightRequest] = {}  # given to the stream, in order of writing, until the response comes
        self._unanswered: list[InFlightRequest] = []  # being given to the stream, and without a response to come
        self.rest: Views = ()  # of what was taken out of the queue
        self.served = False  # a response has come, and not only of the negotiation

    def __len__(self) -> int:
        return len(self.in_flight) + len(self.queued) + len(self._held or ())

    def enqueue(self, request: InFlightRequest, *, first: bool = False) -> None:
        """It waits to be written; ``first``: also while others are held."""
        (self.queued if self._held is None or first else self._held).append(request)

    def hold(self) -> None:
        """Keep back what is not written yet, and what comes."""
        self._held, self.queued = self.queued, deque()

    def release(self) -> None:
        """Write what was held, and what comes."""
        held, self._held = self._held or deque(), None
        self.queued.extend(held)

    def take(self) -> Views:
        """Take requests out of the queue, as much as is written at a time, and return their bytes."""
        frames: list[memoryview] = []
        size = 0
        while self.queued and (not frames or size < _WRITE_BYTES):
            request = self.queued.popleft()
            frames += map(memoryview, request.outgoing.pieces)
            size += sum(map(len, request.outgoing.pieces))
            if request.outgoing.expects_response:
                self.in_flight[request.correlation_id] = request
            else:
                self._unanswered.append(request)
        return frames

    def gave(self, views: Views, count: int) -> Sequence[InFlightRequest]:
        """The stream took ``count`` bytes of what was to be written, ``views``; the rest is left over.

        Returns those that end with being written, once nothing is left over.
        """
        self.rest = without(views, count)
        if not self._unanswered or self.rest:
            return ()
        sent, self._unanswered = self._unanswered, []
        return sent

    def excess(self, size: int) -> str | None:
        """What is wrong with a response of ``size`` bytes now; ``None``: nothing. It belongs to the oldest request in flight."""
        oldest = next(iter(self.in_flight.values()), None)
        return f"sent {size:,} bytes and was not asked for anything" if oldest is None else bounds.excess(oldest.outgoing, size)

    def responded(self, correlation_id: int) -> InFlightRequest | None:
        """Take out the request whose response has come; ``None`` if it was not made, or is not the oldest one in flight.

        Brokers respond in order. A response that overtakes another says that the other one is lost, and with a producer's batch
        whose response is lost nothing may be acknowledged that stands behind it: the broker remembers five of them only.
        """
        if next(iter(self.in_flight), None) != correlation_id:
            return None
        request = self.in_flight.pop(correlation_id)
        if not self.served:
            self.served = request.outgoing.api != "ApiVersionsRequest"
        return request

    def remove_queued(self, request: InFlightRequest) -> bool:
        """Take back a request that is not being written yet; whether there was time."""
        for waiting in (self.queued, self._held or ()):
            if request in waiting:
                waiting.remove(request)  # type: ignore[union-attr]  # the empty tuple has none
                return True
        return False

    def waiting(self) -> list[InFlightRequest]:
        """All that have not ended."""
        return [*self.in_flight.values(), *self._unanswered, *self.queued, *(self._held or ())]

    def clear(self) -> list[InFlightRequest]:
        """Forget them all; return them."""
        waiting = self.waiting()
        self.in_flight.clear()
        self._unanswered.clear()
        self.queued.clear()
        self._held = None
        return waiting
