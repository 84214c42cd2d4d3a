"""A fixture of pytest-asyncio that opens a producer; see docs/asyncio.md."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import trikafka.aio


@pytest_asyncio.fixture
async def producer() -> AsyncIterator[trikafka.aio.Producer]:
    async with trikafka.aio.open_producer(bootstrap_servers="localhost:9092") as producer:
        yield producer


@pytest.mark.asyncio
async def test_greeting_is_delivered(producer: trikafka.aio.Producer) -> None:
    place = await producer.send("greetings", b"hello")
    assert place.offset is not None
