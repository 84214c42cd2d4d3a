"""Mutated record batches against the decoder: ``python tests/wire/fuzz.py --seconds 300 [--seed N]``.

Every input must yield records or ``CorruptRecordError``. The compiled and the Python implementation
must agree, and so must decoding at once and in steps. The records must survive every way to read
them. ``--keep`` names a file for the current input, in case the process dies. ``make fuzz`` runs
the program with the compiled part built for the sanitizers (``sanitized.py``).
"""

import argparse
import contextlib
import random
import struct
import time
from pathlib import Path

from hypothesis import strategies as st
from wirebatches import (
    FRAMINGS,
    LOG_APPEND,
    TRANSACTIONAL,
    Rec,
    batch_v2,
    contents,
    control,
    decode,
    decode_in_steps,
    message_set,
    seal,
)

from trikafka._wire import _implementation
from trikafka.errors import CorruptRecordError
from trikafka.types import Record

#: The reason of a refusal, or (records, next offset, columns).
Outcome = str | tuple[object, ...]

_RECORDS = [
    Rec(b"key", b"value"),
    Rec(None, b"x" * 150, (("name", b"content"), ("name", None), ("é", b""))),
    Rec(b"", None),
    Rec(b"k" * 70, b"", (("", b"1"),)),
]
CORPUS = [
    *(batch_v2(_RECORDS, framing=framing) for framing in FRAMINGS),
    batch_v2(_RECORDS * 20, attributes=LOG_APPEND),
    batch_v2([], last_delta=5),
    batch_v2(_RECORDS)
    + batch_v2(_RECORDS, base=4, attributes=TRANSACTIONAL, producer_id=1)
    + control(8, 1, abort=True),
    *(message_set(magic, _RECORDS, codec=codec) for magic in (0, 1) for codec in (0, 1)),
]
_NASTY = [
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x0f",
    b"\x01",
    b"\x80" * 10,
]


def mutate(source: random.Random, data: bytes) -> bytes:
    """Make a few changes, and usually correct the checksum, so that the decoder does not stop there."""
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 3, 6))):
        position = source.randrange(len(changed) + 1)
        kind = source.randrange(6)
        if kind == 0 and position < len(changed):
            changed[position] ^= 1 << source.randrange(8)
        elif kind == 1 and position < len(changed):
            changed[position] = source.randrange(256)
        elif kind == 2:
            del changed[position : position + source.choice((1, 2, 9, 70))]
        elif kind == 3:
            changed[position:position] = source.choice(_NASTY)
        elif kind == 4:
            piece = source.choice(_NASTY)
            changed[position : position + len(piece)] = piece
        else:
            start = source.randrange(len(changed) + 1)
            changed[position:position] = changed[start : start + source.choice((1, 8, 40))]
    if len(changed) > 61 and changed[16] == 2 and source.random() < 0.8:
        if source.random() < 0.2:
            struct.pack_into(">i", changed, 57, source.choice((0, 1, 3, 5, 2**31 - 1, -1)))
        changed = bytearray(seal(changed))
    return bytes(changed)


def mutated() -> st.SearchStrategy[bytes]:
    """Return mutated batches as a hypothesis strategy."""
    return st.builds(
        mutate, st.randoms(use_true_random=False), st.sampled_from(CORPUS)
    ) | st.binary(max_size=100)


def outcome(data: bytes, *, check_crcs: bool) -> Outcome:
    """Return the result of the implementation in use."""
    try:
        batch = decode(data, check_crcs=check_crcs, aborted=[(1, 0)], max_bytes=1 << 20)
    except CorruptRecordError as error:
        return error.reason
    batch.to_arrow().validate(full=True)
    records = list(batch)
    assert records[: len(records) // 2] == list(batch[: len(records) // 2])
    stepped = in_steps(data, check_crcs=check_crcs)
    # Steps may yield more records: all at once may exceed the limit of bytes.
    assert stepped[: len(records)] == records, (len(stepped), len(records))
    return records, batch.next_offset, contents(batch.columns)


def in_steps(data: bytes, *, check_crcs: bool) -> list[Record]:
    """Return the records before the first refused batch, decoded in the smallest steps."""
    records: list[Record] = []
    with contextlib.suppress(CorruptRecordError):
        for batch in decode_in_steps(
            data, 1, check_crcs=check_crcs, aborted=[(1, 0)], max_bytes=1 << 20
        ):
            records += batch
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a file for the input at hand")
    options = parser.parse_args()
    source = random.Random(options.seed)
    end, runs, refused = time.monotonic() + options.seconds, 0, 0
    while time.monotonic() < end:
        data = mutate(source, source.choice(CORPUS))
        if options.keep:
            options.keep.write_bytes(data)
        check = source.random() < 0.5
        outcomes = []
        for name in _implementation.available():
            _implementation.use(name)
            outcomes.append(outcome(data, check_crcs=check))
        if any(repr(one) != repr(outcomes[0]) for one in outcomes):
            raise SystemExit(
                f"the implementations disagree on {data.hex()} (check_crcs={check}): {outcomes}"
            )
        runs, refused = runs + 1, refused + isinstance(outcomes[0], str)
    print(
        f"{runs} inputs, {refused} refused, {runs - refused} decoded, by "
        f"{', '.join(_implementation.available())}"
    )


if __name__ == "__main__":
    main()
