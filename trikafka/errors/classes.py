"""Every exception that trikafka raises. Which of them stands for a broker's code, and what that means, says :mod:`.table`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import trio

from ..error_codes import ErrorCode

if TYPE_CHECKING:
    from ..types import OffsetAndMetadata, TopicPartition


class TrikafkaError(Exception):
    """The root of all errors that trikafka raises.

    ``retriable`` tells whether the same call may succeed when it is made again; ``refresh_metadata`` and
    ``refresh_coordinator`` tell what has to be looked up before it is. A call gives up after ``patience`` seconds of the
    same error, even before its own limit: a topic that does not exist after that is not about to appear. ``code`` is the
    broker's, as an :class:`ErrorCode` where trikafka knows it; ``None`` where no broker said so. ``fatal``: a transactional
    producer that gets it is of no use any more.
    """

    code: int | None = None
    patience: float = math.inf
    retriable: bool = False
    refresh_metadata: bool = False
    refresh_coordinator: bool = False
    fatal: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors here take parts, not the message: without this no copy could be made, and none sent to another process.
        return _remake, (type(self), self.args), self.__dict__


def _remake(cls: type[TrikafkaError], args: tuple[Any, ...]) -> TrikafkaError:
    error = cls.__new__(cls, *args)
    error.args = args
    return error


class ConfigurationError(TrikafkaError, ValueError):
    """A setting, an address or an argument is wrong. Raised before any I/O."""


class CompiledPartWarning(RuntimeWarning):
    """The compiled part of trikafka was not built, or cannot be loaded: records take about twenty times as long.

    Warned of once, when the first client opens. ``TRIKAFKA_PURE=1`` in the environment says that this is meant.
    """


class PluginError(TrikafkaError):
    """A plugin failed to load, returned something of the wrong shape, or does not know what was asked of it."""


class IllegalStateError(TrikafkaError, RuntimeError):
    """The call does not fit what the client is doing, such as seeking a partition that is not assigned."""


class NotOpenError(IllegalStateError, AttributeError):
    """An attribute was asked of a client that ``async with`` has not opened: to Python it is one that is not there."""


class KafkaTimeoutError(TrikafkaError, trio.TooSlowError):
    """A call did not finish within its limit (seed 000: the limit spans all attempts).

    Attributes: ``call`` (its name), ``limit`` (seconds), ``attempts``, ``last_error`` (also chained as the cause).
    """

    def __init__(self, call: str, limit: float, attempts: int = 1, last_error: BaseException | None = None) -> None:
        self.call, self.limit, self.attempts, self.last_error = call, limit, attempts, last_error
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        why = f"; the last one failed with: {last_error}" if last_error is not None else ""
        super().__init__(f"{call} did not finish within {limit:g} s ({tries}{why})")


class DeliveryTimeoutError(KafkaTimeoutError):
    """A record was not acknowledged within ``delivery_timeout_ms`` (KIP-91), or not before its producer had to close.

    Beside those of :exc:`KafkaTimeoutError` it has the attributes ``topic`` and ``partition``; ``phase``, where the record's batch
    was at last; ``seconds``, how long it was in each; and ``maybe_written``: whether the record may be in the log all the same.
    Phases are ``"waiting"`` (for more records, and for its turn), ``"waiting for a leader"``, ``"waiting for a connection"``,
    ``"waiting for a producer id"``, ``"waiting for the transaction's coordinator"``, ``"backoff"`` and ``"in flight"``.
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
        self.topic, self.partition, self.phase, self.maybe_written = topic, partition, phase, maybe_written
        self.seconds = dict(seconds or {})
        if topic:
            spent = ", ".join(f"{round(time, 3):g} s {name}" for name, time in self.seconds.items())
            log = "it may be in the log all the same" if maybe_written else "it is not in the log"
            self.args = (f"{self.args[0]}; {topic}-{partition} spent {spent} (at last: {phase}); {log}",)


class TransactionError(TrikafkaError):
    """Something went wrong with a transaction. What to do is in the class; :exc:`ProducerFencedError` stands beside these."""


class TransactionAbortableError(TransactionError):
    """The transaction failed and cannot be committed: leave its block, which aborts it, and do its work again.

    The cause is chained.
    """


class TransactionUndecidedError(TransactionError, KafkaTimeoutError):
    """A commit was cut off before its outcome was known: by its limit, or cancelled. Only ``commit`` may be tried again.

    It goes on in the background. The next ``producer.transaction()`` waits for the outcome, and nothing can be aborted or join
    until then. Attributes: as :exc:`KafkaTimeoutError`.
    """

    def __init__(
        self, text: str, limit: float = math.inf, attempts: int = 1, last_error: BaseException | None = None, call: str = "commit"
    ) -> None:
        self.call, self.limit, self.attempts, self.last_error = call, limit, attempts, last_error
        TrikafkaError.__init__(self, text)


class TransactionNotOpenError(TransactionError):
    """The transaction that an admin client was to end is not open (any more). If its coordinator said so, that is the cause."""


class TransactionFatalError(TransactionError):
    """This producer can make no more transactions: close it, and open another. The cause is chained."""

    fatal = True


class RequestTimedOutError(TrikafkaError):
    """One request got no answer in its share of the call's time. The call's deadline decides whether to go on."""

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class KafkaConnectionError(TrikafkaError, ConnectionError):
    """A connection to a broker could not be made or was lost."""

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class BootstrapError(TrikafkaError, ConnectionError):
    """None of the bootstrap addresses answered as a Kafka broker. The message lists each address with its cause."""


class ProtocolError(TrikafkaError):
    """The peer sent bytes that are not Kafka's protocol, or answered what was not asked."""


class DamagedResponseError(ProtocolError):
    """A response came that cannot be what the broker wrote: cut, too long, of impossible lengths, or not what was asked.

    A connection that carries such bytes is as good as lost; so the call is tried again, as after a lost one. While a client
    opens it still ends in :exc:`BootstrapError`: the port may not be a Kafka broker's.
    """

    retriable = True
    refresh_metadata = True
    refresh_coordinator = True


class UnsupportedVersionError(TrikafkaError):
    """The broker and trikafka have no version of a request in common."""

    fatal = True


class TelemetryNotSupportedError(UnsupportedVersionError):
    """The broker takes no metrics from clients (KIP-714), so it has no instance id to give. Nothing to try again."""


class CorruptRecordError(TrikafkaError):
    """Fetched bytes are not valid records. Attributes: ``topic``, ``partition``, ``offset`` (where it is known)."""

    def __init__(self, reason: str, topic: str | None = None, partition: int | None = None, offset: int | None = None) -> None:
        self.reason, self.topic, self.partition, self.offset = reason, topic, partition, offset
        where = f" in {topic}-{partition} at offset {offset}" if topic is not None else ""
        super().__init__(f"corrupt records{where}: {reason}")


class UnsupportedCompressionError(ConfigurationError):
    """A compression codec is unknown. (All of Kafka's come with trikafka.)"""


class NoOffsetForPartitionError(TrikafkaError):
    """A partition has no committed offset, and ``auto_offset_reset='none'`` forbids choosing one."""


class OffsetOutOfRangeError(TrikafkaError):
    """A position lies outside the partition's log, and ``auto_offset_reset='none'`` forbids choosing another."""


class LogTruncationError(OffsetOutOfRangeError):
    """Records that were read are not in the log any more: a leader without them took over (KIP-320).

    Attributes: ``partition``; ``position``, the offset that was to be read next; ``diverging``, up to where what was read and
    what is in the log agree (its ``offset`` is the first that may differ), ``None`` if the broker does not know.
    """

    def __init__(self, partition: TopicPartition, position: int, diverging: OffsetAndMetadata | None = None) -> None:
        self.partition, self.position, self.diverging = partition, position, diverging
        agree = "nobody knows since where" if diverging is None else f"what was read from offset {diverging.offset} on is gone"
        super().__init__(
            f"the log of {partition} was truncated below the position {position}: {agree}; seek, or set auto_offset_reset"
        )


class DeserializationError(TrikafkaError):
    """A record's key or value could not be turned into what was asked for. The deserializer's error is the cause.

    Attributes: ``topic``, ``partition``, ``offset``; ``part`` ("key" or "value"); the raw ``key`` and ``value``, which are
    not in the text. The position stands at the record: seek to ``offset + 1`` to step over it.
    """

    def __init__(
        self, topic: str, partition: int, offset: int, part: Literal["key", "value"], key: bytes | None, value: bytes | None
    ) -> None:
        self.topic, self.partition, self.offset, self.part, self.key, self.value = topic, partition, offset, part, key, value
        super().__init__(f"the {part} of the record at offset {offset} of {topic}-{partition} could not be deserialized")


class CommitFailedError(TrikafkaError):
    """The member is no longer in the group (or in that generation), so its offsets were not committed.

    Somebody else may be processing the same partitions already. Seen after ``max_poll_interval_ms`` (KIP-62).
    """


class PollIntervalExceededError(CommitFailedError):
    """The member left its group since the program took longer than ``max_poll_interval_ms`` between two receives (KIP-62).

    Attributes: ``setting`` (what to change), ``interval_ms`` (what it is now).
    """

    setting = "max_poll_interval_ms"

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        super().__init__(
            f"more than {self.setting} ({interval_ms} ms) passed without a receive, so the member left its group;"
            f" raise {self.setting}, or take fewer records at a time"
        )


class PartitionNotOwnedError(CommitFailedError):
    """Offsets were to be committed of partitions that this member does not own (any more): another's could be overwritten.

    Attribute: ``partitions``. A consumer without a subscription, or the admin client, may set them all the same.
    """

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = tuple(partitions)
        super().__init__(
            f"not committed, for this member does not own {', '.join(map(str, self.partitions))}, and might rewind the offsets of"
            " who does; to set a group's offsets by hand use a consumer without a subscription, or the admin client"
        )


class RecordTooLargeError(TrikafkaError):
    """One record is larger than ``max_request_size`` or than the broker accepts."""


class ArrowDeliveryError(TrikafkaError):
    """Not all rows of a table were delivered. What went wrong first is chained as the cause, and in ``error``.

    Attributes: ``rows`` of the table, of which ``delivered`` are in the log, ``failed`` are surely not (they were refused, or
    never sent), and of ``unknown`` nobody can tell, such as those whose time was up while a broker had them.
    """

    def __init__(self, topic: str, rows: int, delivered: int, unknown: int, error: Exception) -> None:
        self.topic, self.rows, self.delivered, self.unknown, self.error = topic, rows, delivered, unknown, error
        self.failed = rows - delivered - unknown
        counts = f"{delivered} of {rows} rows were delivered, {self.failed} failed, {unknown} may be in the log"
        super().__init__(f"a table for {topic!r}: {counts}; the first failure: {error}")


class ClientFailedError(TrikafkaError):
    """A background task of the client failed; the cause is chained."""


class ExportError(TrikafkaError):
    """An export could not be carried out. What had been published before stays valid."""


class TopicsNotReadyError(TrikafkaError):
    """Topics that a program needs are not there, or not as they should be. Attribute: ``problems``, topic -> what is wrong."""

    def __init__(self, problems: Mapping[str, str], limit: float | None = None) -> None:
        self.problems = dict(problems)
        tried = "" if limit is None else f" after {limit:g} s"
        super().__init__(f"not ready{tried}: " + "; ".join(f"topic {name!r} {problem}" for name, problem in self.problems.items()))


class ExportIncompleteError(ExportError):
    """Some partitions could not be exported; what the others had is published. The cause is chained.

    Attribute: ``result``, the :class:`ExportResult` of what was done. The next export goes on with the rest.
    """

    def __init__(self, text: str, result: Any = None) -> None:
        self.result = result
        super().__init__(text)


class BrokerResponseError(TrikafkaError):
    """A broker answered with an error code. Attributes: ``code``, ``name`` and the three flags of the table."""

    def __init__(self, code: int, name: str, text: str, detail: str = "") -> None:
        self.code: int = _CODES.get(code, code)
        self.name = name
        super().__init__(f"{text} [{name}]" + (f": {detail}" if detail else ""))


_CODES: dict[int, ErrorCode] = {code.value: code for code in ErrorCode}


class UnknownTopicOrPartitionError(BrokerResponseError):
    """The topic or partition does not exist, or the broker does not know of it yet (metadata takes a moment to spread)."""

    patience = 3.0


class InvalidTopicError(BrokerResponseError, ValueError):
    """The name is not a valid topic name."""


class TopicAlreadyExistsError(BrokerResponseError):
    """The topic to create exists."""


class AuthorizationError(BrokerResponseError):
    """The principal may not do this. Attribute: ``operation``, what it would have to be allowed, as Kafka's access rules name it
    (``"Read"``, ``"Write"``, ``"Describe"`` ...); the text names it too, and the resource. Empty where that is not known.
    """

    operation: str = ""


class AuthenticationError(BrokerResponseError):
    """The broker did not accept who this client says it is. It is never tried again by itself."""


class HandshakeError(AuthenticationError):
    """TLS or SASL ended without a broker's code: a certificate that is not trusted or not there, no token. ``code`` is ``None``."""

    name = ""

    def __init__(self, text: str) -> None:
        TrikafkaError.__init__(self, text)


class NotLeaderError(BrokerResponseError):
    """The broker does not lead the partition, or not in that leader epoch."""


class CoordinatorError(BrokerResponseError):
    """The coordinator is moving, loading or not there yet."""


class RebalanceInProgressError(BrokerResponseError):
    """The group rebalances; the member has to join again."""


class MemberFencedError(BrokerResponseError):
    """The group does not know this member (any more), or not in this generation."""


class FencedInstanceIdError(BrokerResponseError):
    """Another member has the same ``group_instance_id``: it took over, or still holds it. Give each process its own."""


class GroupProtocolMismatchError(BrokerResponseError):
    """The group's members have no assignor in common with this one, or the group is not one of consumers."""


class UnsupportedAssignorError(BrokerResponseError):
    """The coordinator does not have the assignor that ``group_remote_assignor`` names (KIP-848)."""


class InvalidRegularExpressionError(BrokerResponseError, ValueError):
    """The broker cannot read a subscription's pattern, which must be in RE2's syntax (KIP-848)."""


class GroupIdNotFoundError(BrokerResponseError):
    """No group of this id exists."""


class GroupFullError(BrokerResponseError):
    """The group has as many members as the broker's ``group.max.size`` allows."""


class UnstableOffsetCommitError(BrokerResponseError):
    """A transaction that is still open has offsets of this partition pending (KIP-447)."""


class OffsetMovedToTieredStorageError(BrokerResponseError):
    """The offset is not on the leader's own disk any more, but in tiered storage (KIP-405)."""


class OutOfOrderSequenceError(BrokerResponseError):
    """The broker got a batch whose sequence number does not follow the last one. An idempotent producer puts that right, but for a
    record behind one given up, if both were sent on a lost connection: it may be in the log, as after :exc:`DeliveryTimeoutError`.
    """


class DuplicateSequenceError(BrokerResponseError):
    """The broker has this batch already; its offset is not known any more."""


class ProducerFencedError(BrokerResponseError):
    """A newer producer with the same transactional id, or a newer epoch, has taken over."""


class UnknownProducerIdError(BrokerResponseError):
    """The broker has lost what it knew of this producer id."""


class MessageTooLargeError(BrokerResponseError, RecordTooLargeError):
    """The broker refused a batch as larger than ``max.message.bytes``."""


class FetchSessionError(BrokerResponseError):
    """The fetch session is unknown to the broker, or its epoch is not the next one."""
