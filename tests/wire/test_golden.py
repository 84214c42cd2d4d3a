"""Batches of the Java client and librdkafka, compared with what librdkafka reads from them.

The files are in ``tests/data``.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from wirebatches import decode

from trikafka._wire.columns import RecordBatch

pytestmark = pytest.mark.usefixtures("implementation")

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.bin"))


def test_golden_files_exist() -> None:
    clients = [
        f"{client}-{codec}"
        for client in ("java", "librdkafka")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    ]
    assert {*clients, "java-log-append-time", "librdkafka-transactions"} == set(NAMES)


def rows(batch: RecordBatch) -> list[Any]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    return [
        [
            r.offset,
            int(r.timestamp_type),
            r.timestamp,
            text(r.key),
            text(r.value),
            [[n, text(v)] for n, v in r.headers],
        ]
        for r in batch
    ]


@pytest.mark.parametrize("name", NAMES)
def test_golden_batches_are_decoded(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    assert rows(decode(data)) == expected["records"]
    committed = decode(data, aborted=[tuple(pair) for pair in expected["aborted"]])
    assert list(committed.offsets) == expected["committed"]
    start = expected["records"][len(expected["records"]) // 2][0]
    assert rows(decode(data, fetch_offset=start)) == [
        row for row in expected["records"] if row[0] >= start
    ]
