"""``trikafka consume --group --until-end`` in a group that is slow to assign, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock as Clock

from trikafka.cli.consuming import ConsumePlan, Consuming
from trikafka.cli.record_lines import output_format
from trikafka.cli.running import Stop
from trikafka.testing import ScriptedCluster

BEAT = "ConsumerGroupHeartbeat"


@pytest.mark.parametrize(("joins_after", "beats_without"), [(0.0, 4), (6.0, 4)])
async def test_late_join_still_waits_for_partitions(
    autojump_clock: Clock,
    capfdbinary: pytest.CaptureFixture[bytes],
    joins_after: float,
    beats_without: int,
) -> None:
    """The wait for an assignment begins when the member has joined.

    A busy coordinator may delay that.
    """
    beats = 0
    held: Any = None

    async def late(request: Any, default: Any) -> Any:
        nonlocal beats, held
        beats += 1
        if beats == 1:
            await trio.sleep(joins_after)
        response = await default()
        held = response.assignment or held
        response.assignment = held if beats > beats_without else None
        return response

    async with ScriptedCluster(topics={"t": 1}) as cluster:
        cluster.append("t", 0, [b"one", b"two"])
        cluster.on(BEAT, late)
        settings = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "dial": cluster.dial,
            "auto_offset_reset": "earliest",
        }
        form = output_format("raw", None, b"")
        plan = ConsumePlan(
            topics=("t",),
            partitions=frozenset(),
            group="g",
            start=None,
            until_end=True,
            count=None,
            form=form,
        )
        with trio.fail_after(240):
            await Consuming({**settings, "group_id": "g"}, plan).main(Stop())
    assert beats > beats_without
    assert capfdbinary.readouterr().out == b"one\ntwo\n"
