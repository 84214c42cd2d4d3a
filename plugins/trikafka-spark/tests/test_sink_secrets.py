"""Secrets of a sink's options: in no repr, and in no frame of an error about another option."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from trikafka_export.destination import find_sink, hidden_options
from trikafka_export.sink_options import sink_options
from trikafka_spark.plugin import trikafka_sink_options

from trikafka import ConfigurationError

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "security"))
from searching import Search

MARK = "MARK-66-secret"
SPARK = {"spark.hadoop.fs.s3a.secret.key": MARK, "spark.ssl.keyPassword": MARK}


def test_secret_options_are_hidden_and_unchanged() -> None:
    options = hidden_options(SPARK)
    found = sink_options(options, others=trikafka_sink_options("file") or ())
    assert MARK not in repr(found)
    assert found.runner["spark.ssl.keyPassword"] == MARK


@pytest.mark.parametrize(
    ("destination", "options"),
    [
        ("/nowhere", {"nonsense": 1, **SPARK}),
        ("/nowhere", {"format": "orc", "nonsense": 1, "write.password": MARK, **SPARK}),
        (
            "a.table",
            {
                "format": "iceberg",
                "nonsense": 1,
                "catalog.uri": MARK,
                "catalog.other": MARK,
                **SPARK,
            },
        ),
        ("/nowhere", {"format": "delta", "catalog.uri": MARK, "store.secret_access_key": MARK}),
        ("s3://b/p", {"store.secret_access_key": MARK, "store.lease": "x"}),
        ("s3://b/p", {"store.secret_access_key": MARK, "store.nonsense": "x"}),
        (
            "s3://b/p",
            {"store.secret_access_key": MARK, "store.proxy_url": f"http://me:{MARK}@ bad"},
        ),
        ("gs://b/p", {"store.service_account_key": f'{{"private_key":"{MARK}"}}'}),
        ("az://b/p", {"store.account_name": "a", "store.account_key": f"{MARK}!!"}),
    ],
)
def test_refused_option_shows_no_other_in_frames(destination: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_sink(destination, hidden_options(options))
    search = Search(MARK)
    frame = caught.value.__traceback__
    assert frame is not None  # the first is this test's own, which has the options as they are
    caught.value.__traceback__ = frame.tb_next
    search.error(caught.value)
    search.verify()
