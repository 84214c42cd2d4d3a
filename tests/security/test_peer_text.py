"""Text that a peer chose: in errors and logs it is printable and short."""

from __future__ import annotations

import ast
import http.client
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from parsed import nodes, tree_of
from trikafka_export.lake.library_errors import explained
from trikafka_export.lake.rest_catalog import _reason
from trikafka_export.obstore_objects import _line
from trio.testing import MockClock

import trikafka
from trikafka._api.admin.messages import named
from trikafka._net.kerberos import _words
from trikafka._net.tls_errors import explain
from trikafka.errors import TrikafkaError, from_code
from trikafka.errors.peer_text import MOST, peer_text
from trikafka.testing import ScriptedCluster
from trikafka.types import Node, TopicPartition

#: A forged line, an escape sequence, a change of direction, a line separator, and much of it.
POISON = "\r\n2026-01-01 FORGED\x1b[2J\x1b]0;x\x07\u202eevil\u2028\x00\x85" + "x" * 5_000
PACKAGE = Path(trikafka.__file__).parent
#: The fields of responses that hold a broker's own words.
FIELDS = {"error_message", "batch_index_error_message", "refused_reason"}


def check(text: str) -> None:
    assert text.isprintable(), repr(text)
    assert "x" * (MOST + 1) not in text
    assert "FORGED" in text, "the text is shown, but for what is wrong with it"


@given(st.text(max_size=700))
def test_any_text_is_printable_and_short(text: str) -> None:
    shown = peer_text(text)
    assert shown.isprintable()
    assert len(shown) <= MOST
    if text.isprintable() and len(text) <= MOST:
        assert shown == text


def test_errors_and_names_are_one_line() -> None:
    for shown in (
        str(TopicPartition(POISON, 3)),
        str(Node(1, POISON, 9092)),
        str(from_code(3, f"topic {POISON[:200]}")),
        str(TrikafkaError(f"group {POISON[:200]}")),
        named("topic", "t", POISON),
    ):
        check(shown)
    assert str(TrikafkaError("topic 'é' 中")) == "topic 'é' 中"


class Status(Exception):
    """A status as the package gssapi has it."""

    min_code = 0

    def get_all_statuses(self, code: int, major: bool) -> list[str]:
        return [POISON]


def test_repeated_text_of_libraries_is_safe(caplog: pytest.LogCaptureFixture) -> None:
    check(_words(Status()))
    check(_line(OSError(f"status code: 403 Forbidden <Code>{POISON}</Code>")))
    check(_line(OSError(POISON.strip())))
    check(_reason(http.client.BadStatusLine(POISON)))
    with pytest.raises(trikafka.ExportError) as caught, explained("the table"):
        raise ValueError(POISON)
    assert str(caught.value).isprintable()
    error = ssl.SSLCertVerificationError(1, "no")
    error.verify_code = 62
    error.verify_message = "Hostname mismatch"
    check(str(explain(error, Node(0, "h", 1), POISON)))


# -- through a client
# ---------------------------------------------------------------------------------------------------------

Use = Callable[[dict[str, Any]], Awaitable[None]]


def poison(found: Any, code: int) -> int:
    """Fill every text field of a response with the peer's text and an error; return their number."""
    if isinstance(found, list | tuple):
        return sum(poison(part, code) for part in found)
    names = (
        [name for name in dir(found) if not name.startswith("_")]
        if hasattr(found, "error_message")
        else []
    )
    written = 0
    for name in FIELDS & set(names):
        setattr(found, name, POISON)
        found.error_code = code
        written += 1
    for inner in ("responses", "partition_responses", "topics", "groups", "results"):
        written += poison(getattr(found, inner, ()) or (), code)
    return written


async def produce(settings: dict[str, Any]) -> None:
    async with trikafka.open_producer(**settings) as producer:
        await producer.send("t", b"x")


async def create(settings: dict[str, Any]) -> None:
    async with trikafka.open_admin(**settings) as admin:
        await admin.create_topics({"u": trikafka.NewTopic(partitions=1)})


async def join(settings: dict[str, Any]) -> None:
    async with trikafka.open_consumer(
        "t", group_id="g", group_protocol="consumer", **settings
    ) as consumer:
        with trio.fail_after(5):
            await consumer.receive()


@pytest.mark.parametrize(
    ("api", "use", "code"),
    [("Produce", produce, 87), ("CreateTopics", create, 37), ("ConsumerGroupHeartbeat", join, 30)],
)
async def test_brokers_text_is_safe(
    api: str, use: Use, code: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "trikafka")

    async def poisoned(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
        response = await default()
        assert poison(response, code)
        return response

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.on(api, poisoned)
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        with pytest.raises(TrikafkaError) as caught:
            await use(settings)
    check(str(caught.value))
    for record in caplog.records:
        assert record.getMessage().isprintable(), record.getMessage()


async def test_member_id_of_a_coordinator_is_safe(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A member's id is the broker's choice, and is logged when the member joins and leaves."""
    caplog.set_level(logging.DEBUG, "trikafka")

    async def rename(request: Any, default: Callable[[], Awaitable[Any]]) -> Any:
        response = await default()
        if not response.error_code:
            response.member_id = POISON
        return response

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.on("JoinGroup", rename)
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "dial": cluster.dial}
        with pytest.raises(trio.TooSlowError):  # noqa: PT012
            async with trikafka.open_consumer(
                "t", group_id="g", group_protocol="classic", **settings
            ) as consumer:
                with trio.fail_after(5):
                    await consumer.receive()
    joined = [
        record.getMessage()
        for record in caplog.records
        if "joined generation" in record.getMessage()
    ]
    assert joined
    for message in joined:
        check(message)
    for record in caplog.records:
        assert record.getMessage().isprintable(), record.getMessage()


# -- in the code
# --------------------------------------------------------------------------------------------------------------


def test_response_texts_pass_peer_text() -> None:
    """In the source, every field of a response within a text is wrapped in ``peer_text``."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in nodes(tree_of(path)):
            if (
                isinstance(node, ast.FormattedValue)
                and isinstance(node.value, ast.Attribute)
                and node.value.attr in FIELDS
            ):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert found == []
