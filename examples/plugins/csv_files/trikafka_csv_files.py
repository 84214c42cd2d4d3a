"""A format of exports: comma-separated files.

``trikafka export TOPIC FOLDER --format csv`` writes the partition, the offset and the value of each
record, which must be text.
"""

import dataclasses

import pyarrow.csv

from trikafka import hookimpl


@dataclasses.dataclass(frozen=True)
class CsvFiles:
    """The writer and the counter of files. It is pickled, as other machines may write the files."""

    title = "CSV"
    suffix = ".csv"

    def open(self, stream, schema, planned, shape):
        return CsvWriter(stream)

    def count(self, file):
        return sum(1 for _ in file)  # keys and values without line breaks


class CsvWriter:
    """One file."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, table):
        options = pyarrow.csv.WriteOptions(include_header=False)
        columns = table.select(["partition", "offset", "value"])
        pyarrow.csv.write_csv(
            columns.set_column(2, "value", columns["value"].cast("string")), self.stream, options
        )

    def close(self):
        pass  # nothing ends the file


class Csv:
    """The plugin, and the format that it offers."""

    name = "csv"
    option_names = ()

    def files(self, options):
        return CsvFiles()

    def table(self, options):
        return None

    @hookimpl
    def trikafka_export_format(self, name):
        return self if name == "csv" else None


plugin = Csv()
