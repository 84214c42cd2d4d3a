"""The advice of errors in the command: options, and no calls of Python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from parsed import nodes, tree_of

import trikafka
from trikafka.cli.advice import INSTEAD
from trikafka.cli.options import Common
from trikafka.cli.running import sentence
from trikafka.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from trikafka.errors import (
    ErrorCode,
    KafkaConnectionError,
    TrikafkaError,
    from_code,
    topic_missing,
)

PACKAGE = Path(trikafka.__file__).parent
SASL = ("security.protocol", "SASL_SSL")


def test_every_replaced_text_is_one_of_the_library() -> None:
    texts = [
        node.value
        for path in PACKAGE.rglob("*.py")
        if "cli" not in path.parts
        for node in nodes(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    # A text of the library may begin after the colon or the semicolon.
    missing = [part for part in INSTEAD if not any(part.lstrip(":; ") in text for text in texts)]
    assert missing == []


def test_a_missing_topic_is_created_by_a_command() -> None:
    error = from_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic_missing("jobs"))
    text, code = sentence(error)
    assert text.endswith("make it: trikafka topics create jobs")
    assert code == 1


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (KafkaConnectionError("see ssl_cafile"), "(the option is -X ssl_cafile=VALUE)"),
        (TrikafkaError("a consumer needs another group_id"), "(the option is -G)"),
        (TrikafkaError("open one with bootstrap_servers"), "(the option is -b)"),
        (TrikafkaError("some_name of no setting"), "some_name of no setting"),
        (TrikafkaError("the topic my-client_id-topic"), "my-client_id-topic"),
        (TrikafkaError("the topic client_id.new"), "client_id.new"),
        (TrikafkaError("sasl_mechanism='PLAIN' fails"), "fails"),
        (TrikafkaError("give ssl_context"), "give ssl_context"),
        (TrikafkaError("the topic 'client_id' does not exist"), "does not exist"),
        (TrikafkaError("cannot read /etc/client_id or client_id/ca.pem"), "client_id/ca.pem"),
        (TrikafkaError("HTTP 400 (client_id is unknown)"), "(client_id is unknown)"),
    ],
)
def test_a_setting_has_its_option(error: Exception, ends: str) -> None:
    assert sentence(error)[0].endswith(ends)


@pytest.mark.parametrize(
    ("client", "given", "says"),
    [
        (
            ConsumerConfig,
            [("acks", "1")],
            "unknown setting 'acks' for a consumer; it is one of a producer; a file that several "
            "clients share is given by --config-file",
        ),
        (
            AdminConfig,
            [("acks", "1")],
            "unknown setting 'acks' for an admin client; it is one of a producer; a file",
        ),
        (
            ProducerConfig,
            [SASL, ("sasl.mechanism", "OAUTHBEARER")],
            "'OAUTHBEARER' needs sasl_oauth_token_endpoint_url with sasl_oauth_client_id",
        ),
        (
            ProducerConfig,
            [SASL, ("sasl.mechanism", "PLAIN")],
            "sasl_mechanism='PLAIN' needs sasl_plain_username",
        ),
        (
            ProducerConfig,
            [("ssl.engine.factory.class", "x")],
            "'ssl.engine.factory.class' is not supported: it names a class of Java: leave it out",
        ),
        (
            ConsumerConfig,
            [("ssl.enabled.protocols", "TLSv1.2")],
            "trikafka offers TLSv1.2 and TLSv1.3: leave it out, or add TLSv1.3",
        ),
        (ProducerConfig, [("ssl.curves.list", "x")], "'ssl.curves.list' is not supported"),
    ],
)
def test_advice_about_a_setting_names_no_call(
    client: type[ClientConfig], given: list[tuple[str, str]], says: str
) -> None:
    with pytest.raises(trikafka.ConfigurationError) as caught:
        client.build(Common(properties=tuple(given)).settings(client))
    text, code = sentence(caught.value)
    assert says in text
    assert not any(call in text for call in ("open_", "()", "ssl_context", "provider", "or sasl_c"))
    assert code == 2
