"""``trikafka export``: all new records of topics to where a plugin writes, each exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import Common, common_options, pair
from .running import Stop, run
from .tables import say, say_json

if TYPE_CHECKING:
    from .._api.export import ExportProgress, ExportResult
    from .progress import Meter

_STAGES = {
    "planned": "planned",
    "resumed": "finishing an earlier export",
    "starting": "starting",
    "writing": "writing",
    "written": "written",
    "published": "published",
    "committed": "committed",
}


@click.command()
@click.argument("names", nargs=-1, metavar="TOPIC...")
@click.argument("destination")
@click.option("-t", "--topic", "more", multiple=True, metavar="NAME", help="A topic, as the argument; repeatable.")
@click.option("-G", "--group", metavar="ID", help="Commit what was exported for this group, so that its lag shows in other tools.")
@click.option("-o", "--from", "start", metavar="WHERE", help="Where the first export begins: beginning (default) or @TIME.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the plugin that writes; repeatable.")
@click.option("--max-records-per-file", type=click.IntRange(1), default=1_000_000, show_default=True, help="Of one file at most.")
@click.option("--allow-data-loss", is_flag=True, help="Go on where records are gone from the log before they were exported.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print the result.")
@common_options
def command(
    common: Common,
    names: tuple[str, ...],
    destination: str,
    more: tuple[str, ...],
    group: str | None,
    start: str | None,
    options: tuple[str, ...],
    max_records_per_file: int,
    allow_data_loss: bool,
    output: str,
) -> None:
    """Write all records of topics that DESTINATION does not hold yet, each exactly once.

    An export that was killed is finished by the next one. Files are written by a plugin, such as trikafka-spark.
    """
    from ..config import ConsumerConfig
    from .admin import chosen

    settings = common.settings(ConsumerConfig)
    group = group or settings.get("group_id")
    result = _export(
        topics=chosen("topic", names, more),
        destination=destination,
        start=_start(start),
        max_records_per_file=max_records_per_file,
        fail_on_data_loss=not allow_data_loss,
        sink_options=dict(map(pair, options)),
        **{**settings, "group_id": group},
    )
    if output == "json":
        say_json(_as_json(result))
    elif result.already_done:
        say(f"nothing new: {destination} holds all records")
    else:
        earlier = ", the files of a killed export among them" if result.resumed else ""
        files = sum(file.name is not None for file in result.files)
        records = f"{result.rows:,} {'record' if result.rows == 1 else 'records'}"
        where = f"{files:,} {'file' if files == 1 else 'files'} ({result.bytes:,} bytes)"
        say(f"{records} in {where} written to {destination}{earlier}")


def _export(**arguments: Any) -> ExportResult:
    from .._api.export import export
    from .progress import meter

    results: list[ExportResult] = []

    async def work(stop: Stop) -> None:
        with meter("looking", "records") as tell:
            results.append(await export(on_progress=lambda progress: _show(tell, progress), **arguments))

    run(work)
    return results[0]


def _show(tell: Meter, progress: ExportProgress) -> None:
    stage = _STAGES.get(progress.stage, progress.stage)
    tell(progress.rows_done, progress.rows_total, f"{stage}, {progress.files_done} of {progress.files_total} files")


def _start(text: str | None) -> str | int:
    from .start import At, parse

    begin = parse(text) if text is not None else None
    if begin is None or begin.at is At.BEGINNING:
        return "earliest"
    if begin.at is not At.TIME:
        raise click.UsageError("an export begins at 'beginning' or @TIME", click.get_current_context())
    return begin.value


def _as_json(result: ExportResult) -> dict[str, Any]:
    def places(found: Any) -> list[dict[str, Any]]:
        return [{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in sorted(found.items())]

    return {
        "destination": result.destination,
        "already_done": result.already_done,
        "resumed": result.resumed,
        "plans": list(result.plans),
        "records": result.rows,
        "bytes": result.bytes,
        "files": [{"name": file.name, "records": file.rows, "bytes": file.bytes} for file in result.files if file.name is not None],
        "positions": places(result.positions),
        "committed": places(result.committed),
    }
