"""Exports into a Delta table killed with SIGKILL, Python and JVM: the next one leaves each record once, for any reader at any time.

Each moment takes a Spark of its own, so that two of them are in every run and all with TRIKAFKA_ALL_KILLS=1.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from spark_delta import check_delta, conf
from spark_kafka import add_records
from test_spark_kill_live import child, wait_for_line

import trikafka

RECORDS = 4_000
_ALL = ["planned", "writing", "written", "published"]
MOMENTS = _ALL if os.environ.get("TRIKAFKA_ALL_KILLS") else ["planned", "written"]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_export_killed_there_is_finished_by_the_next(
    moment: str, kafka_broker: Any, new_topic: Any, tmp_path: Path, spark: Any, delta_jars: list[str]
) -> None:
    servers, root = kafka_broker.bootstrap_servers, tmp_path / "out"
    topic = await new_topic(RECORDS)
    options = json.dumps({"format": "delta", **conf(delta_jars)})
    with child(tmp_path / "tmp", servers, topic, str(root), moment, options) as process:
        await trio.to_thread.run_sync(wait_for_line, process, "standing")
        committed = moment in ("written", "published")
        if moment != "writing":  # then Spark works on, and may be done in this moment
            assert (root / "_delta_log").exists() is committed
        if committed:  # a reader sees a plan whole or not at all
            check_delta(spark, root, RECORDS)
    assert (root / "_trikafka" / "plan-000001.json").exists()
    assert (root / "_trikafka" / "manifest-000001.json").exists() is (moment == "published")

    await add_records(servers, topic, RECORDS, 400, 4)
    result = await trikafka.export(
        topic, root, bootstrap_servers=servers, group_id=f"group-{topic}", sink_options={"format": "delta"}
    )
    assert (result.resumed, result.rows) == ((False, 400) if moment == "published" else (True, RECORDS + 400))
    assert result.versions == ((1,) if moment == "published" else (0, 1))
    check_delta(spark, root, RECORDS + 400)
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        offsets = await admin.list_group_offsets(f"group-{topic}")
    assert {known.offset for known in offsets.values()} == {(RECORDS + 400) // 4}
