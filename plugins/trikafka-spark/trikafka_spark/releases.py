"""The releases of Spark that each part of this package needs.

The exporter needs RDDs only, and works with Spark 3.5. The data source needs classes of later
releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trikafka import ConfigurationError

#: The parts of this package, each with the first release that has its classes.
DATA_SOURCE = ("the data source 'trikafka'", "4.0")
STREAM_WRITES = ("writing a stream to 'trikafka'", "4.1")
STREAM_READS = ("reading a stream of 'trikafka'", "4.2")


@contextmanager
def needed_by(part: tuple[str, str]) -> Iterator[None]:
    """Raise an error with the needed release if an import in the block fails.

    Raises:
        ConfigurationError: PySpark is older than ``part`` needs.
    """
    try:
        yield
    except ImportError as error:
        import pyspark

        if not (error.name or "").startswith("pyspark"):
            raise
        name, least = part
        raise ConfigurationError(
            f"{name} needs Spark {least} or newer, and this is Spark {pyspark.__version__}; "
            "exports need Spark 3.5, batches of the data source 4.0, stream writes 4.1, stream "
            "reads 4.2"
        ) from error
