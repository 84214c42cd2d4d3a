"""A plan whose files are gone before their commit is abandoned in the table first.

So no late commit adds what is left of the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lakes import Lake, make_lake
from test_lake_commits import files_of, log_of, offsets, pinned, plan_of

from trikafka import ExportError


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    made = make_lake(request.param, tmp_path / "lake")
    made.root.mkdir(parents=True, exist_ok=True)
    return made


@pytest.mark.parametrize("before", [0, 1], ids=["empty", "with rows"])
def test_commit_in_flight_is_refused(
    lake: Lake, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is refused if it read the table before the plan was abandoned.

    The commit is sent after that.
    """
    late, other = log_of(lake), log_of(lake)
    format = pinned(late, lake)
    if before:
        first = plan_of(format, 1)
        late.commit(first, files_of(lake, late, first))
    plan = plan_of(format, before + 1)
    files = files_of(lake, late, plan)
    known: Any = late._known  # type: ignore[attr-defined]
    states = [known(format)]
    other.give_up(plan)
    monkeypatch.setattr(late, "_known", lambda format: states.pop() if states else known(format))
    with pytest.raises(
        ExportError,
        match=r"plan \d of .* was abandoned by another run, because files of it were missing",
    ):
        late.commit(plan, files)
    assert not states, "it went on from what it had seen"
    assert offsets(lake) == [*range(10 * before)]
    assert late.found(plan)
    assert late.given_up(format, plan.number)
    assert not late.given_up(format, plan.number - 1)

    following = plan_of(format, before + 2)
    late.commit(following, files_of(lake, late, following))
    assert offsets(lake) == [*range(10 * before), *range(10 * before + 10, 10 * before + 20)]


def test_committed_plan_cannot_be_abandoned(lake: Lake) -> None:
    """Abandoning a plan that is committed already changes nothing."""
    log = log_of(lake)
    plan = plan_of(pinned(log, lake), 1)
    log.commit(plan, files_of(lake, log, plan))
    log.give_up(plan)
    assert not log.given_up(plan.format, 1)
    assert offsets(lake) == [*range(10)]


def test_abandoned_plan_outlives_the_history(lake: Lake) -> None:
    """The table knows an abandoned plan after its history was removed."""
    log = log_of(lake)
    plan, following = (plan_of(pinned(log, lake), number) for number in (1, 2))
    log.give_up(plan)
    log.give_up(plan)
    log.commit(following, files_of(lake, log, following))
    table: Any = lake.table  # type: ignore[attr-defined]
    if lake.format == "delta":
        table.create_checkpoint()
        for version in range(table.version()):
            (lake.root / "_delta_log" / f"{version:020d}.json").unlink()
    else:
        table.maintenance.expire_snapshots().by_ids(
            [each.snapshot_id for each in table.snapshots()][:-1]
        ).commit()
    log = log_of(lake)
    assert log.given_up(plan.format, 1)
    assert not log.given_up(plan.format, 2)
    assert log.found(plan)
