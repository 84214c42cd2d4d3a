"""Attempts with a password: a client makes two in half a minute until one is accepted."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from netting import config
from trio.testing import MockClock as Clock

from trikafka._net.refusals import MOST_REFUSED, REFUSED_FOR, Refusals
from trikafka.error_codes import ErrorCode
from trikafka.errors import AuthenticationError, HandshakeError, from_code
from trikafka.types import Node

PLAIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "wonder",
}
ROTATING: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_credentials": lambda: ("alice", "wonder"),
}
REFUSED = from_code(ErrorCode.SASL_AUTHENTICATION_FAILED, "no")


class Brokers:
    """Brokers that take a tenth of a second to judge a password."""

    def __init__(self, **settings: Any) -> None:
        self.refusals = Refusals(config(**(settings or PLAIN)))
        self.times: list[float] = []
        self.outcomes: list[str] = []
        self.answer: Exception | None = REFUSED

    async def authenticate(self) -> str:
        self.times.append(trio.current_time())
        await trio.sleep(0.1)
        if self.answer is not None:
            raise self.answer
        return "welcome"

    async def connect(self) -> None:
        try:
            self.outcomes.append(await self.refusals.attempt(self.authenticate))
        except AuthenticationError as error:
            self.outcomes.append(type(error).__name__)

    async def connect_many(self, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self.connect)


async def test_many_connections_make_two_attempts(autojump_clock: Clock) -> None:
    brokers = Brokers()
    await brokers.connect_many(20)
    assert brokers.outcomes == ["AuthenticationError"] * 20
    assert len(brokers.times) == MOST_REFUSED
    assert trio.current_time() == pytest.approx(brokers.times[0] + 0.1), (
        "the others wait no longer than these"
    )
    assert brokers.refusals.until == pytest.approx(brokers.times[0] + 0.1 + REFUSED_FOR)


async def test_attempts_stay_rare_over_a_long_time(autojump_clock: Clock) -> None:
    brokers = Brokers()
    for _ in range(300):
        await brokers.connect_many(3)
        await trio.sleep(0.5)
    for begin in brokers.times:
        assert sum(1 for at in brokers.times if begin <= at < begin + REFUSED_FOR) <= MOST_REFUSED
    assert len(brokers.times) >= 8


async def test_good_password_is_used_at_once(autojump_clock: Clock) -> None:
    brokers = Brokers()
    brokers.answer = None
    began = trio.current_time()
    await brokers.connect_many(50)
    assert brokers.outcomes == ["welcome"] * 50
    assert trio.current_time() - began == pytest.approx(0.2), (
        "two prove it, the others follow together"
    )


async def test_success_forgets_refusals(autojump_clock: Clock) -> None:
    brokers = Brokers()
    await brokers.connect()
    brokers.answer = None
    await brokers.connect()
    brokers.answer = REFUSED
    await trio.sleep(2)
    await brokers.connect_many(5)
    assert len(brokers.times) == 2 + MOST_REFUSED


async def test_changing_credentials_are_not_counted(autojump_clock: Clock) -> None:
    brokers = Brokers(**ROTATING)
    await brokers.connect_many(20)
    assert len(brokers.times) == 20


async def test_certificate_is_no_password(autojump_clock: Clock) -> None:
    brokers = Brokers()
    brokers.answer = HandshakeError("the certificate has expired")
    for _ in range(10):
        await brokers.connect()
    assert len(brokers.times) == 10


@pytest.mark.parametrize("cut", [0.0, 0.05])
async def test_cancelled_attempts_leave_nothing(autojump_clock: Clock, cut: float) -> None:
    """The next attempt waits neither for cancelled attempts nor for their waiters."""
    brokers = Brokers()
    with trio.move_on_after(cut):
        await brokers.connect_many(6)
    brokers.answer = None
    await brokers.connect_many(6)
    assert brokers.outcomes == ["welcome"] * 6


async def test_broker_that_refused_is_left_alone(autojump_clock: Clock) -> None:
    refusals, node = Refusals(config(**PLAIN)), Node(1, "one", 9092)
    refusals.refused(node, REFUSED)
    with pytest.raises(AuthenticationError):
        await refusals.check(node)
    await refusals.check(Node(2, "two", 9092))
    await trio.sleep(REFUSED_FOR)
    await refusals.check(node)
