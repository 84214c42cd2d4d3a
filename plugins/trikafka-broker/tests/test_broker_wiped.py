"""A missing data directory of a cluster that has run before.

It is reported, or refused if the cluster's metadata are gone with it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from trikafka_broker import BrokerError, formatting


def start(folder: Path, brokers: int = 3, *, run: bool = True) -> list[str]:
    """Format a cluster's directories as a start that gets at least so far; return the reports."""
    directories = {node: folder / str(node) for node in range(brokers)}

    def tool(cluster_id: str) -> None:
        (directories[0] / "__cluster_metadata-0").mkdir(parents=True)  # as Kafka 4.4's does
        (directories[0] / "meta.properties").write_text(
            f"cluster.id={cluster_id}\nnode.id=0\ndirectory.id=d\n"
        )

    lines: list[str] = []
    formatting.format_all(directories, None, tool, lines.append)
    for directory in directories.values() if run else ():
        (directory / "__cluster_metadata-0").mkdir(exist_ok=True)
        (directory / "__cluster_metadata-0" / "quorum-state").write_text("{}")
    return lines


def test_start_with_all_its_data_logs_nothing(tmp_path: Path) -> None:
    assert start(tmp_path) == start(tmp_path) == []


def test_missing_data_is_reported(tmp_path: Path) -> None:
    """A broker without its data is reported.

    Previously it was formatted again in silence.
    """
    start(tmp_path)
    shutil.rmtree(tmp_path / "2")
    [line] = start(tmp_path)
    where = tmp_path / "2"
    assert line == (
        f"broker 2 has no data any more in {where}: it starts empty, and copies the data of the others"
    )
    assert start(tmp_path) == []


def test_cluster_without_most_data_does_not_start(tmp_path: Path) -> None:
    """A cluster without most of its data does not start.

    Previously the two empty brokers elected one of themselves, and the third lost its data.
    """
    start(tmp_path)
    for node in (1, 2):
        shutil.rmtree(tmp_path / str(node))
    with pytest.raises(
        BrokerError,
        match=r"2 of 3 brokers have no data any more \(.+/1, .+/2\), and the others are",
    ):
        start(tmp_path)
    assert [(tmp_path / str(node)).exists() for node in range(3)] == [True, False, False]


def test_interrupted_first_start_is_no_loss(tmp_path: Path) -> None:
    start(tmp_path, run=False)
    for node in (1, 2):
        shutil.rmtree(tmp_path / str(node))
    assert start(tmp_path) == []
