"""The chart of the demo: flights by carrier and hour. Blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw(delays: Sequence[Sequence[Any]], names: dict[str, str], path: Path) -> None:
    """Draw a heat map of ``(carrier, hour, flights, ...)``.

    Each carrier is a row, the busiest on top. Each hour is a column.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import LogNorm

    totals: dict[str, int] = {}
    for carrier, _, flights, *_ in delays:
        totals[carrier] = totals.get(carrier, 0) + flights
    carriers = sorted(totals, key=lambda carrier: -totals[carrier])
    hours = sorted({row[1] for row in delays})
    hours = list(range(hours[0], hours[-1] + 1))
    counts = {(row[0], row[1]): row[2] for row in delays}
    cells = [[counts.get((carrier, hour), float("nan")) for hour in hours] for carrier in carriers]
    figure, axes = pyplot.subplots(figsize=(11, 6.5), layout="constrained")
    image = axes.imshow(
        cells, aspect="auto", cmap="viridis", norm=LogNorm(vmin=1, vmax=max(counts.values()))
    )
    axes.set_xticks(range(len(hours)), [f"{hour:02d}" for hour in hours])
    axes.set_yticks(
        range(len(carriers)),
        [f"{names.get(carrier, carrier)} ({totals[carrier]:,})" for carrier in carriers],
    )
    axes.set_xlabel("hour of scheduled departure")
    axes.set_title("Flights out of New York in 2013 by carrier and hour, as read back from Parquet")
    figure.colorbar(image, ax=axes, label="flights (logarithmic)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
