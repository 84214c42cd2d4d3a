"""The command ``python -m benchmarks.share_chaos`` (``make share-chaos``): one run.

The exit code is 1 if a record was not accepted, if one was delivered again without a fault or after
the broker had taken its accept, if two accepts of one were taken, or if a handler ran on past its
lock.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from trikafka_broker import Cluster

from benchmarks.soak import folder, parser_of, teller

from .judge import Figures
from .run import PROPERTIES, Options, run


def main() -> int:
    parser = parser_of("benchmarks.share_chaos", __doc__, keep="the members' logs")
    parser.add_argument("--records", type=int, default=2_000_000, help="default: 2,000,000")
    parser.add_argument("--members", type=int, default=8, help="processes (default: 8)")
    parser.add_argument("--faults", type=int, default=100, help="default: 100")
    given = parser.parse_args()
    options = Options(given.seed, given.records, given.members, given.faults)
    print(f"seed {options.seed}: {options.records:,} records, {options.faults} faults", flush=True)
    figures = trio.run(_run, options, given.logs)
    print(f"\nrecords       {figures.records:,} in {figures.seconds:.0f} s")
    print(f"faults        {', '.join(f'{n} {kind}' for kind, n in figures.faults.most_common())}")
    print(f"handlers      {figures.handled:,}; {figures.cut:,} were cancelled")
    print(f"again         {figures.again:,} records were handled more than once")
    print(f"unheard       {figures.unheard:,} accepts whose answer a fault has cost")
    print(f"past a lock   {figures.longest_past * 1000:.0f} ms at most")
    print(f"seed          {options.seed}")
    for kind, count in figures.violations.most_common():
        print(f"VIOLATED      {kind}: {count:,}")
    for line in figures.named:
        print(f"              {line}")
    return 1 if figures.violations else 0


async def _run(options: Options, logs: Path | None) -> Figures:
    with folder(logs) as directory:
        async with Cluster.open(brokers=3, properties=PROPERTIES) as cluster:
            return await run(options, cluster, directory, teller())


if __name__ == "__main__":
    sys.exit(main())
