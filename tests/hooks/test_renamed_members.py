"""Members of a contract that were renamed work under their old names for one release."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from seat_fakes import FAKES, Takes
from trio.testing import MockClock

import trikafka
from trikafka.testing import ScriptedCluster

NAMES = {
    "hurry": "flush_batches",
    "admitted": "partitions_added",
    "landed": "wait_none_in_flight",
}


def _of_the_last_release(context: Any) -> object:
    """Return a produce manager that has only the old names."""
    made = FAKES["produce"](context)

    class Old:
        def __getattr__(self, name: str) -> Any:
            if name in NAMES.values():
                raise AttributeError(name)
            return getattr(made, NAMES.get(name, name))

    return Old()


async def test_plugin_with_old_names_works(autojump_clock: MockClock) -> None:
    plugin = Takes(
        **{kind: FAKES[kind] for kind in ("metadata", "coordinator", "transactions")},
        produce=_of_the_last_release,
    )
    with trio.fail_after(60):
        async with ScriptedCluster(topics={"t": 1}) as cluster:
            opening = trikafka.open_producer(
                bootstrap_servers=cluster.bootstrap_servers,
                dial=cluster.dial,
                plugins=[plugin],
                transactional_id="x",
            )
            with pytest.warns(DeprecationWarning, match="ProduceManager") as caught:
                producer = await opening.__aenter__()
            async with producer.transaction():
                await producer.send("t", b"1")
            await opening.__aexit__(None, None, None)
            assert [record.value for record in cluster.records("t", 0)][:1] == [b"1"]
    texts = [str(warning.message) for warning in caught]
    assert [any(f".{old} is called {new};" in text for text in texts) for old, new in NAMES.items()]


@pytest.mark.parametrize("own", [True, False], ids=["own manager", "plugin's manager"])
async def test_old_names_can_be_called(own: bool, autojump_clock: MockClock) -> None:
    """A plugin's transaction manager calls the produce manager, trikafka's or another plugin's."""
    plugins = [] if own else [Takes(produce=FAKES["produce"], metadata=FAKES["metadata"])]
    async with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        trikafka.open_producer(
            bootstrap_servers=cluster.bootstrap_servers, dial=cluster.dial, plugins=plugins
        ) as producer,
    ):
        manager: Any = producer._manager
        for old, new in NAMES.items():
            with pytest.warns(DeprecationWarning, match=f".{old} is called {new};"):
                assert getattr(manager, old) == getattr(manager, new)
        with pytest.raises(AttributeError, match="anything"):
            manager.anything  # noqa: B018
