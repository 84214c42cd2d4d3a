"""Downloads of known versions from a Maven repository, here a server of the tests' own."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from trikafka_broker import BrokerError, DownloadError, fetch_jars, jars, maven

FIRST, SECOND = "org/one/one/9.9.9/one-9.9.9.jar", "org/two/kafka/9.9.9/kafka_2.13-9.9.9.jar"
CONTENT = {FIRST: b"1" * 100_000, SECOND: b"2" * 100_000}


class Repository:
    """A Maven repository that counts requests, and can cut or change its responses."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.content = dict(CONTENT)
        #: How many responses to each path are cut in the middle.
        self.cuts: Counter[str] = Counter()
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.respond(self)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/maven"

    def respond(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.removeprefix("/maven/")
        self.asked[path] += 1
        if (content := self.content.get(path)) is None:
            request.send_error(404)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if self.cuts[path]:
            self.cuts[path] -= 1
            content = content[: len(content) // 2]
        request.wfile.write(content)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repository]:
    """Serve a version 9.9.9 of two jars, with an empty cache, without Ivy."""
    served = Repository()
    thread = threading.Thread(target=served.server.serve_forever, args=(0.01,))
    thread.start()
    known = {path: hashlib.sha256(content).hexdigest() for path, content in CONTENT.items()}
    monkeypatch.setattr(jars, "known_paths", lambda version: known)
    monkeypatch.setattr(maven, "_WAIT", 0.0)
    monkeypatch.setenv("TRIKAFKA_MAVEN", served.address)
    monkeypatch.setenv("TRIKAFKA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TRIKAFKA_IVY_JAR", "/nowhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    try:
        yield served
    finally:
        served.server.shutdown()
        served.server.server_close()
        thread.join()


def test_jars_are_fetched_once(repository: Repository) -> None:
    lines: list[str] = []
    libs = fetch_jars("9.9.9", progress=lines.append)
    assert {jar.name: jar.read_bytes() for jar in libs.iterdir()} == {
        path.rpartition("/")[2]: content for path, content in CONTENT.items()
    }
    assert lines[1:] == [
        "1 of 2 jars: one-9.9.9.jar",
        "2 of 2 jars: kafka_2.13-9.9.9.jar",
        "downloaded Kafka 9.9.9",
    ]
    assert fetch_jars("9.9.9") == libs
    assert repository.asked == {FIRST: 1, SECOND: 1}
    assert not (libs.parents[1] / "downloads").exists()


def test_cut_response_is_requested_again(repository: Repository) -> None:
    repository.cuts[SECOND] = 3
    assert len(list(fetch_jars("9.9.9").iterdir())) == 2
    assert repository.asked == {FIRST: 1, SECOND: 4}


def test_complete_jars_of_a_failure_are_kept(repository: Repository) -> None:
    repository.cuts[SECOND] = 4
    with pytest.raises(DownloadError, match=rf"{repository.address}/{SECOND}: .*IncompleteRead"):
        fetch_jars("9.9.9")
    assert len(list(fetch_jars("9.9.9").iterdir())) == 2
    assert repository.asked == {FIRST: 1, SECOND: 5}


def test_changed_jar_is_not_used(repository: Repository) -> None:
    repository.content[SECOND] = b"3" * 100_000
    with pytest.raises(DownloadError, match=r"has another SHA-256 .* kafka_2.13-9.9.9.jar from"):
        fetch_jars("9.9.9")
    repository.content = dict(CONTENT)
    assert len(list(fetch_jars("9.9.9").iterdir())) == 2


def test_damaged_leftover_is_fetched_again(repository: Repository, tmp_path: Path) -> None:
    kept = tmp_path / "cache" / "downloads"
    kept.mkdir(parents=True)
    (kept / f"{hashlib.sha256(CONTENT[FIRST]).hexdigest()}.jar").write_bytes(b"1")
    assert len(list(fetch_jars("9.9.9").iterdir())) == 2


def test_missing_jar_names_the_repository(repository: Repository) -> None:
    del repository.content[FIRST]
    with pytest.raises(DownloadError, match=r"HTTP Error 404.*TRIKAFKA_MAVEN"):
        fetch_jars("9.9.9")
    assert repository.asked == {FIRST: 1}  # another attempt would find no more


def test_mirror_of_maven_is_used(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(
        f"""<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
        <mirror><id>a</id><mirrorOf>other</mirrorOf><url>http://other.invalid</url></mirror>
        <mirror><id>b</id><mirrorOf>*,!central</mirrorOf><url>http://not.invalid</url></mirror>
        <mirror><id>c</id><mirrorOf>external:*</mirrorOf><url>{repository.address}/</url></mirror>
        </mirrors></settings>"""
    )
    monkeypatch.delenv("TRIKAFKA_MAVEN")
    assert len(list(fetch_jars("9.9.9").iterdir())) == 2
    assert repository.asked == {FIRST: 1, SECOND: 1}


@pytest.mark.parametrize("text", [None, "<settings/>", "not XML"])
def test_maven_central_is_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    monkeypatch.delenv("TRIKAFKA_MAVEN", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if text is not None:
        (tmp_path / ".m2").mkdir()
        (tmp_path / ".m2" / "settings.xml").write_text(text)
    assert maven.repository() == maven.CENTRAL


def test_wrong_repository_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIKAFKA_MAVEN", "central")
    with pytest.raises(BrokerError, match=r"'central'.*begin with https://"):
        maven.repository()


def test_known_jars_have_their_paths() -> None:
    for version in jars.known_versions():
        paths = jars.known_paths(version)
        assert paths
        for path in paths:
            *_, artifact, revision, name = path.split("/")
            assert name == f"{artifact}-{revision}.jar"
        assert f"org/apache/kafka/kafka_2.13/{version}/kafka_2.13-{version}.jar" in paths
