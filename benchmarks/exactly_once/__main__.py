"""The command ``python -m benchmarks.exactly_once`` (``make exactly-once``): one run.

The exit code is 1 if a record was lost or duplicated.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from trikafka_broker import Cluster

from benchmarks.soak import folder, parser_of, teller

from .run import GROUPS, PROPERTIES, Figures, Options, run


def main() -> int:
    parser = parser_of("benchmarks.exactly_once", __doc__, keep="the workers' logs")
    parser.add_argument(
        "--kills", type=int, default=60, help="workers killed by SIGKILL (default: 60)"
    )
    parser.add_argument(
        "--broker-kills",
        type=int,
        default=10,
        help="brokers killed and started again (default: 10)",
    )
    parser.add_argument(
        "--protocol", choices=("classic", "consumer"), help="of the group (default: one of each)"
    )
    parser.add_argument(
        "--worker",
        choices=("process", "tasks"),
        help="by process() or run_tasks() (default: groups of each)",
    )
    given = parser.parse_args()
    options = Options(
        seed=given.seed,
        kills=given.kills,
        broker_kills=given.broker_kills,
        groups=tuple(
            group
            for group in GROUPS
            if given.protocol in (None, group.protocol) and given.worker in (None, group.worker)
        ),
    )
    print(
        f"seed {options.seed}: {options.kills} kills of workers, {options.broker_kills} of brokers",
        flush=True,
    )
    figures = trio.run(_run, options, given.logs)
    print(
        f"\nrecords       {figures.fed:,} fed, copied by a group of each of: "
        f"{', '.join(map(str, options.groups))}"
    )
    print(
        f"workers       {figures.kills} killed, {figures.leaves} left in order, ended by "
        f"themselves: {dict(figures.ends) or 'none'}"
    )
    print(f"brokers       {figures.broker_kills} killed")
    for group in options.groups:
        print(f"{group!s:16} {figures.lost[group]} lost, {figures.doubled[group]} doubled")
    print(f"seed          {options.seed}")
    return 0 if figures.exact else 1


async def _run(options: Options, logs: Path | None) -> Figures:
    with folder(logs) as directory:
        async with Cluster.open(brokers=3, properties=PROPERTIES) as cluster:
            return await run(options, cluster, directory, teller())


if __name__ == "__main__":
    sys.exit(main())
