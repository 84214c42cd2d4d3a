"""The command `trikafka-broker`, also available as `trikafka broker`.

This module owns the signals of the process while it runs.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from .cluster import KafkaCluster
from .errors import BrokerError
from .jars import fetch_jars
from .security import MECHANISMS, write_private
from .settings import DEFAULT_VERSION, write_properties


class _Signalled(BaseException):
    """A signal ended the command. A `BaseException`, so no error handler stops it."""

    def __init__(self, number: int) -> None:
        self.number = number


@click.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="The number of brokers.",
)
@click.option(
    "--kafka-version",
    default=DEFAULT_VERSION,
    show_default=True,
    help="The version of Kafka, as on Maven.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="The first broker's port (the secured one, if there is one); the others take the next "
    "ones.  [default: a free one]",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    help="The directory of data and logs, which is kept.  [default: a temporary one]",
)
@click.option(
    "--logs",
    type=click.Path(file_okay=False),
    help="The directory of the brokers' logs, which is kept.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A broker property; repeatable.",
)
@click.option(
    "--tls", is_flag=True, help="Open a second port, with TLS; certificates are made for this run."
)
@click.option("--mtls", is_flag=True, help="As --tls, and clients need a certificate.")
@click.option(
    "--sasl",
    type=click.Choice(list(MECHANISMS)),
    multiple=True,
    help="A mechanism by which clients of the second port authenticate; repeatable.",
)
@click.option(
    "--acl",
    is_flag=True,
    help="Clients of the second port may do only what rules allow; 'admin' may do everything.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary directory.")
@click.option("--fetch-only", is_flag=True, help="Download the jars and end.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def broker(
    brokers: int,
    kafka_version: str,
    port: int | None,
    directory: str | None,
    logs: str | None,
    properties: tuple[str, ...],
    tls: bool,
    mtls: bool,
    sasl: tuple[str, ...],
    acl: bool,
    keep: bool,
    fetch_only: bool,
    debug: bool,
) -> None:
    """Run real Apache Kafka brokers on this machine, until Ctrl-C.

    The bootstrap servers are printed to the standard output, as one line, once all brokers serve.
    Kafka is downloaded at the first use.
    """
    given = _parse(properties)
    # Clients of a port with TLS alone are anonymous, as those of the plain port, which may do all.
    if acl and not (sasl or mtls):
        raise click.UsageError("--acl needs a port whose users have names: --sasl or --mtls")
    try:
        with _signals_raise():
            if fetch_only:
                click.echo(fetch_jars(kafka_version, progress=_say))
                return
            cluster = KafkaCluster(
                brokers=brokers,
                version=kafka_version,
                port=port,
                directory=directory,
                logs=logs,
                properties=given,
                tls=tls,
                mtls=mtls,
                sasl=sasl,
                acl=acl,
                keep=keep,
                progress=_say,
            )
            with cluster:
                _serve(cluster)
    except _Signalled as signalled:
        sys.exit(128 + signalled.number)
    except (BrokerError, ValueError, OSError) as error:
        if debug:
            traceback.print_exc()
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


def main() -> None:
    """Run the console script."""
    broker.main(prog_name="trikafka-broker")


def _say(line: str) -> None:
    click.echo(line, err=True)


def _parse(properties: tuple[str, ...]) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for given in properties:
        key, equals, value = given.partition("=")
        if not equals or not key:
            # The text is not shown, because it may hold a password.
            raise click.BadParameter("write KEY=VALUE", param_hint="--property")
        pairs[key.strip()] = value
    return pairs


def _serve(cluster: KafkaCluster) -> None:
    """Print the addresses, then wait until a signal raises or all brokers have ended.

    Raises:
        BrokerError: All brokers have ended.
    """
    for one in cluster.brokers:
        _say(f"broker {one.node_id} at {one.bootstrap_servers}, log {one.log_file}")
    if cluster.settings.security.listener:
        for line in settings_as_text(cluster):
            _say(line)
    click.echo(cluster.bootstrap_servers)
    sys.stdout.flush()
    alive = set(cluster.brokers)
    tick = threading.Event()
    while alive:
        tick.wait(0.25)
        for gone in [one for one in alive if not one.alive]:
            alive.discard(gone)
            _say(f"broker {gone.node_id} has ended; its log is {gone.log_file}")
    raise BrokerError("All brokers have ended")


def settings_as_text(cluster: KafkaCluster) -> list[str]:
    """Return lines with the secured port's settings; write files for Java and librdkafka."""
    shown = {
        name: value for name, value in cluster.client_settings().items() if not callable(value)
    }
    lines = [
        "the secured port, for trikafka:",
        *(f"    {name}={value!r}," for name, value in shown.items()),
    ]
    for title, file, settings in (
        ("Java", "java.properties", cluster.java_settings()),
        ("librdkafka", "librdkafka.properties", cluster.librdkafka_settings()),
    ):
        path = cluster.security_directory / file
        path.parent.mkdir(exist_ok=True, mode=0o700)
        if title == "Java":
            write_properties(path, settings)
        else:  # librdkafka's tools do not understand Java's escapes
            write_private(
                path, "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
            )
        lines.append(f"for {title} (and trikafka -F): {path}")
    return lines


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Return a context in which SIGINT, SIGTERM and SIGHUP raise `_Signalled` once.

    A second signal ends the process at once, and the guardian cleans up. An ignored SIGHUP
    (`nohup`) stays ignored.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)

    def handler(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        raise _Signalled(number)

    before = {each: signal.signal(each, handler) for each in numbers}
    try:
        yield
    finally:
        for each, old in before.items():
            signal.signal(each, old)
