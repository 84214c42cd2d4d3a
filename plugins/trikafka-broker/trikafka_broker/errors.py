"""The exceptions of this package.

Each message says in one sentence what is wrong and what to do, or where to look.
"""

from __future__ import annotations

from pathlib import Path


class BrokerError(Exception):
    """A broker cannot be run here. The base of the other exceptions."""


class JavaError(BrokerError):
    """No Java was found, or it is too old for Kafka."""


class DownloadError(BrokerError):
    """The jars of a Kafka version could not be downloaded.

    `log_file` is the log of the download, if the download began.
    """

    def __init__(self, message: str, log_file: Path | None = None) -> None:
        super().__init__(message)
        self.log_file = log_file


class BrokerStartError(BrokerError):
    """A broker exited during its start, or was not ready in time.

    `log_file` is its log, `tail` the log's last lines.
    """

    def __init__(self, message: str, log_file: Path, tail: str) -> None:
        quoted = "\n".join(f"    {line}" for line in tail.splitlines())
        super().__init__(f"{message}; its log {log_file} ends with\n{quoted}")
        self.log_file = log_file
        self.tail = tail
