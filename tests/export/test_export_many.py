"""Each export leaves two small files of ours for ever: the next one does not look through them again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from test_export_plan import plan_of
from test_export_store import written

from trikafka._api.export_plan import complete
from trikafka._api.export_store import DirectoryStore
from trikafka._api.export_work import work_folder


class Counted(DirectoryStore):
    """Says how often its place was listed: a request for each thousand files in an object store."""

    looks = 0

    def _own_names(self) -> Iterator[str]:
        self.looks += 1
        return super()._own_names()


def test_an_export_lists_its_place_once(tmp_path: Path) -> None:
    for number in range(1, 4):
        store = Counted(tmp_path)
        store.open()
        before = store.load()
        assert before.last_number == number - 1
        plan = replace(plan_of((number - 1) * 10, number * 10), number=number)
        store.store_plan(plan)
        store.publish(complete(plan, written(store.root, plan)))
        if number > 1:
            assert store.looks == 1
        assert store.load().last_number == number, "the next run of --every looks again"
        store.close()
        if number > 1:
            assert store.looks == 2


def test_what_another_export_did_meanwhile_is_seen_at_the_next_opening(tmp_path: Path) -> None:
    """The work of its plan was taken for what a killed one has left."""
    first, second = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    first.open()
    first.load()
    first.close()
    second.open()
    plan = plan_of(0, 10)
    second.store_plan(plan)
    second.close()
    first.open()
    first.close()
    assert work_folder(tmp_path, plan.number).is_dir()
    first.open()
    assert first.load().unfinished == plan
    first.close()
