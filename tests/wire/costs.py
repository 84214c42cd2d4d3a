"""The costs of decoding in CPU time and page faults: ``python tests/wire/costs.py [--pure]``.

No broker and no network are involved. Prepared responses are decoded repeatedly as a consumer does:
the columns of the last few are held, the others dropped. The output has user and system CPU seconds
per million records, and page faults per million. Unlike rates, these figures hold on a busy
machine.
"""

import argparse
import random
import resource
import statistics
from collections import deque
from collections.abc import Callable

from trikafka._wire import _implementation
from trikafka._wire.columns import RecordBatch
from trikafka._wire.records import decode_some

NOW = 1_700_000_000_000
#: The number of results that are still in use while others are decoded.
_HELD = 3


def response(records: int, size: int, a_batch: int, codec: str = "none") -> memoryview:
    """Return the ``records`` field of a response: values of ``size`` bytes, ``a_batch`` per batch."""
    source, parts = random.Random(1), []
    for base in range(0, records, a_batch):
        encoder = _implementation.current.BatchEncoder(codec)
        for _ in range(min(a_batch, records - base)):
            encoder.append(NOW, None, source.randbytes(size // 2) * 2)
        parts.append(base.to_bytes(8, "big") + encoder.build(-1, -1, -1)[8:])
    return memoryview(bytearray(b"".join(parts)))


def consume(
    data: memoryview, rounds: int, use: Callable[[RecordBatch], object]
) -> tuple[float, float, int]:
    """Return the user and system CPU seconds and the page faults of ``rounds`` rounds."""
    held: deque[object] = deque(maxlen=_HELD)
    start = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(rounds):
        rest, offset = data, 0
        while rest:
            batch, rest, _, _ = decode_some(
                rest,
                topic="t",
                partition=0,
                fetch_offset=offset,
                aborted=None,
                check_crcs=True,
                max_bytes=2**28,
                enough=2**20,
            )
            offset = batch.next_offset
            held.append(use(batch))
    end = resource.getrusage(resource.RUSAGE_SELF)
    return (
        end.ru_utime - start.ru_utime,
        end.ru_stime - start.ru_stime,
        end.ru_minflt - start.ru_minflt,
    )


def measure(
    name: str, data: memoryview, records: int, use: Callable[[RecordBatch], object], rounds: int
) -> None:
    consume(data, max(1, rounds // 4), use)
    runs = [consume(data, rounds, use) for _ in range(5)]
    million = records * rounds / 1e6
    user, system, faults = (
        statistics.median(column) / million for column in zip(*runs, strict=True)
    )
    print(f"{name:46} {user:7.3f} {system:7.3f} {faults:9.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pure", action="store_true", help="measure the implementation in Python")
    parser.add_argument("--only", default="", help="the rows whose name holds this")
    options = parser.parse_args()
    _implementation.use("pure" if options.pure else "native")
    scale = 50 if options.pure else 1
    print(f"{_implementation.name_in_use:46}    user  system    faults   (a million records)")
    for size, a_batch, total in [
        (100, 9_000, 2**16),
        (100, 9_000, 2**20),
        (100, 9_000, 4 * 2**20),
        (100, 150, 2**20),
        (100, 1, 2**20),
        (1000, 1000, 2**16),
        (1000, 1000, 2**20),
        (1000, 1000, 4 * 2**20),
        (1000, 16, 2**20),
        (50_000, 20, 4 * 2**20),
    ]:
        records = max(1, total // (size + 12 + 61 // a_batch))
        name = f"{size} B, {a_batch} a batch, {total // 1024} KB"
        if options.only not in name:
            continue
        data = response(records, size, a_batch)
        rounds = max(2, 48 * 2**20 // total // scale)
        measure(f"{name}: columns", data, records, lambda batch: batch, rounds)
        measure(f"{name}: Arrow", data, records, RecordBatch.to_arrow, rounds)
        if size < 50_000:
            measure(
                f"{name}: iterated", data, records, lambda batch: [batch, deque(batch, 0)], rounds
            )


if __name__ == "__main__":
    main()
