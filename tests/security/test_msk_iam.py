"""The example mechanism of a third party: its signature is AWS' published one and kafka-python's."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from searching import Search

import trikafka
from trikafka.types import Node

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugins" / "msk_iam"
MARK = "MARK-b7e1-secret"
HOST = "b-1.example.kafka.eu-central-1.amazonaws.com"


@pytest.fixture
def msk(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import trikafka_msk_iam

    yield trikafka_msk_iam
    del sys.modules["trikafka_msk_iam"]


def test_signature_equals_the_published_one(msk: Any) -> None:
    """The Amazon S3 API reference has one: authenticating requests by query parameters."""
    who = msk.AwsCredentials(
        "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1"
    )
    now = datetime(2013, 5, 24, tzinfo=UTC)
    host = "examplebucket.s3.amazonaws.com"
    query = msk.presigned(
        who, now, "s3", host, {}, path="/test.txt", expires=86_400, payload="UNSIGNED-PAYLOAD"
    )
    assert query["X-Amz-Credential"] == "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
    assert (
        query["X-Amz-Signature"]
        == "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )


@pytest.mark.parametrize("token", [None, "a/token+with=signs"])
async def test_payload_equals_kafka_pythons(
    msk: Any, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafka.net.sasl import msk as theirs

    async def credentials() -> Any:
        await trio.lowlevel.checkpoint()
        return msk.AwsCredentials(
            "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-central-1", token
        )

    class At(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(2024, 2, 29, 12, 30, 1, tzinfo=UTC)

    monkeypatch.setattr(msk, "datetime", At)
    monkeypatch.setattr(theirs.datetime, "datetime", At)
    mechanism = msk.MskIam(credentials).trikafka_sasl("AWS_MSK_IAM", None)(Node(1, HOST, 9198))
    said = json.loads(await mechanism.first())
    other = theirs.AwsMskIamClient(
        HOST, "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-central-1", token
    )
    expected = json.loads(other.first_message())
    assert said.pop("user-agent") != expected.pop("user-agent")
    assert said == {name: value for name, value in expected.items() if value is not None}
    assert mechanism.respond(b'{"version":"2020_10_22"}') is None
    assert msk.plugin.trikafka_sasl("PLAIN", None) is None


async def test_missing_credentials_are_named(msk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trikafka._net.auth import SaslAuthenticator
    from trikafka.config import AdminConfig

    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    config = AdminConfig.build(
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "AWS_MSK_IAM",
            "bootstrap_servers": "a:1",
        }
    )

    class Response:
        error_code = 0
        mechanisms = ("AWS_MSK_IAM",)

    async def ask(message: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return Response()

    authenticator = SaslAuthenticator(config, msk.plugin.trikafka_sasl("AWS_MSK_IAM", config))
    with pytest.raises(trikafka.AuthenticationError, match="AWS_ACCESS_KEY_ID"):
        await authenticator(ask, Node(1, HOST, 9198))


@pytest.mark.parametrize("wrong", [{"region": None}, {"access_key": ""}, {"token": 5}, None])
async def test_wrong_credentials_are_not_shown(msk: Any, wrong: dict[str, Any] | None) -> None:
    given = msk.AwsCredentials("id", MARK, "eu-central-1")
    given = tuple(given) if wrong is None else given._replace(**wrong)
    assert wrong is None or MARK not in repr(given)
    mechanism = msk.MskIam(lambda: given).trikafka_sasl("AWS_MSK_IAM", None)(Node(1, HOST, 9198))
    with pytest.raises(
        ValueError, match="must be AwsCredentials, of texts that are not empty"
    ) as caught:
        await mechanism.first()
    search = Search(MARK)
    search.error(caught.value)
    search.verify()


async def test_trailing_dot_is_not_signed(msk: Any) -> None:
    make = msk.MskIam(lambda: msk.AwsCredentials("id", "key", "eu-central-1")).trikafka_sasl
    mechanism = make("AWS_MSK_IAM", None)(Node(1, f"{HOST}.", 9198))
    assert json.loads(await mechanism.first())["host"] == HOST
