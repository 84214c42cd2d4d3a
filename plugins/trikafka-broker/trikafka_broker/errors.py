"""The exceptions of this package. Each says in one sentence what is wrong and what to do or where to look."""

from __future__ import annotations

from pathlib import Path


class BrokerError(Exception):
    """Anything that keeps a broker from being run here. The base of the others."""


class JavaError(BrokerError):
    """No Java was found, or it is older than Kafka needs."""


class DownloadError(BrokerError):
    """The jars of a Kafka version could not be had. `log_file` is what the download wrote, if it began."""

    def __init__(self, message: str, log_file: Path | None = None) -> None:
        super().__init__(message)
        self.log_file = log_file


class BrokerStartError(BrokerError):
    """A broker did not come up: it exited, or did not answer in time. `log_file` is its log, `tail` its last lines."""

    def __init__(self, message: str, log_file: Path, tail: str) -> None:
        quoted = "\n".join(f"    {line}" for line in tail.splitlines())
        super().__init__(f"{message}; its log {log_file} ends with\n{quoted}")
        self.log_file = log_file
        self.tail = tail
