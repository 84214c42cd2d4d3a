"""Errors as a query's client opens, which name the options of the job. No broker, no Spark."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from trikafka_spark.commit_protocol import commit
from trikafka_spark.kafka_settings import by_option
from trikafka_spark.range_partition import read_planned
from trikafka_spark.range_planning import Planned
from trikafka_spark.read_options import ReadOptions, read_options
from trikafka_spark.row_digest import RowDigest
from trikafka_spark.source import TrikafkaReader
from trikafka_spark.stream_reader import TrikafkaStreamReader
from trikafka_spark.write_options import WriteOptions, write_options
from trikafka_spark.write_parts import Account, Part, Written
from trikafka_spark.writing import write_task

from trikafka import (
    BootstrapError,
    ConfigurationError,
    KafkaTimeoutError,
    OffsetRange,
    TopicPartition,
)

PEM = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "PEM"}
OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.ssl.truststore.location": "/nonexistent/ca.pem",
    **PEM,
}
ROWS = StructType().add("value", "binary")
COLUMNS: Any = None


def reads(streaming: bool = False, **more: str) -> ReadOptions:
    return read_options({**OPTIONS, "subscribe": "t", **more}, streaming=streaming)


def writes(**more: str) -> WriteOptions:
    return write_options({**OPTIONS, "topic": "t", **more}, ROWS, overwrite=False, streaming=False)


def plan_batch() -> None:
    TrikafkaReader(reads(), StructType(), uuid.uuid4().hex).partitions()


def plan_stream() -> None:
    TrikafkaStreamReader(reads(streaming=True), StructType()).initialOffset()


def read_range() -> None:
    list(read_planned(Planned(OffsetRange("t", 0, 0, 5), None), reads(), COLUMNS))


def write_rows(**more: str) -> None:
    part = Part("x-0", "run", 0, "w") if more else None
    rows = iter([pa.record_batch({"value": pa.array([b"x"], pa.binary())})])
    write_task(writes(**more), rows, part)


def write_once() -> None:
    write_rows(exactlyOnce="true", transactionalId="x")


def commit_write() -> None:
    account = Account(Part("x-0", "run", 0, "w"), RowDigest())
    options = writes(exactlyOnce="true", transactionalId="x")
    commit(options, [Written(0, account=account)])


@pytest.mark.parametrize(
    "act", [plan_batch, plan_stream, read_range, write_rows, write_once, commit_write]
)
def test_failed_opening_names_the_option(act: Callable[[], None]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^kafka\.ssl\.truststore\.location.*/nonexistent/ca\.pem"
    ) as caught:
        act()
    assert "ssl_" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


def test_failed_commit_to_a_group_names_the_option(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trikafka.spark")
    options = reads(streaming=True, groupId="g")
    TrikafkaStreamReader(options, StructType())._commit_to_group({TopicPartition("t", 0): 5})
    assert "the next batch retries: kafka.ssl.truststore.location" in caplog.text
    assert "ssl_cafile" not in caplog.text


def test_error_keeps_its_class_and_its_causes() -> None:
    """Each text of a chain is changed, and nothing else."""
    cause = BootstrapError("sasl_oauth_token_endpoint_url 'https://x' sent status 500")
    cause.__cause__ = ValueError("ssl_cafile")
    options = ("bootstrap.servers", "sasl.oauthbearer.token.endpoint.url", "retries")
    with pytest.raises(KafkaTimeoutError) as caught, by_option(options):
        raise KafkaTimeoutError("opening", 5.0, 3, cause) from cause
    error = caught.value
    text = "kafka.sasl.oauthbearer.token.endpoint.url 'https://x' sent status 500"
    assert (error.call, error.limit, error.attempts) == ("opening", 5.0, 3)
    assert str(error) == (
        f"opening did not finish within 5 s (3 attempts; the last one failed with: {text})"
    )
    assert error.__cause__ is error.last_error is cause
    assert str(cause) == text
    assert str(cause.__cause__) == "ssl_cafile", "not trikafka's"


@pytest.mark.parametrize(
    ("setting", "given", "option"),
    [
        ("ssl_cafile", (), "ssl.truststore.location"),
        ("ssl_cafile", ("ssl.ca.location",), "ssl.ca.location"),
        ("ssl_cafile", ("ssl.truststore.certificates",), "ssl.truststore.certificates"),
        ("sasl_oauth_client_id", (), "sasl.oauthbearer.client.credentials.client.id"),
        ("sasl_oauth_scope", (), "sasl.oauthbearer.scope"),
        ("request_timeout_ms", ("socket.timeout.ms",), "socket.timeout.ms"),
        ("request_timeout_ms", (), "request.timeout.ms"),
    ],
)
def test_option_of_a_setting(setting: str, given: tuple[str, ...], option: str) -> None:
    """The job's own name is shown, or else Java's."""
    error = BootstrapError(f"raise {setting}; 3 retries of kafka.{option} failed")
    with pytest.raises(BootstrapError) as caught, by_option((*given, "retries")):
        raise error
    assert str(caught.value) == f"raise kafka.{option}; 3 retries of kafka.{option} failed"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a consumer needs another group_id", "a consumer needs another groupId"),
        ("choose another transactional_id", "choose another transactionalId"),
        ("seek, or set auto_offset_reset", "seek, or set auto_offset_reset"),
        ("raise session_timeout_ms.", "raise session_timeout_ms."),
        ("raise request_timeout_ms.", "raise kafka.request.timeout.ms."),
        (
            "raise socket_connection_setup_timeout_ms",
            "raise kafka.socket.connection.setup.timeout.ms",
        ),
    ],
)
def test_named_option_has_an_effect(text: str, shown: str) -> None:
    """A setting that a job cannot set keeps its name."""
    assert renamed(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "the topic 'client_id' does not exist",
        """the topic "client_id", as 'a "client_id" b'""",
        "cannot read /etc/client_id or client_id/ca.pem or ./x-client_id.pem",
        "the group client_id-1 of my-client_id at client_id.example",
        "the token endpoint https://x refused: HTTP 400 (invalid_request) (No (1): client_id)",
        "(1 attempt: HTTP 401 (error: client_id, \"a) and 'b; sasl_oauth_client_id)",
    ],
)
def test_foreign_word_is_no_setting(text: str) -> None:
    assert renamed(text) == text


def test_setting_beside_foreign_words_is_renamed() -> None:
    java = "kafka.sasl.oauthbearer.header.urlencode"
    sent = "; the client's id and secret were sent as they are: "
    said = "Java's client_id of 'a', HTTP 401 (no client_id)"
    assert renamed(f"{said}{sent}sasl_oauth_header_urlencode=True sends") == (
        f"Java's kafka.client.id of 'a', HTTP 401 (no client_id){sent}{java}=True sends"
    )


def renamed(text: str) -> str:
    with pytest.raises(BootstrapError) as caught, by_option(["bootstrap.servers"]):
        raise BootstrapError(text)
    return str(caught.value)


def test_cyclic_chain_ends() -> None:
    """A handler that raises a cause of its own error makes a cycle."""
    error = BootstrapError("ssl_cafile")
    wrapper = RuntimeError("a plugin")
    wrapper.__cause__ = error
    error.__context__ = wrapper
    hidden = BootstrapError("ssl_cafile")
    wrapper.__context__ = hidden
    with pytest.raises(BootstrapError, match=r"^kafka\.ssl\.truststore\.location$"), by_option([]):
        raise error
    assert str(hidden) == "ssl_cafile", "no traceback shows it"
