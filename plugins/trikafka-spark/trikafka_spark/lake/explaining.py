"""Errors of the libraries of table formats, as this project says them, without what is secret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from trikafka import ConfigurationError, ExportError, TrikafkaError

from .options import FORMATS

#: Shorter values are too common to be looked for.
_LEAST, _MOST = 4, 1000
#: Errors that an export has an answer to.
_ANSWERED = ("CommitFailedError", "CommitFailedException", "TableNotFoundError", "NoSuchTableError", "NoSuchNamespaceError")

#: What pyiceberg says of what it lacks, and what to do about it here.
_ADVICE = {
    "URI missing": "nobody says where the Iceberg catalog is: give catalog.uri, such as sqlite:////data/lake.db or"
    " https://catalog:8181 (and catalog.type: sql, rest ...), or the name of a catalog in .pyiceberg.yaml as catalog",
    "No default path is set": "nobody says where the files of a new Iceberg table go: give location, the table's folder or URL,"
    " or catalog.warehouse, in which the catalog chooses one",
    "SQLAlchemy support not installed": "a SQL catalog of Iceberg needs SQLAlchemy: pip install 'trikafka-spark[iceberg-sql]'"
    " (from a clone: pip install './plugins/trikafka-spark[iceberg-sql]'), or 'pyiceberg[sql-postgres]' for PostgreSQL",
}


@contextmanager
def explained(what: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Whatever the library raises, as an :exc:`ExportError`; chained, unless it repeats a secret."""
    try:
        yield
    except (TrikafkaError, GeneratorExit):
        raise
    except Exception as error:
        if type(error).__name__ in _ANSWERED:
            raise
        text = str(error).strip() or type(error).__name__
        shown = hidden(text, secrets)
        failure = ExportError(f"{what}: {shown[:_MOST]}")
        if shown != text:
            raise failure from None
        raise failure from error


@contextmanager
def advised() -> Iterator[None]:
    """What an Iceberg catalog lacks, by the names of our options. Raises :exc:`ConfigurationError` for that."""
    try:
        yield
    except Exception as error:
        advice = next((advice for sign, advice in _ADVICE.items() if sign in str(error)), None)
        if advice is None:
            raise
        raise ConfigurationError(advice) from error


def hidden(text: str, secrets: Iterable[str]) -> str:
    """The text without these."""
    for word in sorted(map(str, secrets), key=len, reverse=True):
        if len(word) >= _LEAST:
            text = text.replace(word, "***")
    return text


def check_library(format: str) -> None:
    """Raise :exc:`ConfigurationError` if the package that knows the format is missing."""
    package = FORMATS[format]
    if find_spec(package) is None:
        raise ConfigurationError(
            f"format={format} needs the package {package}: pip install 'trikafka-spark[{format}]'"
            f" (from a clone: pip install './plugins/trikafka-spark[{format}]')"
        )
