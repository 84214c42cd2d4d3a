"""The speed of the record path on this machine: ``python tests/wire/rates.py [--pure]``.

The figures are million records per second with values of 100 bytes, the best of ten runs. Network
and broker are not included. ``benchmarks/`` compares whole clients.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator

from trikafka._wire import _implementation
from trikafka._wire.columns import RecordBatch
from trikafka._wire.compression import CODECS
from trikafka._wire.records import decode_records

NOW = 1_700_000_000_000


def best(work: Callable[[], object], records: int) -> str:
    spans = []
    for _ in range(10):
        start = time.perf_counter()
        work()
        spans.append(time.perf_counter() - start)
    return f"{records / min(spans) / 1e6:8.2f}"


def values(count: int) -> Iterator[bytes]:
    source = random.Random(1)
    for number in range(count):
        yield (
            b"%020d user=%05d path=/a/b/%d "
            % (number, source.randrange(99999), source.randrange(1000))
            * 3
        )[:100]


def encode(texts: list[bytes], compression: str = "none", base: int = 0) -> bytes:
    encoder = _implementation.current.BatchEncoder(compression)
    append = encoder.append
    for text in texts:
        append(NOW, None, text)
    return base.to_bytes(8, "big") + encoder.build(-1, -1, -1)[8:]


def decode(data: bytes, *, check_crcs: bool = True) -> RecordBatch:
    return decode_records(
        data,
        topic="t",
        partition=0,
        fetch_offset=0,
        aborted=None,
        check_crcs=check_crcs,
        max_bytes=1 << 28,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pure", action="store_true", help="measure the implementation in Python")
    _implementation.use("pure" if parser.parse_args().pure else "native")
    count = 5_000 if _implementation.name_in_use == "pure" else 100_000
    texts = list(values(count))
    whole = encode(texts)
    small = b"".join(
        encode(texts[start : start + 150], base=start) for start in range(0, count, 150)
    )
    batch = decode(whole)
    new = _implementation.current.BatchEncoder
    print(f"{_implementation.name_in_use}; {count} records of 100 bytes")
    print("decode, one batch          ", best(lambda: decode(whole), count))
    print("decode, one batch, no CRC  ", best(lambda: decode(whole, check_crcs=False), count))
    print("decode, batches of 150     ", best(lambda: decode(small), count))
    for codec in CODECS[1:]:
        packed = encode(texts, codec.name)
        print(f"decode, {codec.name:19}", best(lambda: decode(packed), count))  # noqa: B023
    print("Record objects             ", best(lambda: sum(1 for _ in batch), count))
    print("to_arrow                   ", best(batch.to_arrow, count))
    print("append, one by one         ", best(lambda: encode(texts), count))
    print("append, from columns       ", best(lambda: new().extend_columns(batch.columns), count))
    keys = batch.columns.value_offsets, batch.columns.value_data
    partition = _implementation.current.partition_columns
    print("partition a column of keys ", best(lambda: partition(*keys, None, 12), count))


if __name__ == "__main__":
    main()
