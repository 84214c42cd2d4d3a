"""The command ``python -m benchmarks.stream_exactly_once`` (``make stream-exactly-once``).

The exit code is 1 if a record was lost or duplicated.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from trikafka_broker import Cluster

from benchmarks.soak import folder, parser_of, teller

from .run import Figures, Options, run


def main() -> int:
    parser = parser_of(
        "benchmarks.stream_exactly_once",
        __doc__,
        keep="the checkpoint and the runs' log",
        option="--keep",
    )
    parser.add_argument(
        "--records", type=int, default=100_000, help="fed in all (default: 100,000)"
    )
    parser.add_argument(
        "--kills", type=int, default=10, help="runs killed by SIGKILL (default: 10)"
    )
    given = parser.parse_args()
    seed = given.seed
    options = Options(seed=seed, records=given.records, kills=given.kills)
    print(f"seed {options.seed}: {options.kills} kills", flush=True)
    figures = trio.run(_run, options, given.keep)
    print(
        f"\nrecords    {figures.fed:,} fed, copied in {figures.batches:,} batches by "
        f"{figures.kills + 1} runs of one query"
    )
    print(
        f"killed     {figures.kills} runs, {figures.in_mid_batch} of them in the middle of a batch"
    )
    print(f"rows       {figures.lost} lost, {figures.doubled} doubled")
    print(f"seed       {options.seed}")
    return 0 if figures.exact else 1


async def _run(options: Options, keep: Path | None) -> Figures:
    with folder(keep) as directory:
        async with Cluster.open() as cluster:
            return await run(options, cluster.bootstrap_servers, directory, teller())


if __name__ == "__main__":
    sys.exit(main())
