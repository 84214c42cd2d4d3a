"""The SASL mechanisms without a library: the bytes of their RFCs, and brokers that lie."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikafka._wire.sasl import OAuthBearer, Plain, Scram, make_password_mechanism

#: RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_plain_has_the_rfcs_bytes() -> None:
    mechanism = Plain("alice", "p\u00e4ss")
    assert mechanism.first() == "\0alice\0p\u00e4ss".encode()
    assert mechanism.respond(b"") is None
    with pytest.raises(ValueError, match="null character"):
        Plain("a\0b", "p")


def test_scram_has_the_rfcs_bytes() -> None:
    mechanism = scram()
    assert mechanism.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert mechanism.respond(FIRST) == PROOF
    assert mechanism.respond(SIGNATURE) is None


def test_names_are_escaped_and_nonces_are_new() -> None:
    assert b"n=a=3Db=2Cc," in Scram("SCRAM-SHA-512", "a=b,c", "p").first()
    assert Scram("SCRAM-SHA-512", "a", "p").first() != Scram("SCRAM-SHA-512", "a", "p").first()


def test_delegation_token_is_named_as_one() -> None:
    assert Scram("SCRAM-SHA-512", "id", "p", "nonce", token=True).first() == (
        b"n,,n=id,r=nonce,tokenauth=true"
    )


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (FIRST.replace(NONCE.encode(), b"another"), "does not begin with the client's"),
        (
            b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "does not begin with the client's",
        ),
        (FIRST.replace(b"i=4096", b"i=4095"), "'4095' iterations"),
        (FIRST.replace(b"i=4096", b"i=1000001"), "iterations"),
        (FIRST.replace(b"i=4096", b"i=-5"), "iterations"),
        (FIRST.replace(b"i=4096", b"i=99999999999999"), "iterations"),
        (FIRST.replace(b",i=4096", b""), "iterations"),
        (FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=***"), "no valid 's'"),
        (FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==,", b""), "no valid 's'"),
        (b"", "nonce"),
        (b"m=x," + FIRST, "asks for an extension"),
        (FIRST + b",m=", "asks for an extension"),
        (FIRST + b",i=4096", "has 'i' twice"),
        (FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "salt is empty"),
    ],
)
def test_untrustworthy_challenge_is_refused(first: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        scram().respond(first)


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "does not know the password"),
        (b"v=", "does not know the password"),
        (b"", "no valid 'v'"),
        (b"e=invalid-proof", "the broker said: invalid-proof"),
        (b"m=x," + SIGNATURE, "asks for an extension"),
    ],
)
def test_broker_without_the_password_is_refused(last: bytes, says: str) -> None:
    mechanism = scram()
    mechanism.respond(FIRST)
    with pytest.raises(ValueError, match=says):
        mechanism.respond(last)


@given(st.binary(max_size=200))
def test_any_bytes_raise_value_error(challenge: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - UnicodeDecodeError is one
        scram().respond(challenge)


def test_oauth_has_the_rfcs_bytes() -> None:
    mechanism = OAuthBearer("t.o.k", {"logicalCluster": "lkc-1", "x": "y"})
    assert mechanism.first() == b"n,,\1auth=Bearer t.o.k\1logicalCluster=lkc-1\1x=y\1\1"
    assert mechanism.respond(b"") is None
    assert mechanism.respond(b'{"status":"invalid_token"}') == b"\1"
    for token, extensions in (
        ("", {}),
        ("a b", {}),
        ("\u00e4", {}),
        ("t", {"auth": "x"}),
        ("t", {"a": "\1"}),
    ):
        with pytest.raises(ValueError, match=r"(token|extension)"):
            OAuthBearer(token, extensions)


def test_name_selects_the_mechanism() -> None:
    assert isinstance(make_password_mechanism("PLAIN", "a", "b"), Plain)
    assert isinstance(make_password_mechanism("SCRAM-SHA-512", "a", "b"), Scram)
