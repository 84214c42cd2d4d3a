"""The table of broker errors, compared with Kafka's own, and copies of errors."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path

import pytest
import trio
from parsed import nodes, tree_of

from trikafka import errors
from trikafka._net.singleflight import ClientClosed
from trikafka.errors import ErrorCode, TrikafkaError, from_code
from trikafka.errors.copies import again
from trikafka.types import OffsetAndMetadata, TopicPartition

# Printed by Kafka 4.4's org.apache.kafka.common.protocol.Errors: code, name, RetriableException?,
# InvalidMetadataException?
KAFKA = [
    line.split() for line in (Path(__file__).parent / "kafka_errors.txt").read_text().splitlines()
]

#: Codes where trikafka differs from the Java client by intent: it retries, or refreshes the
#: metadata first.
MORE_RETRIABLE = {"BROKER_NOT_AVAILABLE", "REBOOTSTRAP_REQUIRED"}
MORE_METADATA = {
    "BROKER_NOT_AVAILABLE",
    "FETCH_SESSION_TOPIC_ID_ERROR",
    "NOT_CONTROLLER",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "OFFSET_NOT_AVAILABLE",
    "REBOOTSTRAP_REQUIRED",
    "UNKNOWN_LEADER_EPOCH",
}


@pytest.mark.parametrize(
    ("code", "name", "retriable", "metadata"), KAFKA, ids=[row[1] for row in KAFKA]
)
def test_every_code_has_kafkas_name_and_flags(
    code: str, name: str, retriable: str, metadata: str
) -> None:
    error = from_code(int(code), "somewhere")
    assert (error.code, error.name) == (int(code), name)
    assert error.retriable == (retriable == "retriable" or name in MORE_RETRIABLE)
    assert error.refresh_metadata == (metadata == "metadata" or name in MORE_METADATA)
    assert str(error).endswith(f"[{name}]: somewhere")
    assert len(str(error)) > len(f" [{name}]: somewhere")


def test_every_code_of_the_table_is_kafkas() -> None:
    assert [(str(code.value), code.name) for code in ErrorCode if code is not ErrorCode.NONE] == [
        (row[0], row[1]) for row in KAFKA
    ]


def test_code_of_an_error_is_a_member_of_the_enum() -> None:
    """An error without a code has ``None``."""
    for code in (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        error = from_code(code)
        assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (type(error), error.name) == (
            errors.UnknownTopicOrPartitionError,
            "UNKNOWN_TOPIC_OR_PARTITION",
        )
        assert pickle.loads(pickle.dumps(error)).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors.KafkaConnectionError("gone").code is None
    assert (from_code(9999).code, isinstance(from_code(9999).code, ErrorCode)) == (9999, False)


def test_codes_have_their_error_classes() -> None:
    for name, cls in {
        "INCONSISTENT_GROUP_PROTOCOL": errors.GroupProtocolMismatchError,
        "GROUP_ID_NOT_FOUND": errors.GroupIdNotFoundError,
        "GROUP_MAX_SIZE_REACHED": errors.GroupFullError,
        "FENCED_INSTANCE_ID": errors.FencedInstanceIdError,
        "UNRELEASED_INSTANCE_ID": errors.FencedInstanceIdError,
        "UNSTABLE_OFFSET_COMMIT": errors.UnstableOffsetCommitError,
        "OFFSET_MOVED_TO_TIERED_STORAGE": errors.OffsetMovedToTieredStorageError,
        "UNSUPPORTED_ASSIGNOR": errors.UnsupportedAssignorError,
        "INVALID_REGULAR_EXPRESSION": errors.InvalidRegularExpressionError,
        "FENCED_MEMBER_EPOCH": errors.MemberFencedError,
        "STALE_MEMBER_EPOCH": errors.MemberFencedError,
    }.items():
        assert type(from_code(ErrorCode[name])) is cls


def test_damaged_response_is_a_lost_connection() -> None:
    """A port with another protocol is not."""

    def flags(error: TrikafkaError) -> tuple[bool, bool, bool]:
        return error.retriable, error.refresh_metadata, error.refresh_coordinator

    assert (
        flags(errors.DamagedResponseError("cut"))
        == flags(errors.KafkaConnectionError("gone"))
        == (True, True, True)
    )
    assert (
        flags(errors.ProtocolError("HTTP"))
        == flags(errors.BootstrapError("none"))
        == (False, False, False)
    )


def test_consumers_errors_have_their_words() -> None:
    tp = TopicPartition("t", 3)
    assert str(errors.LogTruncationError(tp, 42, OffsetAndMetadata(40))) == (
        "the log of t-3 was truncated below the position 42: what was read from offset 40 on is "
        "gone;"
        " seek, or set auto_offset_reset"
    )
    assert "the first lost offset is not known" in str(errors.LogTruncationError(tp, 42))
    assert isinstance(errors.LogTruncationError(tp, 42), errors.OffsetOutOfRangeError)
    late = errors.PollIntervalExceededError(300)
    assert isinstance(late, errors.CommitFailedError)
    assert (late.setting, late.interval_ms) == ("max_poll_interval_ms", 300)
    assert "raise max_poll_interval_ms" in str(late)
    other = errors.PartitionNotOwnedError(iter([tp, TopicPartition("u", 0)]))
    assert isinstance(other, errors.CommitFailedError)
    assert str(other).startswith(
        "not committed: this member does not own t-3, u-0, and the commit could"
    )
    bad = errors.DeserializationError("t", 3, 42, "key", b"secret", b"more")
    assert str(bad) == "the key of the record at offset 42 of t-3 could not be deserialized"
    assert (bad.key, bad.value) == (b"secret", b"more")
    bad = errors.DeserializationError("t", 3, 42, "key", b"secret", b"more", "KeyError")
    assert str(bad).endswith(" could not be deserialized (KeyError)")


PACKAGE = Path(errors.__file__).parents[1]


def numbers_of_errors(tree: ast.AST) -> list[int]:
    """Return the lines that compare a code with a number but 0, or make an error of a number."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "from_code"
        ):
            sides = [ast.Name("error_code"), *node.args[:1]]
        else:
            continue
        code = any(
            (getattr(side, "attr", None) or getattr(side, "id", "")) in ("error_code", "code")
            for side in sides
        )
        inner = [part for side in sides for part in ast.walk(side)]
        if code and any(
            isinstance(part, ast.Constant) and isinstance(part.value, int) and part.value
            for part in inner
        ):
            found.append(node.lineno)
    return found


def test_error_numbers_are_only_in_the_enum() -> None:
    assert numbers_of_errors(
        ast.parse("if part.error_code == 3: raise from_code(5 if x else y, 'z')")
    ) == [1, 1]
    assert (
        numbers_of_errors(ast.parse("if part.error_code == 0: raise from_code(error_code)")) == []
    )
    wrong = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if "testing" not in path.parts and (lines := numbers_of_errors(tree_of(path)))
    }
    assert not wrong  # the scripted broker is an independent judge, so it keeps its numbers


def test_coordinator_errors_refresh_it() -> None:
    names = {row[1] for row in KAFKA if from_code(int(row[0])).refresh_coordinator}
    assert names == {
        "BROKER_NOT_AVAILABLE",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REBOOTSTRAP_REQUIRED",
    }


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        (ErrorCode.INVALID_TIMESTAMP, "message.timestamp.after.max.ms"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "group.max.session.timeout.ms"),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, "offset.metadata.max.bytes"),
    ],
)
def test_limit_is_named_by_its_setting(code: ErrorCode, setting: str) -> None:
    assert setting in str(from_code(code))


def test_unknown_code_is_named_by_its_number() -> None:
    """An error with such a code is not retriable."""
    error = from_code(9999)
    assert (error.name, error.retriable, error.refresh_metadata) == ("ERROR_9999", False, False)
    assert "does not know" in str(error)


def test_flags_do_not_leak_into_the_class() -> None:
    assert from_code(7).retriable
    assert not errors.BrokerResponseError.retriable


def _tree(cls: type[TrikafkaError]) -> list[type[TrikafkaError]]:
    """Return the class and its subclasses in the core; other tests may have imported plugins."""
    children = [each for each in cls.__subclasses__() if each.__module__.startswith("trikafka.")]
    return [cls, *(below for child in children for below in _tree(child))]


def _make(cls: type[TrikafkaError]) -> TrikafkaError:
    if issubclass(cls, errors.KafkaTimeoutError):
        return cls("commit", 1.5, 3, from_code(6, "t-0"))
    if issubclass(cls, errors.CorruptRecordError):
        return cls("bad checksum", "t", 0, 42)
    if issubclass(cls, errors.LogTruncationError):
        return cls(TopicPartition("t", 0), 42, OffsetAndMetadata(40, 3))
    if issubclass(cls, errors.DeserializationError):
        return cls("t", 0, 42, "value", b"k", b"\xff")
    if issubclass(cls, errors.PollIntervalExceededError):
        return cls(300_000)
    if issubclass(cls, errors.PartitionNotOwnedError):
        return cls([TopicPartition("t", 0), TopicPartition("t", 2)])
    if issubclass(cls, errors.TopicsNotReadyError):
        return cls({"t": "is not there"}, 10)
    if issubclass(cls, errors.ArrowDeliveryError):
        return cls("t", 10, 5, 2, from_code(29, "t-0"))
    if issubclass(cls, errors.LockLostError):
        return cls("t", 0, 42, "it was not renewed")
    if issubclass(cls, errors.AcknowledgementError):
        return cls("t", 0, 42, 50, from_code(6, "t-0"))
    if issubclass(cls, errors.AdminErrors):
        return cls.of({"t": from_code(3, "t")}, {"u": None})
    if issubclass(cls, errors.BrokerResponseError) and not issubclass(cls, errors.HandshakeError):
        error = cls(6, "NOT_LEADER_OR_FOLLOWER", "text", "t-0")
        error.retriable = True
        return error
    return cls("what happened")


ALL = sorted(set(_tree(TrikafkaError)), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", ALL, ids=[cls.__name__ for cls in ALL])
def test_copied_error_keeps_everything(cls: type[TrikafkaError]) -> None:
    """A copy has the type, words, attributes and cause."""
    error = _make(cls)
    error.__cause__ = KeyError("why")
    try:
        raise error
    except TrikafkaError:
        pass
    twin = again(error)
    assert twin is not error
    assert type(twin) is cls
    assert (str(twin), twin.args, twin.__dict__) == (str(error), error.args, error.__dict__)
    assert twin.__cause__ is error.__cause__
    assert twin.__traceback__ is None
    twin.add_note("only mine")
    assert not hasattr(error, "__notes__")
    assert str(copy.copy(error)) == str(error)


@pytest.mark.parametrize("cls", ALL, ids=[cls.__name__ for cls in ALL])
def test_any_error_can_be_pickled(cls: type[TrikafkaError]) -> None:
    error = _make(cls)
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is cls
    # By their texts: the members of a group are equal only to themselves.
    assert (str(twin), repr(twin.args), set(twin.__dict__)) == (
        str(error),
        repr(error.args),
        set(error.__dict__),
    )


@pytest.mark.parametrize(
    "error",
    [
        OSError(2, "no such thing"),
        OSError("words"),
        ClientClosed("closed"),
        ConnectionRefusedError(111, "x"),
    ],
)
def test_foreign_error_is_copied(error: Exception) -> None:
    twin = again(error)
    assert twin is not error
    assert (type(twin), str(twin), twin.args) == (type(error), str(error), error.args)


def test_timeout_is_a_trio_timeout() -> None:
    """The error says what happened."""
    last = from_code(6, "t-0")
    error = errors.KafkaTimeoutError("commit", 1.5, 3, last)
    assert isinstance(error, trio.TooSlowError)
    assert (error.call, error.limit, error.attempts, error.last_error) == ("commit", 1.5, 3, last)
    assert (
        str(error)
        == f"commit did not finish within 1.5 s (3 attempts; the last one failed with: {last})"
    )
    assert (
        str(errors.KafkaTimeoutError("commit", 0)) == "commit did not finish within 0 s (1 attempt)"
    )
    unsent = errors.KafkaTimeoutError("send", 5, 0, OSError("refused"))
    assert str(unsent) == "send did not finish within 5 s (no attempts; refused)"


def test_errors_have_pythons_base_classes() -> None:
    assert issubclass(errors.KafkaConnectionError, ConnectionError)
    assert issubclass(errors.BootstrapError, ConnectionError)
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.IllegalStateError, RuntimeError)
    assert issubclass(ClientClosed, trio.ClosedResourceError)
