"""The moments at which a watchdog logs a stall."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock as Clock

from trikafka._api.client.stalls import NEVER, Owed, StallWatch

LIMIT = 10.0


@pytest.mark.parametrize("begins", [0, 0.5, 2.1, 2.2, 2.3, 4.3, 7.7, 30.01])
@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
async def test_stall_is_logged_in_time(
    autojump_clock: Clock, caplog: pytest.LogCaptureFixture, begins: float, known: bool
) -> None:
    """Also one that begins before the first look."""

    def source(now: float) -> Iterator[Owed]:
        if known or now >= begins:
            progress = min(now, begins)
            yield Owed("thing", "thing", progress, NEVER, lambda: "it hangs")

    watch = StallWatch(logging.getLogger("trikafka.test"), LIMIT, [source], "client")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        while "thing: no progress" not in caplog.text:  # noqa: ASYNC110
            await trio.sleep(0.01)
        watch.stop()
    assert LIMIT <= trio.current_time() - begins <= 1.25 * LIMIT
