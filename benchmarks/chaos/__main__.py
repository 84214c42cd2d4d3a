"""The command ``python -m benchmarks.chaos`` (``make chaos``): one run.

The exit code is 1 if a record was lost, duplicated or out of order.
"""

from __future__ import annotations

import sys

import trio
from trikafka_broker import Cluster

from benchmarks.soak import parser_of, teller

from .run import PROPERTIES, Figures, Options, run


def main() -> int:
    options = _parse()
    print(
        f"seed {options.seed}: {options.records:,} records in {options.seconds:g} s, "
        f"{options.troubles} troubles of brokers",
        flush=True,
    )
    figures = trio.run(_run, options)
    report(options, figures)
    return 1 if figures.verdict.counts else 0


async def _run(options: Options) -> Figures:
    say = teller()
    async with Cluster.open(brokers=3, properties=PROPERTIES) as cluster:
        return await run(options, cluster, say)


def _parse() -> Options:
    parser = parser_of(
        "benchmarks.chaos",
        "three brokers, everything that goes wrong, and what became of each record",
    )
    parser.add_argument(
        "--seconds", type=float, default=300, help="how long there are troubles (default: 300)"
    )
    parser.add_argument("--records", type=int, help="how many to write (default: 4000 a second)")
    parser.add_argument(
        "--troubles", type=int, help="kills, freezes and leader moves (default: one in 8 s)"
    )
    text = (
        "delivery_timeout_ms of every producer, in seconds (default: 3 for one of them, Kafka's "
        "for the others)"
    )
    parser.add_argument("--delivery-timeout", type=float, metavar="SECONDS", help=text)
    given = parser.parse_args()
    return Options(
        seed=given.seed,
        seconds=given.seconds,
        records=int(4_000 * given.seconds) if given.records is None else given.records,
        delivery_timeout=given.delivery_timeout,
        troubles=max(1, round(given.seconds / 8)) if given.troubles is None else given.troubles,
    )


def report(options: Options, figures: Figures) -> None:
    """Print the results."""
    verdict = figures.verdict
    print(
        f"\nrecords       {figures.written:,} written in {figures.seconds:.0f} s; "
        f"{verdict.records:,} in the log"
    )
    print(f"acked         {figures.acked:,}")
    print(f"failed        {figures.errors.total():,}")
    for error, count in figures.errors.most_common():
        print(f"              {count:,} x {error}")
    came_to = ", ".join(f"{count:,} {what}" for what, count in figures.transactions.most_common())
    print(f"transactions  {came_to}; {figures.transacted:,} of their records are to be seen")
    print(f"retried       {figures.retried:,} batches")
    print(
        "faults        "
        f"{', '.join(f'{count} {kind}' for kind, count in figures.faults.most_common())}"
    )
    for name, (seconds, why) in figures.standstill.items():
        print(f"no progress   {seconds:.1f} s at most ({name}; meanwhile: {why})")
    print(f"log           {figures.log.total():,} lines of warnings and errors")
    for line, count in figures.log.most_common(5):
        print(f"              {count:,} x {line[:150]}")
    print(f"seed          {options.seed}")
    if not verdict.counts:
        print("nothing lost, nothing doubled, all in order")
    for kind, count in verdict.counts.most_common():
        print(f"VIOLATED      {kind}: {count:,}")
    for line in verdict.named:
        print(f"              {line}")


if __name__ == "__main__":
    sys.exit(main())
