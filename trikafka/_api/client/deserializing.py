"""Deserialized keys and values (``key_deserializer``, ``value_deserializer``).

A record is deserialized when it is delivered: by a receive, or by iterating over its batch. A
record that cannot be deserialized raises at each attempt and remains the next one, until the user
seeks past it. A batch that was delivered whole has already moved the position behind itself, so an
error in it moves the position back to the record. Arrow tables hold the bytes.
"""

# Async deserializers
# -------------------
#
# Where a function is async is decided when the consumer opens. Then the receive itself calls it,
# before anything is delivered (:class:`AwaitedBatch`), for two reasons: iterating over a batch
# cannot wait, and a cancelled receive must not lose the record whose function was under way.
#
# What has returned is kept with the fetch. So a receive that is cancelled again and again makes
# progress record by record, and only the function that was cut is called again.
#
# Functions are called one after the other, in the order of the records. A receive delivers what it
# has after ``_SOON``, and ends at a record that failed: the next ones may wait for the same server
# that did not answer. A failed function is called again when its record is received again, since
# its error may have been the server's, not the record's.

from __future__ import annotations

import inspect
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

import trio

from ..._net.callers import Host, host_of_this_run
from ..._wire.columns import RecordBatch
from ...config import ConsumerConfig, ShareConsumerConfig
from ...errors import ConfigurationError, DeserializationError
from ...errors.copies import again
from ...errors.cut_off import await_user_call
from ...errors.groups import unwrapped
from ...errors.notes import note_how_to_skip
from ...hooks import check_takes
from ...types import AsyncDeserializer, Deserializer, Record
from .turns import TURN

T = TypeVar("T")
_log = logging.getLogger("trikafka.consumer")
_CHUNK = 128
#: A receive delivers what async deserializers have returned after so long (seconds).
_SOON = 0.01


Given = Callable[[bytes], Any] | Deserializer[Any] | AsyncDeserializer[Any] | None


#: The function to call, and whether it takes topic and headers, too.
_Function: TypeAlias = tuple[Callable[..., Any], bool]


class Deserializers:
    """The user's functions, and objects that see the record's topic and headers."""

    __slots__ = ("_key", "_key_is_async", "_value", "_value_is_async")

    def __init__(self, key: Given, value: Given) -> None:
        self._key = _function(key, "key_deserializer")
        self._value = _function(value, "value_deserializer")
        self._key_is_async = _is_async(self._key)
        self._value_is_async = _is_async(self._value)

    @classmethod
    def of(cls, config: ConsumerConfig | ShareConsumerConfig) -> Deserializers | None:
        """Return the functions of a consumer; ``None`` if it has none."""
        if config.key_deserializer is None and config.value_deserializer is None:
            return None
        return cls(config.key_deserializer, config.value_deserializer)

    @property
    def are_async(self) -> bool:
        """True if one of the functions is async."""
        return self._key_is_async or self._value_is_async

    def batch(self, batch: RecordBatch[Any, Any]) -> DeserializedBatch:
        """Return a batch whose records are deserialized."""
        if self.are_async:
            return AwaitedBatch(batch, self)
        return DeserializedBatch(batch, self)

    def apply(self, record: Record) -> Record:
        """Return the record with deserialized key and value; ``None`` stays ``None``.

        Raises :exc:`DeserializationError`.
        """
        key, value = record.key, record.value
        part: Literal["key", "value"] = "key"
        try:
            if self._key is not None and key is not None:
                function, sees = self._key
                key = function(record.topic, record.headers, key) if sees else function(key)
                if type(key) is CoroutineType:
                    raise _not_awaited(key)
            part = "value"
            if self._value is not None and value is not None:
                function, sees = self._value
                value = function(record.topic, record.headers, value) if sees else function(value)
                if type(value) is CoroutineType:
                    raise _not_awaited(value)
        except Exception as error:
            raise _failed(record, part, error) from error
        return record._replace(key=key, value=value)

    async def apply_async(self, record: Record) -> Record:
        """Return the record as :meth:`apply`, with async functions awaited."""
        key, value = record.key, record.value
        part: Literal["key", "value"] = "key"
        try:
            if self._key is not None and key is not None:
                key = _called(self._key, record, key)
                if self._key_is_async:
                    key = await key
                elif type(key) is CoroutineType:
                    raise _not_awaited(key)
            part = "value"
            if self._value is not None and value is not None:
                value = _called(self._value, record, value)
                if self._value_is_async:
                    value = await value
                elif type(value) is CoroutineType:
                    raise _not_awaited(value)
        except Exception as error:
            raise _failed(record, part, error) from error
        return record._replace(key=key, value=value)


def _failed(
    record: Record, part: Literal["key", "value"], error: Exception
) -> DeserializationError:
    return DeserializationError(
        record.topic,
        record.partition,
        record.offset,
        part,
        record.key,
        record.value,
        type(unwrapped(error)).__name__,  # a nursery raises its errors in a group
    )


def _not_awaited(result: CoroutineType[Any, Any, Any]) -> TypeError:
    """Return the error for a plain function that returned a coroutine, such as a lambda.

    Its result cannot be awaited here: a batch has been delivered already when it is iterated over.
    """
    result.close()
    return TypeError(
        f"the deserializer returned the coroutine {result.__qualname__}(), which nothing awaits: "
        "give a deserializer that is an async function itself (async def)"
    )


def _function(given: Given, setting: str) -> _Function | None:
    """Return the function of a setting.

    Raises :exc:`ConfigurationError` if it cannot be called with the bytes, or with topic, headers
    and bytes: it would fail at each record, and the consumer would stand still.
    """
    if given is None:
        return None
    # A function, or a class, may have a member of that name by chance.
    if callable(given):
        check_takes(given, (b"",), ConfigurationError, setting, may_wait=True)
        return given, False
    function = given.deserialize
    who = f"{setting}: deserialize"
    check_takes(function, ("", (), b""), ConfigurationError, who, may_wait=True)
    return function, True


def _is_async(function: _Function | None) -> bool:
    """Return whether the result of a function is to be awaited."""
    if function is None:
        return False
    call, _ = function
    if inspect.iscoroutinefunction(call):
        return True
    # An object may have an async __call__; that of a class is the one of its instances.
    return not isinstance(call, type) and inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004
    )


def _called(function: _Function, record: Record, data: bytes) -> Any:
    call, of_record = function
    return call(record.topic, record.headers, data) if of_record else call(data)


class DeserializedBatch(RecordBatch):
    """A batch whose records are deserialized as they are made.

    ``stands_at`` is called with the offset of a record that cannot be deserialized. It returns
    whether the consumer's position is at the record now.
    """

    __slots__ = ("_deserializers", "_stands_at")

    def __init__(
        self,
        batch: RecordBatch,
        deserializers: Deserializers,
        stands_at: Callable[[int], bool] = lambda offset: False,
    ) -> None:
        super().__init__(
            batch.topic, batch.partition, batch.columns, batch.next_offset, batch.leader_epoch
        )
        self._deserializers = deserializers
        self._stands_at = stands_at

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a batch with deserializers cannot be pickled: pickle batch.raw, whose records have "
            "bytes, or list(batch)"
        )

    def delivered_by(self, stands_at: Callable[[int], bool]) -> DeserializedBatch:
        """Return the same batch, with errors reported to ``stands_at``."""
        return DeserializedBatch(self, self._deserializers, stands_at)

    @property
    def raw(self) -> RecordBatch:
        return RecordBatch(
            self.topic, self.partition, self.columns, self.next_offset, self.leader_epoch
        )

    def deserialize(self, record: Record) -> Record:
        return self._deserializers.apply(record)

    def detached(self) -> RecordBatch:
        return self.delivered_by(lambda offset: False)

    def __iter__(self) -> Iterator[Record]:
        return _Records(super()._make, len(self), self._apply)

    def head(self, end_offset: int) -> RecordBatch:
        return self._alike(super().head(end_offset))

    def _make(self, start: int, stop: int) -> list[Record]:
        return [self._apply(record) for record in super()._make(start, stop)]

    def _apply(self, record: Record) -> Record:
        try:
            return self._deserializers.apply(record)
        except DeserializationError as error:
            self._raised(error)
            raise

    def _raised(self, error: DeserializationError) -> None:
        if self._stands_at(error.offset):
            note_how_to_skip(error)

    def _slice(self, start: int, stop: int) -> RecordBatch:
        return self._alike(super()._slice(start, stop))

    def _alike(self, batch: RecordBatch) -> RecordBatch:
        return (
            batch
            if batch is self
            else DeserializedBatch(batch, self._deserializers, self._stands_at)
        )


class _Records(Generic[T]):
    """An iterator that stays at a record that cannot be deserialized.

    ``make(start, stop)`` returns what ``apply`` turns into records, one by one.
    """

    __slots__ = ("_apply", "_chunk", "_count", "_make", "_next", "_start")

    def __init__(
        self, make: Callable[[int, int], Sequence[T]], count: int, apply: Callable[[T], Record]
    ) -> None:
        self._make = make
        self._count = count
        self._apply = apply
        self._start = 0
        self._next = 0
        self._chunk: Sequence[T] = ()

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        index = self._next
        if index == self._start + len(self._chunk):
            if index == self._count:
                raise StopIteration
            self._chunk = self._make(index, min(index + _CHUNK, self._count))
            self._start = index
        record = self._apply(self._chunk[index - self._start])
        self._next = index + 1
        return record


class AwaitedBatch(DeserializedBatch):
    """A batch whose deserializers are async: :meth:`resolve` calls them before it is delivered.

    ``outcomes`` are those of its first records, as far as they are known: the deserialized record,
    or the error, which is the last one then.
    """

    __slots__ = ("_outcomes",)

    def __init__(
        self,
        batch: RecordBatch,
        deserializers: Deserializers,
        stands_at: Callable[[int], bool] = lambda offset: False,
        outcomes: list[Record | DeserializationError] | None = None,
    ) -> None:
        super().__init__(batch, deserializers, stands_at)
        self._outcomes = [] if outcomes is None else outcomes

    @property
    def known(self) -> int:
        """The number of records at the beginning whose outcome is known."""
        return len(self._outcomes)

    async def resolve(self) -> None:
        """Call the deserializers of the first records, unless outcomes are known.

        When cancelled, what has returned is kept.
        """
        if self and not self.known:
            await self._resolve_next()

    async def _resolve_next(self) -> None:
        host = host_of_this_run()

        async def fill() -> None:
            await self._fill(host)

        try:
            await await_user_call("a deserializer", partial(host.run, fill), _log)
            # A function that was cut may raise anything. That says nothing of its record.
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            if self._has_failed:
                self._outcomes.pop()
            raise

    async def _fill(self, host: Host) -> None:
        now = trio.current_time()
        until, turn = now + _SOON, now + TURN
        while (first := self.known) < len(self):
            for record in RecordBatch._make(self, first, min(first + _CHUNK, len(self))):
                try:
                    self._outcomes.append(await self._deserializers.apply_async(record))
                except DeserializationError as error:
                    self._outcomes.append(error)
                    return
                if (now := trio.current_time()) >= until:
                    return
                if now >= turn:  # the functions may have returned without a wait
                    await host.let_others_run()
                    turn = trio.current_time() + TURN

    @property
    def _has_failed(self) -> bool:
        return bool(self._outcomes) and isinstance(self._outcomes[-1], DeserializationError)

    def to_retry(self) -> AwaitedBatch:
        """Return the same records without the error of the last outcome, if that is one."""
        return self._with(self, self._outcomes[:-1]) if self._has_failed else self

    async def deserialized_again(self) -> RecordBatch[Any, Any]:
        batch = self.to_retry()
        if batch is not self:  # only the outcome of its last record is missing
            await batch._resolve_next()
        return batch

    def delivered_by(self, stands_at: Callable[[int], bool]) -> AwaitedBatch:
        return AwaitedBatch(self, self._deserializers, stands_at, self._outcomes)

    def deserialize(self, record: Record) -> Record:
        return self._outcome(bisect_left(self.offsets, record.offset))

    def __iter__(self) -> Iterator[Record]:
        return _Records(range, len(self), self._outcome_at)

    def head(self, end_offset: int) -> RecordBatch:
        batch = RecordBatch.head(self, end_offset)
        return batch if batch is self else self._with(batch, self._outcomes[: len(batch)])

    def _make(self, start: int, stop: int) -> list[Record]:
        return [self._outcome_at(index) for index in range(start, stop)]

    def _slice(self, start: int, stop: int) -> RecordBatch:
        batch = RecordBatch._slice(self, start, stop)
        return batch if batch is self else self._with(batch, self._outcomes[start:stop])

    def _with(
        self, batch: RecordBatch, outcomes: list[Record | DeserializationError]
    ) -> AwaitedBatch:
        return AwaitedBatch(batch, self._deserializers, self._stands_at, outcomes)

    def _outcome(self, index: int) -> Record:
        outcome = self._outcomes[index]
        if isinstance(outcome, DeserializationError):
            raise again(outcome)
        return outcome

    def _outcome_at(self, index: int) -> Record:
        try:
            return self._outcome(index)
        except DeserializationError as error:
            self._raised(error)
            raise
