"""The command ``python -m benchmarks.export_exactly_once`` (``make export-exactly-once``).

The exit code is 1 if a row was lost or duplicated.
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
        "benchmarks.export_exactly_once",
        __doc__,
        keep="the files and the exporters' log",
        option="--keep",
    )
    parser.add_argument(
        "--records",
        type=int,
        default=5_000_000,
        help="fed while exporters die (default: 5,000,000)",
    )
    parser.add_argument(
        "--kills", type=int, default=20, help="exporters killed by SIGKILL (default: 20)"
    )
    parser.add_argument(
        "--broker-kills", type=int, default=4, help="brokers killed and started again (default: 4)"
    )
    parser.add_argument(
        "--spark-every",
        type=int,
        default=5,
        help="each so-manyth exporter works with Spark (default: 5; 0: none)",
    )
    given = parser.parse_args()
    options = Options(
        seed=given.seed,
        records=given.records,
        kills=given.kills,
        broker_kills=given.broker_kills,
        spark_every=given.spark_every,
    )
    print(
        f"seed {options.seed}: {options.kills} kills of exporters, {options.broker_kills} of "
        "brokers",
        flush=True,
    )
    figures = trio.run(_run, options, given.keep)
    print(
        f"\nrecords    {figures.fed:,} fed, in {figures.files:,} files at the end; looked at "
        f"{figures.looks} times meanwhile"
    )
    print(f"killed     {figures.kills} exporters, {figures.broker_kills} brokers")
    print(
        f"rows       {figures.lost} lost, {figures.doubled} doubled; unreadable or gone: "
        f"{figures.unreadable or 'nothing'}"
    )
    print(f"seed       {options.seed}")
    return 0 if figures.exact else 1


async def _run(options: Options, keep: Path | None) -> Figures:
    with folder(keep) as directory:
        async with Cluster.open(brokers=3) as cluster:
            return await run(
                options, cluster.bootstrap_servers, cluster.brokers, directory, teller()
            )


if __name__ == "__main__":
    sys.exit(main())
