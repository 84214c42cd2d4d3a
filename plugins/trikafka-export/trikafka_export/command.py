"""``trikafka export``: write all new records of topics to a destination, each exactly once."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from trikafka.cli.options import Common, common_options, different, more_topics_option, pairs
from trikafka.cli.progress import warn
from trikafka.cli.running import Stop, run, sentence
from trikafka.cli.tables import say, say_json

if TYPE_CHECKING:
    from trikafka import Exporter, ExportProgress, ExportResult
    from trikafka.cli.progress import Meter
    from trikafka.interfaces import ExportCheck

_STAGES = {
    "planned": "planned",
    "resumed": "finishing an earlier export",
    "starting": "starting",
    "writing": "writing",
    "written": "written",
    "published": "published",
    "committed": "committed",
}
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise click.BadParameter("give a time such as 60s, 5m or 1h", context, parameter)
    return float(match[1]) * _UNITS[match[2]]


class _ExportCommand(click.Command):
    """The command with the options of the installed plugins in its help."""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options that plugins declare for files and tables."""
        from trikafka.hooks import answers, load_plugins

        found = answers(load_plugins(()), "trikafka_sink_options", Collection, scheme="file")
        names = sorted({name + "*" * name.endswith(".") for _, own in found for name in own})
        with formatter.section("Names of --option"):
            formatter.write_text(", ".join(names))


@click.command(cls=_ExportCommand)
@click.argument("names", nargs=-1, metavar="TOPIC...")
@click.argument("destination")
@more_topics_option
@click.option(
    "-G",
    "--group",
    metavar="ID",
    help="Commit the exported offsets to this group, so that other tools show its lag.",
)
@click.option(
    "-o",
    "--from",
    "start",
    metavar="WHERE",
    help="Where the first export begins: beginning (default), or a time: 2026-01-31T12:00 in "
    "UTC, -1h.",
)
@click.option(
    "--format",
    "format",
    metavar="NAME",
    help="The format of the output: parquet (default), delta, iceberg, or one of a plugin.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="An option of the plugin that writes; repeatable.",
)
@click.option(
    "--max-records-per-file",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="The most records of one file.",
)
@click.option(
    "--every",
    callback=_seconds,
    metavar="TIME",
    help="Export again and again, such as every 60s or 60, until a signal.",
)
@click.option(
    "--min-records-per-file",
    type=click.IntRange(1),
    default=1,
    help="With --every: a smaller file waits for more.",
)
@click.option(
    "--min-bytes-per-file",
    type=click.IntRange(1),
    default=1,
    help="With --every: the same in bytes, which are estimated.",
)
@click.option(
    "--max-file-delay",
    callback=_seconds,
    metavar="TIME",
    help="The longest wait of such a file; default 1h.",
)
@click.option(
    "--allow-data-loss",
    is_flag=True,
    help="Continue where records were deleted before they were exported, and report them.",
)
@click.option(
    "--abandon",
    is_flag=True,
    help="Read nothing: publish the finished files of a killed export, and leave the rest of its "
    "plan to the next export.",
)
@click.option(
    "--check", is_flag=True, help="Only compare the contents of DESTINATION with its manifests."
)
@click.option(
    "--deep",
    is_flag=True,
    help="With --check: read all files and compare each byte with its checksum.",
)
@click.option(
    "--task-timeout",
    type=click.IntRange(0),
    default=300_000,
    metavar="MS",
    help="How long the export retries after time-outs.",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the result.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
@common_options
def command(
    common: Common,
    names: tuple[str, ...],
    destination: str,
    more: tuple[str, ...],
    group: str | None,
    start: str | None,
    format: str | None,
    options: tuple[tuple[str, str], ...],
    max_records_per_file: int,
    every: float | None,
    min_records_per_file: int,
    min_bytes_per_file: int,
    max_file_delay: float | None,
    allow_data_loss: bool,
    abandon: bool,
    check: bool,
    deep: bool,
    task_timeout: int,
    output: str,
    as_json: bool,
) -> None:
    """Write all records of topics that DESTINATION does not hold yet, each exactly once.

    An export that was killed is finished by the next one.
    """
    from trikafka.cli.admin import chosen
    from trikafka.config import ConsumerConfig

    settings = common.settings(ConsumerConfig)
    as_json = as_json or output == "json"
    sink_options = different([*options, *([] if format is None else [("format", format)])])
    if every is None and (
        min_records_per_file > 1 or min_bytes_per_file > 1 or max_file_delay is not None
    ):
        names_given = "--min-records-per-file, --min-bytes-per-file and --max-file-delay"
        raise click.UsageError(f"{names_given} are for --every")
    if check + abandon + (every is not None) > 1:
        raise click.UsageError("only one of --check, --abandon and --every")
    if deep and not check:
        raise click.UsageError("--deep is for --check")
    if check:
        _check(destination, (*names, *more), sink_options, as_json, deep)
        return
    if not names and not more and not re.search(r"[/\\:]", destination):
        # Click gives the only argument to the destination, and a name like this is a topic's.
        raise click.UsageError(
            f"where to? Give the destination after the topic: trikafka export {destination} "
            "s3://bucket/folder, or a folder such as ./out"
        )
    group = settings.get("group_id") if group is None else group
    arguments = dict(
        topics=chosen("topic", names, more),
        destination=destination,
        start=_start(start),
        max_records_per_file=max_records_per_file,
        min_records_per_file=min_records_per_file,
        min_bytes_per_file=min_bytes_per_file,
        max_file_delay_ms=round(1000 * (3600 if max_file_delay is None else max_file_delay)),
        fail_on_data_loss=not allow_data_loss,
        task_timeout_ms=task_timeout,
        sink_options=sink_options,
        **{**settings, "group_id": group},
    )
    _ExportRun(every, abandon, as_json, sink_options.get("dead_letter_topic")).run(arguments)


@dataclass(frozen=True, slots=True)
class _ExportRun:
    """One run of the command: one export, or a series of exports."""

    _every: float | None
    _abandon: bool
    _as_json: bool
    _dead_letter_topic: str | None

    def run(self, arguments: dict[str, Any]) -> None:
        """Run the export or the series; raise the error that ends it."""
        from trikafka import open_exporter
        from trikafka.cli.progress import meter

        async def work(stop: Stop) -> None:
            with meter("looking", "records") as show:
                async with open_exporter(
                    on_progress=lambda step: _show(show, step), **arguments
                ) as exporter:
                    if self._every is None:
                        await self._once(exporter)
                    else:
                        await self._again_and_again(exporter, self._every)

        run(work)

    async def _once(self, exporter: Exporter) -> None:
        from trikafka import ExportIncompleteError

        try:
            if self._abandon:
                self._print(
                    await exporter.abandon(), "nothing to publish: no plan is unfinished in"
                )
            else:
                self._print(await exporter.run())
        except ExportIncompleteError as error:
            self._print(error.result, "nothing written to")
            raise

    async def _again_and_again(self, exporter: Exporter, every: float) -> None:
        """Export every ``every`` seconds. A failure is retried, and reported once."""
        import trio

        from trikafka import ConfigurationError, TrikafkaError

        reported = ""
        while True:
            due = trio.current_time() + every
            try:
                await self._once(exporter)
                reported = ""
            except ConfigurationError:
                raise
            except TrikafkaError as error:
                text, _ = sentence(error)
                if _gist(text) != reported:
                    warn(text)
                reported = _gist(text)
            await trio.sleep_until(due)

    def _print(self, result: ExportResult, nothing: str | None = None) -> None:
        if self._as_json and self._every is not None:
            say(json.dumps(_as_json(result)))  # one line each
            return
        if self._as_json:
            say_json(_as_json(result))
            return
        for lost in result.lost:
            warn(f"{lost} is lost: {lost.reason}")
        if not result.exactly_once and result.resumed:
            warn(
                f"{result.format} has no key that identifies a write: rows of the killed export "
                "may be stored twice; --check counts them"
            )
        if result.dead_letters:
            topic = self._dead_letter_topic
            where = _dead_letter_folder(result) if topic is None else f"the topic {topic}"
            warn(f"{_records(result.dead_letters)} could not be parsed: see {where}")
        say(_sentence(result, nothing))


def _dead_letter_folder(result: ExportResult) -> str:
    if result.location is None and result.format == "iceberg":
        # The table's first export ran in a version that did not store the location.
        return f"_dead_letters at the location of {result.destination}"
    return f"_dead_letters in {result.location or result.destination}"


def _gist(text: str) -> str:
    """Return a failure's text without its numbers, to compare two failures.

    The counts of rows and the offsets differ each time, even if the failure is the same.
    """
    topics, separator, reason = text.partition(" could not be exported: ")
    if not separator:
        return text
    reason = re.sub(r"[0-9][0-9,.]*", "0", reason)
    return f"{topics}{separator}{reason}".removesuffix("; 0 rows are published")


def _check(
    destination: str, topics: tuple[str, ...], options: dict[str, str], as_json: bool, deep: bool
) -> None:
    from trikafka import check_export

    async def work(stop: Stop) -> None:
        found = await check_export(destination, topics=topics, sink_options=options, deep=deep)
        what = {"files": found.files, "records": found.rows, "bytes": found.bytes}
        if as_json:
            details = {
                "topics": list(found.topics),
                "problems": list(found.problems),
                "unfinished": found.unfinished,
            }
            if deep:
                details["unhashed"] = found.unhashed
            say_json({"destination": destination, **what, **details})
        else:
            for problem in found.problems:
                say(problem)
        if found.problems:
            differences = (
                "1 difference"
                if len(found.problems) == 1
                else f"{len(found.problems):,} differences"
            )
            raise click.ClickException(f"{destination} differs from its manifests ({differences})")
        if not as_json:
            if found.unfinished is not None:
                say(
                    f"plan {found.unfinished} is unfinished, and not counted here; the next "
                    "export finishes it"
                )
            if not found.files:
                if found.unfinished is None:
                    say(f"no records: no export to {destination} has found any")
                return
            places = "file" if found.bytes else "range"
            where = f"{found.files:,} {places if found.files == 1 else places + 's'}"
            where += (
                f" ({found.bytes:,} bytes)" if found.bytes else " of a table" if found.files else ""
            )
            say(
                f"{_records(found.rows)} in {where}, as the manifests "
                f"say{_compared(found) if deep else ''}"
            )

    run(work)


def _compared(found: ExportCheck) -> str:
    if not found.unhashed:
        return ", byte by byte"
    files = (
        "1 file has no checksum: it was"
        if found.unhashed == 1
        else f"{found.unhashed:,} files have no checksum: they were"
    )
    return f", byte by byte, but {files} written by an older release, and only decoded"


def _sentence(result: ExportResult, nothing: str | None = None) -> str:
    """Return what the export did.

    Args:
        result: The result.
        nothing: The beginning of the sentence if no plan was carried out. By default the sentence
            then says that all records have been exported.
    """
    if nothing is not None and result.already_done:
        return f"{nothing} {result.destination}"
    # The first export since a time has a plan even if there is nothing to write.
    idle = result.already_done or not (
        result.files or result.carried or result.lost or result.dead_letters
    )
    if idle and result.waiting:
        wait = "waits" if result.waiting == 1 else "wait"
        return (
            f"nothing written: {_records(result.waiting)} {wait} for more, or for --max-file-delay"
        )
    if idle and not (result.already_done and result.positions):
        return f"nothing written to {result.destination}: no record is new"
    if idle:
        which = "all records that could be read" if result.carried else "all records"
        return f"nothing new: {which} have been exported to {result.destination}"
    earlier = ", the files of a killed export among them" if result.resumed else ""
    records = _records(result.rows)
    files = (
        f" in {len(result.files):,} {'file' if len(result.files) == 1 else 'files'} "
        f"({result.bytes:,} bytes)"
    )
    if result.versions:  # a table
        files += f" of version {result.versions[-1]}"
    elif result.bytes == 0 and result.files:
        files = f" ({result.format})"
    left = (
        (
            f"; {sum((each.end - each.start for each in result.carried)):,} offsets are left to "
            "the next export"
        )
        if result.carried
        else ""
    )
    return (
        f"{records}{files} written to {result.destination} in {result.seconds:.1f} s{earlier}{left}"
    )


def _records(count: int) -> str:
    return f"{count:,} {'record' if count == 1 else 'records'}"


def _show(show: Meter, step: ExportProgress) -> None:
    text = (
        f"{_STAGES.get(step.stage, step.stage)}, {step.ranges_done} of {step.ranges_total} ranges"
    )
    if step.stage == "writing" and step.seconds_left is not None:
        text += f", {step.lag:,} left, {_time(step.seconds_left)}"
    show(step.rows_done, step.rows_total, text)


def _time(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
        if whole >= 3600
        else f"{whole // 60}:{whole % 60:02}"
    )


def _start(text: str | None) -> str | int:
    from trikafka.cli.start import TIMES, At, Start, parse

    try:
        begin = parse(text) if text is not None else None
    except click.BadParameter:
        if re.match(r"s?@|\d{4}-\d\d-\d\d", text or ""):
            raise  # the text looks like a time: the error says what is wrong with it
        begin = Start(At.END)  # refused below: this error would offer offsets, which do not work
    if begin is None or begin.at is At.BEGINNING:
        return "earliest"
    if begin.at is not At.TIME:
        raise click.BadParameter(
            f"an export begins at 'beginning' or at a time ({TIMES}), not at {text!r:.100}",
            param_hint="--from",
        )
    return begin.value


def _as_json(result: ExportResult) -> dict[str, Any]:
    def places(found: Any) -> list[dict[str, Any]]:
        return [
            {"topic": tp.topic, "partition": tp.partition, "offset": offset}
            for tp, offset in sorted(found.items())
        ]

    def span(each: Any) -> dict[str, Any]:
        return {
            "topic": each.topic,
            "partition": each.partition,
            "from": each.start,
            "to": each.end,
        }

    return {
        "destination": result.destination,
        "already_done": result.already_done,
        "resumed": result.resumed,
        "plans": list(result.plans),
        "format": result.format,
        "exactly_once": result.exactly_once,
        "versions": list(result.versions),
        "records": result.rows,
        **({"waiting": result.waiting} if result.waiting else {}),
        "bytes": result.bytes,
        "dead_letters": result.dead_letters,
        "started": result.started,
        "seconds": round(result.seconds, 3),
        "files": [
            {
                "name": file.name,
                "topic": file.planned.topic,
                "partition": file.planned.partition,
                "from": file.start,
                "to": file.end,
                "records": file.rows,
                "bytes": file.bytes,
            }
            for file in result.files
        ],
        "positions": places(result.positions),
        "committed": places(result.committed),
        "carried": [span(each) for each in result.carried],
        "lost": [{**span(each), "reason": each.reason} for each in result.lost],
    }
