"""REST catalogs that are silent, away or refuse access: each call ends, with a reason of one line.

No catalog, no Kafka.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from requests import PreparedRequest, Request, Response
from requests.exceptions import ConnectionError, ProxyError, SSLError
from rest_door import door
from trikafka_export.lake import rest_catalog, waiting
from trikafka_export.lake.iceberg import IcebergLog
from trikafka_export.lake.options import lake_options
from trikafka_export.lake.vended_keys import KEY, SECRET, TOKEN, VendedKeys, _Keys, are_vended
from trikafka_export.plugin import trikafka_sink

from trikafka import ConfigurationError, ExportError


def options(uri: str) -> dict[str, Any]:
    where = {"format": "iceberg", "destination": "shop.flights", "catalog": "lake"}
    return {**where, "catalog.type": "rest", "catalog.uri": uri}


#: 0.3 s: the limit of a wait, not of a test.
QUICK = {"catalog.rest.client.socket-timeout-ms": "300"}


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_catalog, "DELAYS", (0.0, 0.0, 0.0))


async def test_silent_catalog_keeps_no_thread() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sink = trikafka_sink("file", {**options(url), **QUICK}, ())
        assert sink is not None
        with trio.fail_after(240):
            for _ in range(6):  # one more than there are threads for such calls
                with pytest.raises(
                    ExportError,
                    match=rf"cannot open the catalog 'lake': {url} has not responded for 0\.3 s",
                ):
                    async with sink:
                        pass
            assert sink._log_limiter.borrowed_tokens == 0


async def test_silence_after_the_request_is_an_error() -> None:
    """A catalog that reads whole requests and does not respond is an error after its time-out."""
    with door() as front, trio.fail_after(240):
        front.mode = "silent"
        with pytest.raises(ExportError, match=r"has not responded for 0\.3 s"):
            await trio.to_thread.run_sync(
                lambda: IcebergLog(lake_options({**options(front.url), **QUICK}))
            )


def test_missing_catalog_has_one_message() -> None:
    """A missing catalog gives the same error each time.

    The command compares the texts, so that it logs an outage once.
    """
    said = set()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        port = unused.getsockname()[1]
        for _ in range(2):
            with pytest.raises(ExportError) as error:
                IcebergLog(lake_options(options(f"http://127.0.0.1:{port}")))
            said.add(str(error.value))
    assert said == {
        f"cannot open the catalog 'lake': http://127.0.0.1:{port} cannot be reached: Connection "
        "refused"
    }


def test_hung_up_catalog_has_one_message() -> None:
    said = set()
    with door() as front:
        front.mode = "shut"
        for _ in range(2):
            with pytest.raises(ExportError) as error:
                IcebergLog(lake_options(options(front.url)))
            said.add(str(error.value))
    assert len(said) == 1
    assert f"{front.url} cannot be reached: " in said.pop()


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("broken", "{url} ended the connection in the middle of a response"),
        ("shut", "{url} cannot be reached: "),
        ("away", "closed for a while"),
    ],
)
def test_read_without_a_response_is_sent_again(mode: str, text: str) -> None:
    requests = []
    with door() as front:
        front.mode = mode
        front.refuse = lambda: requests.append(1)
        with pytest.raises(ExportError) as error:
            IcebergLog(lake_options(options(front.url)))
    assert text.format(url=front.url) in str(error.value)
    assert len(requests) == 4


@pytest.mark.parametrize(
    ("method", "responses", "pauses"),
    [
        ("GET", [(503, None), (502, None), (200, None)], [0.1, 0.4]),
        ("HEAD", [(504, None), (200, None)], [0.1]),
        ("GET", [(429, "7"), (200, None)], [7.0]),
        ("POST", [(429, "7"), (429, "0"), (200, None)], [7.0, 0.4]),
        ("GET", [(429, "soon"), (200, None)], [0.1]),
        ("GET", [(429, "9" * 5000), (200, None)], [0.1]),
        ("GET", [(429, "21")], []),
        ("GET", [(429, "15"), (429, "6")], [15.0]),
        ("GET", [(503, "Wed, 01 Jan 2400 00:00:00 GMT")], []),
        ("GET", [(500, None), (200, None)], [0.1]),
        ("POST", [(500, None)], []),
        ("POST", [(503, "1")], []),
        ("GET", [(429, None)] * 4, [0.1, 0.4, 1.6]),
    ],
)
def test_busy_catalog_gets_a_pause(
    method: str,
    responses: list[tuple[int, str | None]],
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Reads are repeated after an outage, other requests only if the rate was too high."""
    slept: list[float] = []
    caplog.set_level("INFO", "trikafka.export")
    monkeypatch.setattr(rest_catalog, "DELAYS", (0.1, 0.4, 1.6))
    monkeypatch.setattr(rest_catalog, "time", SimpleNamespace(sleep=slept.append))
    left = iter(responses)

    def send(request: PreparedRequest, **given: Any) -> Response:
        response = Response()
        response.status_code, pause = next(left)
        if pause is not None:
            response.headers["Retry-After"] = pause
        return response

    request = Request(method, "http://catalog/v1/config").prepare()
    found = rest_catalog._Sending(send, (1.0, 1.0))(request)
    assert (found.status_code, slept, list(left)) == (responses[-1][0], pauses, [])
    assert [record.getMessage() for record in caplog.records] == [
        f"http://catalog responded with status {status}; the request is sent again in {pause:g} s"
        for (status, _), pause in zip(responses, pauses, strict=False)
    ]


def test_abandoned_thread_sends_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled export must not commit minutes later, after the catalog's pauses."""
    monkeypatch.setattr(rest_catalog, "time", SimpleNamespace(sleep=lambda seconds: None))
    sent = []

    def send(request: PreparedRequest, **given: Any) -> Response:
        sent.append(request)
        response = Response()
        response.status_code = 429
        return response

    def cancelled() -> None:
        raise KeyError("the caller is gone")

    token = waiting.restart.set(cancelled)
    try:
        with pytest.raises(KeyError):
            rest_catalog._Sending(send, (1.0, 1.0))(
                Request("POST", "http://catalog/v1/x").prepare()
            )
    finally:
        waiting.restart.reset(token)
    assert len(sent) == 1


@pytest.mark.parametrize("kind", [SSLError, ProxyError])
def test_lasting_fault_is_raised_at_once(kind: type[Exception]) -> None:
    sent = []

    def send(request: PreparedRequest, **given: Any) -> Response:
        sent.append(request)
        raise kind("certificate verify failed")

    with pytest.raises(ConnectionError, match="cannot be reached"):
        rest_catalog._Sending(send, (1.0, 1.0))(Request("GET", "http://catalog/v1/x").prepare())
    assert len(sent) == 1


def test_configured_catalog_has_a_time_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time-out also holds for a catalog of pyiceberg's configuration file."""
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        body = f"catalog:\n  lake:\n    uri: {uri}\n    rest.client.socket-timeout-ms: 300\n"
        (tmp_path / ".pyiceberg.yaml").write_text(body)
        monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
        monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())
        monkeypatch.setattr("trikafka_export.lake.iceberg._ENV_CONFIG", catalog._ENV_CONFIG)
        with pytest.raises(ExportError, match=r"has not responded for 0\.3 s"):
            IcebergLog(
                lake_options(
                    {"format": "iceberg", "destination": "shop.flights", "catalog": "lake"}
                )
            )


@pytest.mark.parametrize("given", ["0", "-1", "soon", "1.5"])
def test_invalid_time_out_is_refused(given: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"catalog\.rest\.client\.socket-timeout-ms must be a number of milliseconds",
    ):
        IcebergLog(
            lake_options(
                {**options("http://127.0.0.1:1"), "catalog.rest.client.socket-timeout-ms": given}
            )
        )


# --- vended keys ---


def keys_until(number: int, seconds: float) -> Mapping[str, str]:
    ends = str(int((time.time() + seconds) * 1000))
    return {
        "s3.access-key-id": f"key-{number}",
        "s3.secret-access-key": "the-secret-word",
        "s3.session-token": "the-token",
        "s3.session-token-expires-at-ms": ends,
    }


def test_slow_renewal_of_keys_delays_no_other_thread() -> None:
    """The keys before are good while one thread waits for new ones."""
    keys: list[dict[str, Any]] = []

    def ask() -> Mapping[str, str]:
        keys.append(vended())  # as another thread would
        return keys_until(2, 900)

    vended = VendedKeys(keys_until(1, 60), ask)
    vended._known = replace(vended._known, since=vended._known.since - 900)
    assert vended()["access_key_id"] == "key-2"
    assert [each["access_key_id"] for each in keys] == ["key-1"]


def test_keys_are_renewed_when_they_expire() -> None:
    """Temporary keys are requested again after they have expired, and not before."""
    asked = []

    def ask() -> Mapping[str, str]:
        asked.append(1)
        return keys_until(1 + len(asked), 3600)

    keys = VendedKeys(keys_until(1, 3600), ask)
    first = keys()
    assert (first["access_key_id"], first["token"], asked) == ("key-1", "the-token", [])
    assert first["expires_at"] > datetime.now(UTC)
    keys = VendedKeys(keys_until(1, -1), ask)
    assert [keys()["access_key_id"] for _ in range(3)] == ["key-2"] * 3
    assert len(asked) == 1


def test_worker_gets_current_keys_and_hides_them() -> None:
    sent = pickle.loads(pickle.dumps(VendedKeys(keys_until(1, -1), lambda: keys_until(2, 3600))))
    assert sent()["access_key_id"] == "key-2"
    assert not any(word in repr(sent) for word in ("key-2", "the-secret-word", "the-token"))
    assert not any(word in repr(sent()) for word in ("key-2", "the-secret-word", "the-token"))


def test_worker_gets_keys_of_one_renewal() -> None:
    """The client of a store renews the keys in a thread of its own, while a task is pickled."""
    renewals = count(1)

    class Renewed(VendedKeys):
        @property
        def _known(self) -> Any:
            number = next(renewals)
            names = dict.fromkeys((KEY, SECRET, TOKEN), f"of renewal {number}")
            return _Keys.of({**keys_until(number, 3600), **names})

        @_known.setter
        def _known(self, keys: Any) -> None:
            pass

    sent = pickle.loads(pickle.dumps(Renewed({}, dict)))
    assert sent.key == sent.secret == sent.token


def test_configured_keys_are_not_vended() -> None:
    """Keys without a token, or from the user's configuration, do not count as vended."""
    told = dict(keys_until(1, 3600))
    assert are_vended(told, {})
    assert not are_vended(told, told)
    assert not are_vended({"s3.access-key-id": "a", "s3.secret-access-key": "b"}, {})
