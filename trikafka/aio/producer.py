"""The producer, its acks and its transactions for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import trio

from .. import Ack as _Ack
from .. import (
    DetachedTransaction,
    GroupMetadata,
    OffsetAndMetadata,
    PreparedTransaction,
    ProducerConfig,
    RecordMetadata,
    TopicPartition,
)
from .. import Producer as _Producer
from .. import Transaction as _Transaction
from ..config.text import plain_text
from ..config.whole import whole
from ..errors import KafkaTimeoutError
from ..errors.copies import again
from ..types import BytesLike
from .consumer import Consumer
from .crossing import OpenedClient, cross
from .guest import Guest, resolve
from .methods import crossing, direct, ending, report
from .taking import TURN

Headers = Sequence[tuple[str, bytes | None]]
T = TypeVar("T")
#: The arguments of a record.
_Fields: TypeAlias = tuple[str, BytesLike | None, BytesLike | None, Headers, int | None, int | None]
#: A topic, or one of its partitions.
_Place: TypeAlias = tuple[str, int | None]
#: Records of calls that were made within this many seconds time out together.
_AT_ONCE = 0.1


class Ack:
    """The future outcome of one record, for asyncio; made by :meth:`Producer.enqueue`."""

    __slots__ = ("_ack", "_guest")

    def __init__(self, guest: Guest, ack: _Ack) -> None:
        self._guest = guest
        self._ack = ack

    def __repr__(self) -> str:
        return repr(self._ack).replace("<trikafka.", "<trikafka.aio.", 1)

    @property
    def partition(self) -> TopicPartition:
        """The partition that the record goes to."""
        return self._ack.partition

    @property
    def done(self) -> bool:
        """True once the outcome is known; then :meth:`wait` returns without waiting."""
        return self._ack.done

    async def wait(self) -> RecordMetadata:
        """Wait until the record is delivered; return its metadata.

        Any number of tasks may wait, any number of times.

        Raises:
            TrikafkaError: As :meth:`trikafka.Ack.wait`.

        When cancelled, the delivery goes on.
        """
        self._guest.check_loop()
        return await _delivered(self._guest, self._ack)


async def _delivered(guest: Guest, ack: _Ack) -> RecordMetadata:
    """Wait for the outcome of a record, and return or raise it.

    Only a future of asyncio is awaited; the batch resolves it. That is cheaper than a task of Trio.
    """
    if not isinstance(ack, _Ack):  # an ack of a plugin's manager: only a task of Trio can await it
        return await cross(guest, ack.wait)
    while not ack.done:
        future: asyncio.Future[None] = guest.loop.create_future()
        ack._at_change(partial(resolve, future))
        try:
            await future
        except asyncio.CancelledError:
            ack._left()
            raise
    return ack.result()


class Transaction:
    """A producer's transaction for asyncio; made by :meth:`Producer.transaction`.

    Use it with ``async with``, as :class:`trikafka.Transaction`: the end of the block commits, an
    exception or a cancellation aborts.
    """

    def __init__(self, producer: Producer, transaction: _Transaction) -> None:
        self._producer = producer
        self._client = transaction
        self._guest = producer._guest

    def __repr__(self) -> str:
        return repr(self._client).replace("<trikafka.", "<trikafka.aio.", 1)

    def _check(self) -> None:
        self._producer._check()

    async def __aenter__(self) -> Transaction:
        self._check()
        begun = False

        async def begin() -> None:
            nonlocal begun
            await self._client.__aenter__()
            begun = True

        try:
            await cross(self._guest, begin)
        except asyncio.CancelledError as error:
            # The transaction may have begun before the cancellation arrived. No block will end it,
            # so it is aborted here.
            if begun:
                await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and (self._guest.ending or self._producer._failure is not None):
            return  # the producer has ended, and nothing can abort: the error of the block goes on
        await cross(self._guest, partial(self._client.__aexit__, kind, error, traceback))

    async def send_offsets(
        self,
        offsets: Consumer[Any, Any] | Mapping[TopicPartition, int | OffsetAndMetadata],
        group: Consumer[Any, Any] | GroupMetadata | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit a consumer's positions if and only if this transaction commits.

        Args:
            offsets: The consumer; or offsets by partition, which need ``group``.
            group: The consumer, or the result of its ``group_metadata()``.
            timeout: Seconds (default: ``default_api_timeout_ms``).

        Raises:
            TrikafkaError: As :meth:`trikafka.Transaction.send_offsets`.

        When cancelled, the offsets may or may not have been added to the transaction.
        """
        self._check()
        todo: Any = _of_trio(offsets)
        member: Any = _of_trio(group)
        await cross(self._guest, partial(self._client.send_offsets, todo, member, timeout=timeout))

    async def commit(self, *, timeout: float | None = None) -> None:
        """Deliver all records, and commit, as :meth:`trikafka.Transaction.commit`."""
        self._check()
        await cross(self._guest, partial(self._client.commit, timeout=timeout))

    async def abort(self, *, timeout: float | None = None) -> None:
        """Abort the transaction, as :meth:`trikafka.Transaction.abort`."""
        self._check()
        await cross(self._guest, partial(self._client.abort, timeout=timeout))

    async def prepare(self, *, timeout: float | None = None) -> PreparedTransaction:
        """Prepare the transaction to be ended later, as :meth:`trikafka.Transaction.prepare`."""
        self._check()
        return await self._hand_over(partial(self._client.prepare, timeout=timeout))

    async def detach(self, *, timeout: float | None = None) -> DetachedTransaction:
        """Leave the end of the transaction to another program.

        As :meth:`trikafka.Transaction.detach`.
        """
        self._check()
        return await self._hand_over(partial(self._client.detach, timeout=timeout))

    async def _hand_over(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call ``prepare`` or ``detach``, after which the block no longer ends the transaction.

        If the call has succeeded but is cancelled before it returns, the program never gets the
        result. Then the block ends the transaction after all.
        """
        done = False

        async def made() -> T:
            nonlocal done
            value = await call()
            done = True
            return value

        try:
            return await cross(self._guest, made)
        except asyncio.CancelledError:
            if done:
                self._client._take_back()
            raise


def _of_trio(thing: object) -> object:
    return thing._client if isinstance(thing, Consumer) else thing


@dataclass(slots=True)
class _Waiting:
    """A record whose topic or partition (``place``) is unknown, since ``began``.

    ``accepted`` gets the ack of a record behind the first one for its place. It gets ``None`` if
    the record has to be enqueued by a Trio task: as the first one for a place, or by itself.
    """

    record: _Fields
    began: float
    place: _Place
    accepted: asyncio.Future[_Ack | None]
    is_first: bool = False

    def waited(self) -> float:
        """Return the seconds since the call."""
        return time.perf_counter() - self.began


class Producer(OpenedClient):
    """A Kafka producer for asyncio; made by :func:`trikafka.aio.open_producer`.

    Any number of tasks may use it. Arguments and errors are those of :class:`trikafka.Producer`.
    """

    _client: _Producer

    def __init__(self, guest: Guest, client: _Producer) -> None:
        super().__init__(guest, client)
        self._due = 0.0  # the time of the next turn of other tasks in a loop over enqueue()
        # Of a topic or partition that is unknown, and whose first record waits for it: the records
        # behind that one.
        self._behind: dict[_Place, deque[_Waiting]] = {}

    @property
    def config(self) -> ProducerConfig:
        """The settings of this producer; see :attr:`trikafka.Producer.config`."""
        return self._client.config

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster, from the last metadata; ``None`` where the brokers give none."""
        return self._client.cluster_id

    async def send(
        self,
        topic: str,
        value: BytesLike | None,
        *,
        key: BytesLike | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write a record and wait until it is delivered.

        The records that many tasks send in one turn of asyncio's loop go into the same batches, and
        need one turn of Trio's loop only.

        Args:
            topic: The topic.
            value: The value, bytes-like or ``None``.
            key: The key, bytes-like or ``None``.
            headers: Pairs of a name and bytes.
            timestamp: Milliseconds since the epoch (default: now).
            partition: The partition; by default the partitioner decides.

        Returns:
            The record's partition, offset and timestamp.

        Raises:
            TrikafkaError: As :meth:`trikafka.Producer.send`.

        When cancelled while the buffer is full or the topic is unknown, nothing is written. When
        cancelled later, the delivery goes on.
        """
        # This repeats the code of enqueue() and _delivered(), because a further coroutine for each
        # record would lower the throughput of many tasks measurably.
        guest = self._guest
        if (
            asyncio._get_running_loop() is not guest.loop
            or guest.ending
            or self._failure is not None
        ):
            self._check()
        try:
            if self._behind:
                self._check_turn(topic, partition)
            ack = self._client.send_nowait(
                topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
            )
        except trio.WouldBlock:
            ack = None  # what is awaited here would raise its errors with this one as their context
        if ack is None:
            ack = await self._enqueue(topic, value, key, headers, timestamp, partition)
        guest.wake()
        if not isinstance(ack, _Ack):
            return await _delivered(guest, ack)
        future: asyncio.Future[None] = guest.loop.create_future()
        if ack._at_change(partial(resolve, future)):
            try:
                await future
            except asyncio.CancelledError:
                ack._left()
                raise
        try:
            return ack.result()
        except trio.WouldBlock:
            pass  # the batch was split: the outcome is that of a part
        return await _delivered(guest, ack)

    async def enqueue(
        self,
        topic: str,
        value: BytesLike | None,
        *,
        key: BytesLike | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Accept a record into the buffer and return its :class:`Ack`.

        Waits only for the topic's metadata and for room in the buffer. A loop over this call lets
        other tasks run once a millisecond.

        Args:
            topic: The topic.
            value: The value, bytes-like or ``None``.
            key: The key, bytes-like or ``None``.
            headers: Pairs of a name and bytes.
            timestamp: Milliseconds since the epoch (default: now).
            partition: The partition; by default the partitioner decides.

        Returns:
            The ack; :meth:`Ack.wait` returns the outcome.

        Raises:
            TrikafkaError: As :meth:`trikafka.Producer.enqueue`.

        When the call is cancelled while it waits, the record may still have been accepted.
        """
        self._check()
        if (now := time.perf_counter()) >= self._due:
            self._due = now + TURN
            await asyncio.sleep(0)
        try:
            self._check_turn(topic, partition)
            ack = self._client.send_nowait(
                topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
            )
        except trio.WouldBlock:
            ack = None  # as in send()
        if ack is None:
            ack = await self._enqueue(topic, value, key, headers, timestamp, partition)
        self._guest.wake()
        return Ack(self._guest, ack)

    def send_nowait(
        self,
        topic: str,
        value: BytesLike | None,
        *,
        key: BytesLike | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Ack:
        """Accept a record into the buffer without waiting.

        Nothing is sent before the calling task awaits something.

        Args:
            topic: The topic.
            value: The value, bytes-like or ``None``.
            key: The key, bytes-like or ``None``.
            headers: Pairs of a name and bytes.
            timestamp: Milliseconds since the epoch (default: now).
            partition: The partition; by default the partitioner decides.

        Raises:
            trio.WouldBlock: The buffer is full, other tasks wait for room, or the topic's metadata
                is missing.
            TrikafkaError: As :meth:`trikafka.Producer.send_nowait`.
        """
        self._check()
        self._check_turn(topic, partition)
        try:
            ack = self._client.send_nowait(
                topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
            )
        finally:
            self._guest.wake()
        return Ack(self._guest, ack)

    async def _enqueue(
        self,
        topic: str,
        value: BytesLike | None,
        key: BytesLike | None,
        headers: Headers,
        timestamp: int | None,
        partition: int | None,
    ) -> _Ack:
        # Programs of asyncio expect that tasks which call one after the other go on in that order,
        # and Trio runs its tasks in any order. So while a topic's metadata or a partition is
        # missing, only the first record for it crosses. Those behind it are appended right after
        # it, in their order. If the first one is cancelled, the next one crosses in its place. If
        # it fails, or the buffer is full, each of those that cannot be appended crosses by itself,
        # for the rest of its time.
        #
        # If the topic has come without a record's partition, the record waits for the partition, up
        # to three seconds, and only records for the same partition queue behind it. It enters that
        # queue in the step that ends its wait for the topic. Otherwise a later call of the same
        # turn of the loop would find no queue, and go first.
        #
        # A record of a transaction always crosses: Trio's side knows whether that is still open.
        began = time.perf_counter()
        record = topic, value, key, headers, timestamp, partition
        if self.config.transactional_id is not None:
            enqueue = partial(
                self._client.enqueue,
                topic,
                value,
                key=key,
                headers=headers,
                timestamp=timestamp,
                partition=partition,
            )
            return await cross(self._guest, enqueue)
        name = plain_text(topic)
        number = whole(partition)
        waiting = _Waiting(record, began, (name, None), self._guest.loop.create_future())
        ack = await self._in_turn(waiting)
        if ack is None and waiting.place[1] is None and isinstance(number, int):
            waiting.place = name, number
            ack = await self._in_turn(waiting)
        return await self._alone(waiting) if ack is None else ack

    async def _alone(self, waiting: _Waiting) -> _Ack:
        slowly = partial(self._client._enqueue_slowly, waiting.record, waiting.waited())
        return await cross(self._guest, slowly)

    async def _in_turn(self, waiting: _Waiting) -> _Ack | None:
        """Wait while the record's topic or partition is unknown; return the ack of the record.

        ``None``: the record was not appended, and has to cross by itself. On cancellation of the
        first record for a place, the next one there becomes the first.
        """
        if self._client._knows(*waiting.place) and waiting.place not in self._behind:
            return None
        self._enter(waiting)
        while True:
            if not waiting.is_first:
                try:
                    ack = await waiting.accepted
                except asyncio.CancelledError:
                    if waiting.is_first:  # since this turn of the loop
                        self._append_behind(waiting.place, cancelled=True)
                    raise
                if not waiting.is_first:
                    return ack
            if (ack := await self._as_first(waiting)) is not None:
                return ack

    def _enter(self, waiting: _Waiting) -> None:
        """Put a record into the queue of its place; it is the first one if there is no queue."""
        behind = self._behind.get(waiting.place)
        waiting.is_first = behind is None
        if behind is None:
            self._behind[waiting.place] = deque()
            return
        if waiting.accepted.done():
            waiting.accepted = self._guest.loop.create_future()
        behind.append(waiting)

    async def _as_first(self, waiting: _Waiting) -> _Ack | None:
        """Append the first record for a topic or partition, then those that queued behind it.

        ``None``: the record has moved to the queue of its partition.
        """
        place = waiting.place
        number = whole(waiting.record[5])
        cancelled = False
        timeout: KafkaTimeoutError | None = None
        try:
            if place[1] is None and isinstance(number, int):
                learn = partial(self._client._learn, place[0], waiting.waited())
                await cross(self._guest, learn)
                if not self._client._knows(place[0], number):
                    waiting.place = place[0], number
                    self._enter(waiting)
                    return None
            return await self._alone(waiting)
        except asyncio.CancelledError:
            cancelled = True
            raise
        except KafkaTimeoutError as error:
            timeout = error
            raise
        finally:
            self._append_behind(place, cancelled=cancelled, timeout=timeout)
            del timeout

    def _check_turn(self, topic: str, partition: int | None) -> None:
        """Raise :exc:`trio.WouldBlock` if earlier records wait for the topic or the partition."""
        if self._behind and isinstance(topic, str):
            name = plain_text(topic)
            number = whole(partition)
            if (name, None) in self._behind or (
                isinstance(number, int) and (name, number) in self._behind
            ):
                raise trio.WouldBlock

    def _append_behind(
        self, place: _Place, *, cancelled: bool, timeout: KafkaTimeoutError | None = None
    ) -> None:
        """Append the records behind the first one for a place, which has ended.

        ``timeout`` is the error of the first one. Records whose time is up, too, get a copy of that
        error.
        """
        behind = self._behind[place]
        limit = self.config.max_block_ms / 1000 - _AT_ONCE
        while behind and not self._guest.loop.is_closed():
            each = behind.popleft()
            if each.accepted.done():  # its task was cancelled
                continue
            to, value, key, headers, timestamp, partition = each.record
            number = whole(partition) if place[1] is None else None
            if isinstance(number, int) and (place[0], number) in self._behind:
                each.place = place[0], number  # earlier records wait for this partition
                self._enter(each)
                continue
            try:
                ack = self._client.send_nowait(
                    to, value, key=key, headers=headers, timestamp=timestamp, partition=partition
                )
            except trio.WouldBlock:
                if (
                    isinstance(number, int)
                    and self._client._knows(place[0])
                    and not self._client._knows(place[0], number)
                ):
                    each.place = place[0], number
                    self._enter(each)
                    each.accepted.set_result(None)
                    continue
                if timeout is not None and each.waited() >= limit:
                    each.accepted.set_exception(again(timeout))
                    continue
                each.is_first = cancelled
                each.accepted.set_result(None)
                if cancelled:
                    return
            except Exception as error:
                each.accepted.set_exception(error)
            else:
                each.accepted.set_result(ack)
        del self._behind[place]

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """Return a transaction for ``async with``, as :meth:`trikafka.Producer.transaction`.

        Args:
            timeout: Seconds to wait for the previous transaction (default:
                ``default_api_timeout_ms``).

        Raises:
            ConfigurationError: The producer has no ``transactional_id``.
        """
        self._check()
        return Transaction(self, self._client.transaction(timeout=timeout))

    aclose = ending(_Producer.aclose)
    client_instance_id = crossing(_Producer.client_instance_id)
    flush = crossing(_Producer.flush)
    health = report(_Producer.health)
    partitions_for = crossing(_Producer.partitions_for)
    register_metric = direct(_Producer.register_metric)
    send_arrow = crossing(_Producer.send_arrow)
    statistics = report(_Producer.statistics)
    unregister_metric = direct(_Producer.unregister_metric)
