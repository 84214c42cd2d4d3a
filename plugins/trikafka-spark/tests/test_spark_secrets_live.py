"""Secrets in options of the data source and of exports, which are in no plan, error or setting."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from known_topics import make_topic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from trikafka_broker import KafkaCluster
from trikafka_broker.pytest_plugin import _open
from trikafka_spark.read_options import read_options

import trikafka

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "security"))
from searching import Search

MARK = "MARK-19ac-secret"


@pytest.fixture(scope="module")
def spark(spark_context: Any) -> SparkSession:
    return SparkSession(spark_context)


@pytest.fixture(scope="module")
def secured(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Run a broker with a user whose password is the mark to search for."""
    login = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_marked="{MARK}";'
    )
    properties = {"listener.name.secured.plain.sasl.jaas.config": login}
    options: Any = {"tls": True, "sasl": ["plain"], "properties": properties}
    with _open(request.config, options) as cluster:
        yield cluster


def options_of(cluster: KafkaCluster, user: str) -> dict[str, str]:
    jaas = (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" '
        f'password="{MARK}";'
    )
    given = {**cluster.java_settings("PLAIN"), "sasl.jaas.config": jaas}
    given["bootstrap.servers"] = cluster.bootstrap_servers_of("SECURED")
    return {"subscribe": "marked", **{f"kafka.{name}": value for name, value in given.items()}}


async def test_data_source_shows_no_secret(
    spark: SparkSession,
    secured: KafkaCluster,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    search = Search(MARK)
    await make_topic(secured.bootstrap_servers, "marked", 10, 1)
    good, wrong = options_of(secured, "marked"), options_of(secured, "nobody")
    for options in (
        good,
        wrong,
        {**wrong, "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "5000"},
    ):

        def read(given: dict[str, str] = options) -> int:
            frame = spark.read.format("trikafka").options(**given).load()
            frame.explain(extended=True)
            search.text("plan", frame._jdf.queryExecution().toString())
            return frame.count()

        with caplog.at_level(logging.DEBUG):
            if options is good:
                assert await trio.to_thread.run_sync(read) == 10
            else:
                with pytest.raises(PySparkException, match=r"127\.0\.0\.1") as caught:
                    await trio.to_thread.run_sync(read)
                search.text("error", f"{caught.value} {caught.value!r}")
    search.text("the session's settings", repr(spark.sparkContext.getConf().getAll()))
    search.text("output", "".join(capfd.readouterr()))
    search.log(caplog.records, "trikafka")  # py4j logs everything that it carries, at DEBUG
    search.verify()


async def test_export_without_broker_shows_no_secret(
    spark: SparkSession, secured: KafkaCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """An export that loses its broker shows no secret.

    This is the last test of the module: the broker is gone after it.
    """
    search = Search(MARK)
    settings = {
        **secured.client_settings("PLAIN"),
        "sasl_plain_username": "marked",
        "sasl_plain_password": MARK,
    }

    def progress(so_far: trikafka.ExportProgress) -> None:
        search.text("progress", repr(so_far))
        if so_far.stage == "writing" and secured.brokers[0].alive:
            secured.brokers[0].kill()

    with (
        caplog.at_level(logging.DEBUG),
        trio.fail_after(900),
        pytest.raises(trikafka.ExportError) as caught,
    ):
        await trikafka.export(
            "marked",
            tmp_path / "out",
            on_progress=progress,
            default_api_timeout_ms=5_000,
            close_timeout_ms=500,
            task_timeout_ms=1_000,  # the limit of the wait for the broker
            **settings,
        )
    search.error(caught.value)
    stored = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any("plan" in path.name for path in stored)
    for path in stored:
        search.text(path.name, path.read_bytes().decode("latin-1"))
    search.text("the session's settings", repr(spark.sparkContext.getConf().getAll()))
    search.log(caplog.records, "trikafka")  # py4j logs everything that it carries, at DEBUG
    search.verify()


def test_options_of_a_task_show_no_secret() -> None:
    given = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.sasl.username": "me",
        "kafka.sasl.password": MARK,
        "subscribe": "t",
    }
    given |= {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
    options = read_options(given)
    search = Search(MARK)
    for each in (options, pickle.loads(pickle.dumps(options))):
        assert each.settings["sasl_plain_password"] == MARK
        search.text("repr", repr(each))
    for wrong in (
        {"kafka.sasl.jaas.config": f"x password={MARK}"},
        {"kafka.sasl.passwd": MARK},
        {"minPartitions": "few"},
    ):
        with pytest.raises(trikafka.ConfigurationError) as caught:
            read_options({**given, **wrong})
        search.text(
            "error", f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
        )
    search.verify()
