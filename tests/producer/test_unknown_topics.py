"""``send_nowait`` to more missing topics than are looked for at a time.

Each has its error, and no loop is endless.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from producing import ready
from trio.testing import MockClock as Clock

from trikafka import Producer, UnknownTopicOrPartitionError
from trikafka._state.producer.unknown_topics import MOST, UnknownTopics
from trikafka.error_codes import ErrorCode

#: A wait (seconds) between two rounds of calls.
_PAUSE = 0.5


def refused(producer: Producer, topic: str) -> bool:
    """Return whether the topic is refused for good rather than for now."""
    try:
        producer.send_nowait(topic, b"x")
    except UnknownTopicOrPartitionError as error:
        return topic in str(error)
    except trio.WouldBlock:
        return False
    raise AssertionError(f"{topic} was taken")


@pytest.mark.parametrize("backwards", [False, True])
async def test_each_of_many_unknown_topics_has_its_error(
    backwards: bool, autojump_clock: Clock
) -> None:
    async with ready() as (cluster, producer):
        left = [f"no{number}" for number in range(2 * MOST + MOST // 2)]
        with trio.fail_after(60):
            while left:
                left = [
                    topic
                    for topic in (reversed(left) if backwards else left)
                    if not refused(producer, topic)
                ]
                await trio.sleep(_PAUSE)
        asked = {
            topic.name
            for seen in cluster.requests("Metadata")[-1:]
            for topic in seen.request.topics
        }
        assert len(asked) <= MOST + 1, "no more are asked for than are looked for, and t"
        assert "t" in asked
        await producer.send("t", b"x")


async def test_late_metadata_are_no_error(autojump_clock: Clock) -> None:
    """A call that sees the metadata before the producer's own task does not refuse the topic.

    The metadata take longer than a missing topic is looked for, and name the topic. Of the tasks
    that wake with them, some run before that of the producer, in an order that is random.
    """
    async with ready() as (cluster, producer):
        cluster.create_topic("late", 3)
        cluster.delay("Metadata", 4)
        metadata = producer._manager._metadata
        seen = metadata.snapshot

        async def call() -> None:
            await metadata.changed(seen)
            with suppress(trio.WouldBlock):
                producer.send_nowait("late", b"x", partition=2)

        with pytest.raises(trio.WouldBlock):
            producer.send_nowait("late", b"x", partition=2)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(call)
        with trio.fail_after(1):  # a task that found the topic has made it known
            assert (await producer.send("late", b"x", partition=2)).partition == 2


async def test_new_topic_is_found_among_many_missing(
    autojump_clock: Clock,
) -> None:
    async with ready(retry_backoff_max_ms=20_000) as (cluster, producer):
        for number in range(MOST):
            assert not refused(producer, f"no{number}")
        cluster.create_topic("late")
        with trio.fail_after(90):
            while True:
                try:
                    ack = producer.send_nowait("late", b"x")
                    break
                except trio.WouldBlock:
                    # No call asks for the other topics again, so their places become free.
                    await trio.sleep(20)
            await ack.wait()


async def test_missing_topic_is_found_when_created(autojump_clock: Clock) -> None:
    """It is refused until then and looked for all the same."""
    async with ready() as (cluster, producer):
        assert not refused(producer, "late")
        await trio.sleep(3)
        assert refused(producer, "late")
        assert refused(producer, "late")
        cluster.create_topic("late")
        await trio.sleep(2)
        await producer.send_nowait("late", b"x").wait()


def test_places_of_unknown_topics_are_bounded() -> None:
    now, version = 0.0, 1
    places = UnknownTopics(lambda: now)
    assert not places.look_for(("t", 5), 3.0, version)
    assert not places.look_for(("t", None), 3.0, version)
    assert places.topics == {"t"}
    now = 3.0
    assert not places.look_for(("t", 5), 3.0, version), "there was no news"
    version = 2
    assert places.look_for(("t", 5), 3.0, version)
    places.found("t", 3)
    assert places.topics == {"t"}, "partition 5 is not there"
    for number in range(MOST - 1):
        assert not places.look_for((f"u{number}", None), 3.0, version)
    assert not places.look_for(("new", None), 3.0, version)
    assert places.topics == {"new"} | {f"u{number}" for number in range(MOST - 1)}, (
        "the topic whose caller got the error is dropped"
    )
    assert not places.look_for(("t", 5), 3.0, version)
    assert "t" not in places.topics, "no other topic is dropped"
    places.found("new", 1)
    assert not places.look_for(("t", 5), 3.0, version)
    now, version = 6.0, 3
    assert places.look_for(("t", 5), 3.0, version)


@pytest.mark.parametrize("trouble", ["stopped", "frozen", "no leader yet"])
async def test_silence_does_not_mean_a_missing_topic(trouble: str, autojump_clock: Clock) -> None:
    async with ready(close_timeout_ms=100) as (cluster, producer):
        cluster.create_topic("u")
        if trouble == "stopped":
            cluster.stop(0)
        elif trouble == "frozen":
            cluster.freeze(0)
        else:
            cluster.fail("Metadata", ErrorCode.LEADER_NOT_AVAILABLE, times=None, topic="u")
        for _ in range(20):
            assert not refused(producer, "u")
            await trio.sleep(1)
