"""Errors of the table formats' libraries as errors of trikafka, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from trikafka import ConfigurationError, ExportError, TrikafkaError
from trikafka.errors.peer_text import peer_text

from .options import FORMATS

#: The characters of the shortest secret that is replaced: a shorter one is too common as a word.
_SHORTEST_SECRET = 4
#: The most characters of a library's error that are shown.
_LONGEST_TEXT = 1000
#: Errors that the export itself handles.
_HANDLED = (
    "CommitFailedError",
    "CommitFailedException",
    "TableNotFoundError",
    "NoSuchTableError",
    "NoSuchNamespaceError",
)

#: The texts of pyiceberg's errors about missing settings; for each, which option to give here.
_ADVICE = {
    "URI missing": (
        "the address of the Iceberg catalog is missing: give catalog.uri, such as "
        "sqlite:////data/lake.db or https://catalog:8181 (and catalog.type: sql, rest ...), or "
        "the name of a catalog in .pyiceberg.yaml as catalog"
    ),
    "No default path is set": (
        "the location of the new Iceberg table is missing: give location, the table's folder or "
        "URL, or catalog.warehouse, in which the catalog chooses one"
    ),
    "SQLAlchemy support not installed": (
        "a SQL catalog of Iceberg needs SQLAlchemy: pip install 'trikafka-export[iceberg-sql]' "
        "(from a clone: pip install './plugins/trikafka-export[iceberg-sql]'), or "
        "'pyiceberg[sql-postgres]' for PostgreSQL"
    ),
}
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_BRANCH = re.compile(r"\s*\n\s*↳\s*")


@contextmanager
def explained(what: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Convert any exception of the library into an :exc:`ExportError`.

    The exception is chained unless its text contains a secret.
    """
    try:
        yield
    except (TrikafkaError, GeneratorExit):
        raise
    except Exception as error:
        if type(error).__name__ in _HANDLED:
            raise
        # delta-rs shows the causes of an error as a coloured tree of lines.
        text = _BRANCH.sub(": ", _COLOUR.sub("", str(error))).strip() or type(error).__name__
        shown = hidden(text, secrets)
        failure = ExportError(f"{what}: {peer_text(shown, _LONGEST_TEXT)}")
        if shown != text:
            raise failure from None
        raise failure from error


@contextmanager
def advised() -> Iterator[None]:
    """Convert an Iceberg catalog's error about a missing setting into one that names the option.

    Raises:
        ConfigurationError: A setting is missing.
    """
    try:
        yield
    except Exception as error:
        advice = next((advice for sign, advice in _ADVICE.items() if sign in str(error)), None)
        if advice is None:
            raise
        raise ConfigurationError(advice) from error


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Return the text with these secrets replaced."""
    for word in sorted(map(str, secrets), key=len, reverse=True):
        if len(word) >= _SHORTEST_SECRET:
            text = text.replace(word, "***")
    return text


def check_library(format: str) -> None:
    """Raise :exc:`ConfigurationError` if the format's package is missing."""
    package = FORMATS[format]
    if find_spec(package) is None:
        raise ConfigurationError(
            f"format={format} needs the package {package}: pip install 'trikafka-export[{format}]'"
            f" (from a clone: pip install './plugins/trikafka-export[{format}]')"
        )
