"""Every exception that trikafka raises.

The exceptions for the broker's error codes, and their flags, are in :mod:`.table`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

import trio

from ..error_codes import ErrorCode
from .copies import again
from .counts import counted
from .groups import decisive
from .peer_text import printable

if TYPE_CHECKING:
    from ..types import OffsetAndMetadata, PartitionDelivery, TopicPartition


# A caller of a Kafka client needs the answers to three questions, and the class alone cannot give
# them: NOT_LEADER_OR_FOLLOWER is temporary, TOPIC_AUTHORIZATION_FAILED is permanent, and both are
# BrokerResponseErrors. So each error carries the answers as attributes:
#
# * May the same call be retried? `retriable`, with `refresh_metadata` and `refresh_coordinator` for
#   what must be looked up first, and `patience` for errors that pass soon or never.
# * Can the producer continue? `fatal` is True if a transactional producer must be closed.
#   TransactionAbortableError is the other case: abort and repeat.
# * Did the write happen? `maybe_written` is True if a failed record may be in the log. Only the
#   history of the batch shows that. A batch that was never sent, or that the broker rejected before
#   the append, is not in the log. A batch whose connection broke, that expired in flight, or that
#   got an ambiguous code such as NOT_ENOUGH_REPLICAS_AFTER_APPEND, may be there. A program that
#   sends such a record again may duplicate it, so the decision is the program's.
#
# The flags are class attributes where the class determines them. from_code() and of_records() set
# them on the instance where the code or the attempt does.
#
# Classes also inherit from the built-in exception that fits (ConnectionError, ValueError,
# trio.TooSlowError), so generic handlers work.
class TrikafkaError(Exception):
    """The root of all errors that trikafka raises.

    What to do: catch it last.

    Attributes:
        code: The broker's error code, as an :class:`ErrorCode` if trikafka knows it; ``None`` if no
            broker returned one.
        retriable: True if the same call may succeed when it is repeated.
        refresh_metadata: True if the metadata must be refreshed before that.
        refresh_coordinator: True if the coordinator must be looked up before that.
        patience: Seconds after which a call stops retrying this error, even before its own limit. A
            topic that is still missing then is not about to appear.
        fatal: True if a transactional producer that gets this error can no longer be used.
        failures: The error of each partition that failed, if the call was about partitions, or of
            each thing that an admin call was about. Empty if the error concerns the whole call.
        maybe_written: For a record that was not delivered: True if it may be in the log
            nevertheless, so that sending it again may duplicate it. False: the record is not in the
            log.
    """

    code: int | None = None
    maybe_written: bool = False
    patience: float = math.inf
    retriable: bool = False
    refresh_metadata: bool = False
    refresh_coordinator: bool = False
    fatal: bool = False
    failures: Mapping[Any, TrikafkaError] = MappingProxyType({})

    def _stand_for(self, failures: Mapping[Any, TrikafkaError]) -> None:
        """Make this error stand for the errors of several partitions.

        Its refresh flags are set if any of these errors sets them.
        """
        self.failures = dict(failures)
        self.refresh_metadata = any(each.refresh_metadata for each in failures.values())
        self.refresh_coordinator = any(each.refresh_coordinator for each in failures.values())

    def __str__(self) -> str:
        # Many messages contain names that a peer chose, raw in ``args``. The shown text is one line
        # of printable characters.
        return printable(super().__str__())

    def of_records(self, maybe_written: bool) -> Self:
        """Return this error with ``maybe_written`` set as given.

        The result is this error, or a copy if the flag differs.
        """
        if self.maybe_written is maybe_written:
            return self
        twin = again(self)
        twin.maybe_written = maybe_written
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors here take parts, not the message. Without this method, errors could not be
        # copied, nor pickled for another process.
        return _remake, (type(self), self.args), self.__dict__


def _remake(cls: type[TrikafkaError], args: tuple[Any, ...]) -> TrikafkaError:
    error = cls.__new__(cls, *args)
    error.args = args
    return error


class ConfigurationError(TrikafkaError, ValueError):
    """A setting, an address or an argument is wrong. Raised before any I/O.

    What to do: correct the setting or argument that the text names.
    """


class CompiledPartWarning(RuntimeWarning):
    """The compiled part of trikafka was not built or cannot be loaded.

    Without it, records take about twenty times as long. The warning is issued once, when the first
    client opens. ``TRIKAFKA_PURE=1`` in the environment disables it, and
    ``warnings.filterwarnings("error", category=trikafka.CompiledPartWarning)`` stops the program.

    What to do: install a C compiler, then trikafka again.
    """


class PluginError(TrikafkaError):
    """A plugin failed to load, returned an object of the wrong shape, or raised an error.

    Also raised if no plugin knows the requested name. While a client runs:

    * An error of trikafka that a plugin raises stays that error, and a retriable one is retried.
      Any other error becomes this one, as its cause. So does a function that is async where it must
      be plain, or the other way round.
    * A value of a wrong type may cause any error. Only some are checked, which would fail far from
      the plugin; a type checker is to find the others.
    * A plugin that hangs in a method makes the call that waits for it raise
      :exc:`KafkaTimeoutError`. One that hangs in ``run`` is named by warnings and by ``health()``.
    * If ``run`` or a task of ``start_soon`` raises, or ``run`` returns, the client ends with a
      :exc:`ClientFailedError`.
    * After a wrong assignment (a missing or unknown member, or partitions that were not to be
      assigned to it) each receive raises this error, and the member leaves until it subscribes
      again.
    * An error of a listener is raised by the receive. One of an observer is logged, once for each
      method, and does not affect the client.

    What to do: correct the plugin: the text names it and the method.
    """


class IllegalStateError(TrikafkaError, RuntimeError):
    """The call is not legal in the client's current state.

    An example is to seek a partition that is not assigned.

    What to do: correct the program: the text says in which state the client is.
    """


class NotOpenError(IllegalStateError, AttributeError):
    """An attribute of a client was used before ``async with`` opened the client.

    To Python, such an attribute does not exist.

    What to do: use the client inside its ``async with``.
    """


class KafkaTimeoutError(TrikafkaError, trio.TooSlowError):
    """A call did not finish within its limit, which spans all attempts.

    What to do: read ``last_error``, the reason why the last attempt failed.

    Attributes:
        call: The name of the call.
        limit: The limit in seconds.
        attempts: The number of attempts.
        last_error: The failure of the last attempt, also chained as the cause; ``None`` if there
            was none.
    """

    def __init__(
        self, call: str, limit: float, attempts: int = 1, last_error: BaseException | None = None
    ) -> None:
        self.call = call
        self.limit = limit
        self.attempts = attempts
        self.last_error = last_error
        tries = counted(attempts, "attempt") if attempts else "no attempts"
        # A record that waited for a connection all the time has an error, but no attempt.
        before = "the last one failed with: " if attempts else ""
        why = f"; {before}{last_error}" if last_error is not None else ""
        super().__init__(f"{call} did not finish within {limit:g} s ({tries}{why})")


class DeliveryTimeoutError(KafkaTimeoutError):
    """A record was not acknowledged within ``delivery_timeout_ms`` (KIP-91).

    Also raised if the producer had to close before the record was acknowledged. The phases of a
    record's batch, and what to look at where one was long:

    * ``"waiting"``, for more records or for the batches before it: ``linger_ms``, the broker's
      speed, ``max_in_flight_requests_per_connection``;
    * ``"waiting for a leader"``, an election: is the partition offline?
    * ``"waiting for a connection"`` to the broker: the network, ``last_error``;
    * ``"waiting for a producer id"`` from any broker: the controller;
    * ``"waiting for the transaction's coordinator"``, with version 1 of transactions: that broker;
    * ``"backoff"``, until the next attempt: ``last_error``, why the last one was refused;
    * ``"in flight"``, for the response: a frozen or overloaded broker, or replicas that lag.

    The attributes of :exc:`KafkaTimeoutError` exist as well.

    What to do: send the record again unless ``maybe_written``.

    Attributes:
        topic: The record's topic.
        partition: The record's partition.
        phase: The last phase of the record's batch.
        seconds: The time spent in each phase.
        maybe_written: True if the record may be in the log nevertheless.
    """

    def __init__(
        self,
        call: str,
        limit: float,
        attempts: int = 0,
        last_error: BaseException | None = None,
        *,
        topic: str = "",
        partition: int = -1,
        phase: str = "waiting",
        seconds: Mapping[str, float] | None = None,
        maybe_written: bool = False,
    ) -> None:
        super().__init__(call, limit, attempts, last_error)
        self.topic = topic
        self.partition = partition
        self.phase = phase
        self.maybe_written = maybe_written
        self.seconds = dict(seconds or {})
        if topic:
            spent = ", ".join(f"{round(time, 3):g} s {name}" for name, time in self.seconds.items())
            log = "may nevertheless be" if maybe_written else "is not"
            self.args = (
                f"{self.args[0]}; {topic}-{partition} spent {spent} (at last: {phase}); the record "
                f"{log} in the log",
            )


class TransactionError(TrikafkaError):
    """A transaction failed.

    The subclass determines what to do. :exc:`ProducerFencedError` is not a subclass.

    What to do: catch its subclasses.
    """


class TransactionAbortableError(TransactionError):
    """The transaction failed and cannot be committed.

    The cause is chained.

    What to do: leave the transaction's block, which aborts it, and repeat the work.
    """


class TransactionUndecidedError(TransactionError, KafkaTimeoutError):
    """A commit was cut off, by its limit or by cancellation, before its outcome was known.

    The commit continues in the background. Only ``commit`` may be called again. The next
    ``producer.transaction()`` waits for the outcome; until then no record can join, and nothing can
    be aborted. The attributes are those of :exc:`KafkaTimeoutError`.

    What to do: call ``commit`` again.
    """

    def __init__(
        self,
        text: str,
        limit: float = math.inf,
        attempts: int = 1,
        last_error: BaseException | None = None,
        call: str = "commit",
    ) -> None:
        self.call = call
        self.limit = limit
        self.attempts = attempts
        self.last_error = last_error
        TrikafkaError.__init__(self, text)


class TransactionNotOpenError(TransactionError):
    """The transaction that an admin client was to end is not open.

    If its coordinator refused the request, that error is the cause.

    What to do: list the transactions again, and end one that is still open.
    """


class TransactionFatalError(TransactionError):
    """This producer can make no more transactions.

    The cause is chained.

    What to do: remove the cause, close the producer, and open another.
    """

    fatal = True


class RequestTimedOutError(TrikafkaError):
    """One request got no response within its share of the call's time.

    The call's deadline decides about a retry.

    What to do: wait; calls repeat it.
    """

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class KafkaConnectionError(TrikafkaError, ConnectionError):
    """A connection to a broker could not be made or was lost.

    What to do: wait; calls repeat it.
    """

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class BootstrapError(TrikafkaError, ConnectionError):
    """None of the bootstrap addresses responded as a Kafka broker.

    The message lists each address with its cause.

    What to do: compare each bootstrap address with its cause in the text.
    """


class ProtocolError(TrikafkaError):
    """The peer sent bytes that are not Kafka's protocol, or an unrequested response.

    What to do: check the port, and whether it needs TLS.
    """


class DamagedResponseError(ProtocolError):
    """A response was damaged: cut, too long, with impossible lengths, or not the requested one.

    The connection is treated as lost and the call is retried. While a client opens, the error
    becomes a :exc:`BootstrapError`, since the port may not be a Kafka broker's.

    What to do: look for a proxy or another service behind the port.
    """

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class UnsupportedVersionError(TrikafkaError):
    """The broker and trikafka have no version of a request in common.

    What to do: use a newer broker: the text names the release.
    """

    fatal = True


class TelemetryNotSupportedError(UnsupportedVersionError):
    """The broker accepts no client metrics (KIP-714), so it has no instance id to return.

    A retry cannot succeed.

    What to do: use Kafka 3.7 or newer with a metrics plugin.
    """


class CorruptRecordError(TrikafkaError):
    """Fetched bytes are not valid records.

    What to do: seek past the offset, or restore the partition; ``raw`` has the bytes.

    Attributes:
        reason: The fault.
        topic: The topic; ``None`` if unknown.
        partition: The partition; ``None`` if unknown.
        offset: The offset; ``None`` if unknown.
        raw: The record batch as received, at most its first 2 MiB; ``None`` if it is not available.
            It is not part of the text.
    """

    _MOST_RAW = 2 * 2**20

    def __init__(
        self,
        reason: str,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        raw: bytes | memoryview | None = None,
    ) -> None:
        self.reason = reason
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.raw = None if raw is None else bytes(raw[: self._MOST_RAW])
        where = f" in {topic}-{partition} at offset {offset}" if topic is not None else ""
        super().__init__(f"corrupt records{where}: {reason}")


class UnsupportedCompressionError(ConfigurationError):
    """A compression codec is unknown. All of Kafka's codecs come with trikafka.

    What to do: use ``gzip``, ``snappy``, ``lz4`` or ``zstd``.
    """


class NoOffsetForPartitionError(TrikafkaError):
    """A partition has no committed offset, and ``auto_offset_reset`` is ``'none'``.

    What to do: seek, or set ``auto_offset_reset``: nothing is committed.
    """


class OffsetOutOfRangeError(TrikafkaError):
    """A position lies outside the partition's log, and ``auto_offset_reset`` is ``'none'``.

    What to do: seek between ``log_start`` and ``log_end``, or set ``auto_offset_reset``.

    Attributes:
        partition: The partition.
        offset: The position outside the log.
        log_start: The first offset in the log; ``None`` if the consumer does not know it.
        log_end: The offset after the last record; ``None`` if the consumer does not know it.
    """

    def __init__(
        self,
        text: str,
        partition: TopicPartition | None = None,
        offset: int | None = None,
        log_start: int | None = None,
        log_end: int | None = None,
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end
        super().__init__(text)


class LogTruncationError(OffsetOutOfRangeError):
    """Records that were read are gone: a leader without them took over (KIP-320).

    What to do: seek to ``diverging.offset``, or set ``auto_offset_reset``.

    Attributes:
        partition: The partition.
        position: The offset that was to be read next.
        diverging: The point up to which the log and the records read agree. Its ``offset`` is the
            first that may differ. ``None`` if the broker does not know it.
    """

    partition: TopicPartition

    def __init__(
        self,
        partition: TopicPartition,
        position: int,
        diverging: OffsetAndMetadata | None = None,
        log_start: int | None = None,
        log_end: int | None = None,
    ) -> None:
        self.position = position
        self.diverging = diverging
        super().__init__(
            f"{truncation(partition, position, diverging)}; seek, or set auto_offset_reset",
            partition,
            position,
            log_start,
            log_end,
        )


def truncation(
    partition: TopicPartition, position: int, diverging: OffsetAndMetadata | None
) -> str:
    """Return what happened to a log, for the error and for the log of a consumer that goes on."""
    agree = (
        "the first lost offset is not known"
        if diverging is None
        else f"what was read from offset {diverging.offset} on is gone"
    )
    return f"the log of {partition} was truncated below the position {position}: {agree}"


class DeserializationError(TrikafkaError):
    """A record's key or value could not be deserialized.

    The deserializer's error is the cause. The text has its class only, because its own text may
    have parts of the record. The position stays at the record.

    What to do: seek to ``offset + 1`` to skip the record.

    Attributes:
        topic: The record's topic.
        partition: The record's partition.
        offset: The record's offset.
        part: ``"key"`` or ``"value"``.
        key: The raw key, which is not part of the text.
        value: The raw value, which is not part of the text.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        part: Literal["key", "value"],
        key: bytes | None,
        value: bytes | None,
        kind: str = "",
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.part = part
        self.key = key
        self.value = value
        super().__init__(
            f"the {part} of the record at offset {offset} of {topic}-{partition} could not be "
            f"deserialized{kind and f' ({kind})'}"
        )


class CommitFailedError(TrikafkaError):
    """The offsets were not committed, because the member is no longer in its generation.

    Another member may already process the same partitions. A usual reason is that
    ``max_poll_interval_ms`` passed without a receive (KIP-62).

    What to do: receive again; the new owner of the partitions repeats the records.
    """


class PollIntervalExceededError(CommitFailedError):
    """The member left its group, because the time between two receives was too long (KIP-62).

    What to do: raise ``max_poll_interval_ms``, or take fewer records at a time.

    Attributes:
        setting: The setting that bounds the time, ``max_poll_interval_ms``.
        interval_ms: Its value.
    """

    setting = "max_poll_interval_ms"

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        super().__init__(
            f"more than {self.setting} ({interval_ms} ms) passed without a receive, so the member "
            f"left its group; raise {self.setting}, or take fewer records at a time"
        )


class PartitionNotOwnedError(CommitFailedError):
    """The commit names partitions that this member does not own.

    Such a commit could overwrite the offsets of their owner. A consumer without a subscription, or
    the admin client, may set these offsets.

    What to do: commit only what this member owns.

    Attributes:
        partitions: The partitions that are not owned.
    """

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = tuple(partitions)
        super().__init__(
            f"not committed: this member does not own {', '.join(map(str, self.partitions))}, and "
            "the commit could overwrite the offsets of the owner; to set a group's offsets by "
            "hand, use a consumer without a subscription, or the admin client"
        )


class LockLostError(TrikafkaError):
    """A share consumer's lock on a record ended before the record was acknowledged (KIP-932).

    The group delivers the record again, perhaps to another member, unless this was its last
    delivery. A block that is cut off by ``max_processing_ms`` after an ``accept()`` or
    ``reject()`` raises this error, too; then that call counts.

    What to do: stop working on the record.

    Attributes:
        topic: The topic.
        partition: The partition.
        offset: The record's offset.
        reason: Why the lock ended.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, reason: str, *, acknowledged: bool = False
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason
        super().__init__(
            f"the lock on {topic}-{partition} at offset {offset} is lost: {reason}; "
            + (
                "what was acknowledged before counts"
                if acknowledged
                else "the group delivers the record again, unless this was its last delivery "
                "(share.delivery.count.limit)"
            )
        )


class AcknowledgementError(TrikafkaError):
    """A broker did not take the acknowledgements of some records (KIP-932).

    The group delivers the records again when their locks end. The acknowledgements of a partition
    that travel in one request fail together. ``cause`` is chained.

    What to do: nothing.

    Attributes:
        topic: The topic.
        partition: The partition.
        first_offset: The first of the records.
        last_offset: The last of the records.
        cause: The broker's error, or the reason why none answered.
    """

    def __init__(
        self, topic: str, partition: int, first_offset: int, last_offset: int, cause: TrikafkaError
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.cause = cause
        self.__cause__ = cause
        self.code = cause.code
        where = (
            f"offset {first_offset}"
            if first_offset == last_offset
            else f"offsets {first_offset} to {last_offset}"
        )
        super().__init__(f"acknowledging {topic}-{partition}, {where}, failed: {cause}")


class RecordTooLargeError(TrikafkaError):
    """A record is larger than ``max_request_size`` or than the broker accepts.

    What to do: raise ``max_request_size``, or make the record smaller.
    """


class ArrowDeliveryError(TrikafkaError):
    """Some rows of a table were not delivered.

    The first failure is chained as the cause.

    What to do: send the rows again unless ``maybe_written``.

    Attributes:
        topic: The topic.
        rows: The rows of the table.
        delivered: The rows in the log.
        failed: The rows that are certainly not in the log: refused, or never sent.
        unknown: The rows whose outcome is unknown, for example because they expired in flight.
        error: The first failure.
        row: The first row of the first batch that failed, counted from 0. If the broker refuses
            single records, it is the first of them. ``None``: not known.
        partitions: The rows in the log and their offsets, by partition.
        maybe_written: True if ``unknown`` is not 0.
    """

    def __init__(
        self,
        topic: str,
        rows: int,
        delivered: int,
        unknown: int,
        error: Exception,
        row: int | None = None,
        partitions: Mapping[TopicPartition, PartitionDelivery] = MappingProxyType({}),
    ) -> None:
        self.topic = topic
        self.rows = rows
        self.partitions = dict(partitions)
        self.delivered = delivered
        self.unknown = unknown
        self.error = error
        self.row = row
        self.failed = rows - delivered - unknown
        counts = (
            f"{delivered} of {rows} rows were delivered, {self.failed} failed, {unknown} may be "
            "in the log"
        )
        self.maybe_written = unknown > 0
        super().__init__(f"a table for {topic!r}: {counts}; the first failure: {error}")


class ClientFailedError(TrikafkaError):
    """A background task of the client failed; the cause is chained.

    What to do: read the cause, and report it if it is trikafka's.
    """


class ExportError(TrikafkaError):
    """An export failed. Exports published before remain valid.

    What to do: read the cause; the next run continues.
    """


class TopicsNotReadyError(TrikafkaError):
    """Topics that a program needs are missing or differ from what it needs.

    What to do: create or correct the topics: ``problems`` has the reason for each.

    Attributes:
        problems: The problem of each topic.
    """

    def __init__(self, problems: Mapping[str, str], limit: float | None = None) -> None:
        self.problems = dict(problems)
        tried = "" if limit is None else f" after {limit:g} s"
        super().__init__(
            f"not ready{tried}: "
            + "; ".join(f"topic {name!r} {problem}" for name, problem in self.problems.items())
        )


class ExportIncompleteError(ExportError):
    """Some partitions could not be exported; the records of the others are published.

    The cause is chained. The next export continues with the rest.

    What to do: run the export again for the rest.

    Attributes:
        result: The :class:`ExportResult` of the exported part.
    """

    def __init__(self, text: str, result: Any = None) -> None:
        self.result = result
        super().__init__(text)


class BrokerResponseError(TrikafkaError):
    """A broker responded with an error code.

    What to do: look up ``name`` in Kafka's list of error codes.

    Attributes:
        code: The code.
        name: The code's name in Kafka.

    The flags ``retriable``, ``refresh_metadata`` and ``refresh_coordinator`` come from the table.
    """

    def __init__(self, code: int, name: str, text: str, detail: str = "") -> None:
        self.code: int = _CODES.get(code, code)
        self.name = name
        super().__init__(f"{text} [{name}]" + (f": {detail}" if detail else ""))


_CODES: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}


# The error is retriable, because a new topic is unknown to some brokers until its metadata has
# spread, and permanent for a misspelt name. Retrying until the limit of the call would make every
# typing error take a minute. New topics spread within three seconds, so a call stops then, whatever
# its own limit.
class UnknownTopicOrPartitionError(BrokerResponseError):
    """The broker does not know the topic or partition.

    It does not exist, or its metadata has not reached the broker yet.

    What to do: check the spelling, or create the topic.
    """

    patience = 3.0


class InvalidTopicError(BrokerResponseError, ValueError):
    """The name is not a valid topic name.

    What to do: use letters, digits, ``.``, ``_`` and ``-``, at most 249.
    """


class TopicAlreadyExistsError(BrokerResponseError):
    """The topic to create exists already.

    What to do: nothing, or use ``ensure_topics``.
    """


class AuthorizationError(BrokerResponseError):
    """The principal is not authorized for the request.

    What to do: grant ``operation`` on the resource that the text names.

    Attributes:
        operation: The operation to be allowed, in the terms of Kafka's ACLs (``"Read"``,
            ``"Write"``, ``"Describe"`` ...). The text names it as well, with the resource. Empty if
            unknown.
    """

    operation: str = ""


class AuthenticationError(BrokerResponseError):
    """The broker rejected the client's credentials. trikafka never retries this error.

    What to do: correct user, password or token.
    """


class HandshakeError(AuthenticationError):
    """TLS or SASL failed without an error code of the broker.

    Examples are a missing or untrusted certificate, and a missing token. ``code`` is ``None``.

    What to do: correct the certificate or the mechanism that the text names.
    """

    name = ""

    def __init__(self, text: str) -> None:
        TrikafkaError.__init__(self, text)


class NotLeaderError(BrokerResponseError):
    """The broker does not lead the partition, or not in that leader epoch.

    What to do: wait; calls repeat it.
    """


class CoordinatorError(BrokerResponseError):
    """The coordinator is moving, loading or not available yet.

    What to do: wait; calls repeat it.
    """


class RebalanceInProgressError(BrokerResponseError):
    """The group rebalances; the member must join again.

    What to do: receive again: the member joins.
    """


class MemberFencedError(BrokerResponseError):
    """The group does not know this member, or not in this generation.

    What to do: receive again: the member rejoins.
    """


class FencedInstanceIdError(BrokerResponseError):
    """Another member has taken over the same ``group_instance_id``, or still holds it.

    What to do: give each process its own.
    """


class GroupProtocolMismatchError(BrokerResponseError):
    """The group's other members share no assignor with this one.

    Also raised if the id is that of a share group or a streams group.

    What to do: configure the same ``partition_assignment_strategy`` everywhere, or another group.
    """


class UnsupportedAssignorError(BrokerResponseError):
    """The coordinator does not have the assignor that ``group_remote_assignor`` names (KIP-848).

    What to do: use ``uniform`` or ``range`` as ``group_remote_assignor``.
    """


class InvalidRegularExpressionError(BrokerResponseError, ValueError):
    """The broker cannot read a subscription's pattern, which must be in RE2's syntax (KIP-848).

    What to do: write the pattern in RE2's syntax.
    """


class GroupIdNotFoundError(BrokerResponseError):
    """No group of this id exists.

    What to do: check the spelling: ``trikafka groups`` lists the groups.
    """


class GroupFullError(BrokerResponseError):
    """The group has reached the broker's ``group.max.size``.

    What to do: run fewer members, or raise the broker's ``group.max.size``.
    """


class UnstableOffsetCommitError(BrokerResponseError):
    """An open transaction has pending offsets of this partition (KIP-447).

    What to do: wait; calls repeat it.
    """


class OffsetMovedToTieredStorageError(BrokerResponseError):
    """The offset has moved from the leader's disk to tiered storage (KIP-405).

    What to do: read from a broker that serves the offset, or seek.
    """


class OutOfOrderSequenceError(BrokerResponseError):
    """The broker received a batch whose sequence number does not follow the last one.

    An idempotent producer recovers from this. The exception is a record behind one that expired, if
    both were sent on a connection that was lost: ``maybe_written`` then says whether the record may
    be in the log.

    What to do: send the record again unless ``maybe_written``.
    """


class DuplicateSequenceError(BrokerResponseError):
    """The broker already has this batch and no longer knows its offset.

    What to do: nothing: the record is in the log.
    """


class ProducerFencedError(BrokerResponseError):
    """A producer with the same transactional id and a newer epoch has taken over.

    What to do: close this producer. Give each process its own ``transactional_id``.
    """


class UnknownProducerIdError(BrokerResponseError):
    """The broker no longer knows this producer id.

    What to do: nothing: the producer begins a new epoch.
    """


class MessageTooLargeError(BrokerResponseError, RecordTooLargeError):
    """The broker refused a batch as larger than ``max.message.bytes``.

    What to do: raise the topic's ``max.message.bytes``, or make records smaller.
    """


class ShareSessionError(BrokerResponseError):
    """The broker has dropped the share session, or has no room for one; a new one begins.

    What to do: nothing: the share consumer begins a new session.
    """


class FetchSessionError(BrokerResponseError):
    """The broker does not know the fetch session, or expected another epoch.

    What to do: nothing: the consumer begins a new session.
    """


#: The most failures that the text names besides the first.
_NAMED = 5


class AdminErrors(TrikafkaError, ExceptionGroup[TrikafkaError]):
    """Some of several things that an admin call was about failed; the others are done.

    ``except*`` handles the failures by their classes. A call whose limit passes when it is half
    done raises this error, too: ``except* KafkaTimeoutError`` handles it, and a timeout that is
    raised alone.

    What to do: read ``failures``; repeat the call for what may succeed later.

    Attributes:
        failures: The error of each thing that failed.
        results: The results of the others.
    """

    failures: Mapping[Any, TrikafkaError]
    results: Mapping[Any, Any]

    @classmethod
    def of(cls, failures: Mapping[Any, TrikafkaError], results: Mapping[Any, Any]) -> Self:
        """Return the error for these failures and results."""
        names = [str(key) for key in failures]
        text = (
            f"{len(failures)} of {len(failures) + len(results)} failed; the first: "
            f"{next(iter(failures.values()))}"
        )
        if others := names[1 : 1 + _NAMED]:
            more = len(names) - 1 - len(others)
            text += f"; also failed: {', '.join(others)}" + (f" and {more} more" if more else "")
        # One error may stand for several things, as a timeout does for all that were left.
        error = cls(text, list(dict.fromkeys(failures.values())))
        error.failures = dict(failures)
        error.results = dict(results)
        # The same call may succeed later only if none of its parts has failed for good.
        error.retriable = all(each.retriable for each in failures.values())
        return error

    def derive(self, errors: Sequence[TrikafkaError], /) -> Self:  # type: ignore[override]
        """Return the error for some of its failures, with the results of all."""
        part = type(self)(self.message, errors)
        part.failures = {key: each for key, each in self.failures.items() if each in errors}
        part.results = self.results
        return part


def combined(failures: Mapping[Any, TrikafkaError]) -> TrikafkaError:
    """Return one error for the failures of several partitions, or other parts of a call.

    The first failure that is not retriable counts, or else the first. Its ``failures`` hold each
    partition's own error, so that one partition does not fail because of another. The result is a
    copy: an error that refers to itself would keep its frames alive.
    """
    error = again(decisive(list(failures.values())))
    error._stand_for(failures)
    return error
