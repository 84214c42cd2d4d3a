"""A plugin's SASL mechanism (AWS_MSK_IAM) by Spark options, in the driver and in a worker."""

from __future__ import annotations

import json
import os
import struct
import sys
import tomllib
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from trikafka.testing.messages import RESPONSES, build, decode_request, encode_response, read_head

EXAMPLE = Path(__file__).parents[3] / "examples" / "plugins" / "msk_iam"
OFFERED = [{"api_key": key, "min_version": 0, "max_version": 1} for key in (3, 17, 18, 36)]
#: Spark's use of the options: it plans in one process, and pickles the settings for its workers.
PROGRAM = """
import pickle, sys, trio
from trikafka import AuthenticationError, OffsetRange
from trikafka_spark.read_options import read_options
from trikafka_spark.range_planning import bind_ranges
from trikafka_export.reading import read_range

_, where, servers = sys.argv
options = pickle.loads(pickle.dumps(read_options({
    "kafka.bootstrap.servers": servers,
    "subscribe": "t",
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "AWS_MSK_IAM",
    "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
})))
try:
    if where == "driver":
        trio.run(bind_ranges, options)
    else:
        list(read_range(OffsetRange("t", 0, 0, 10), options.settings))
except Exception as error:
    print(type(error).__name__, error)
"""


def plugin_archive(path: Path) -> Path:
    """Return the example as a zip for ``--py-files``.

    It has the example's module, and the metadata with its entry point.
    """
    about = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    points = [f"{name} = {value}" for name, value in about["entry-points"]["trikafka"].items()]
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(EXAMPLE / "trikafka_msk_iam.py", "trikafka_msk_iam.py")
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n",
        )
        archive.writestr(f"{info}/entry_points.txt", "\n".join(["[trikafka]", *points]))
    return path


class Refusing:
    """A broker that records the messages of a mechanism, and refuses it."""

    def __init__(self) -> None:
        self.mechanisms: set[str] = set()
        self.said: list[Any] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        while (head := await stream.receive_some(4)) and len(head) == 4:
            frame = b""
            while len(frame) < struct.unpack(">i", head)[0]:
                frame += await stream.receive_some(struct.unpack(">i", head)[0] - len(frame))
            request = decode_request(read_head(frame), frame)
            values: dict[str, Any] = {"error_code": 0, "api_keys": OFFERED}
            if type(request) is SaslHandshakeRequest:
                self.mechanisms.add(request.mechanism)
                values = {"error_code": 0, "mechanisms": ["AWS_MSK_IAM"]}
            elif type(request) is SaslAuthenticateRequest:
                self.said.append(json.loads(bytes(request.auth_bytes)))
                values = {
                    "error_code": 58,
                    "error_message": "not you",
                    "auth_bytes": b"",
                    "session_lifetime_ms": 0,
                }
            response = build(RESPONSES[request.API_KEY], request.API_VERSION, values)
            await stream.send_all(
                encode_response(response, request.API_VERSION, request.header.correlation_id)
            )


@pytest.mark.parametrize("where", ["driver", "worker"])
@pytest.mark.parametrize("installed", [True, False])
async def test_msk_iam_works_by_options(where: str, installed: bool, tmp_path: Path) -> None:
    """The plugin is found by its entry point, also in a zip.

    In a process without the plugin, the error names the mechanism.
    """
    environment = {
        **os.environ,
        "AWS_REGION": "eu-1",
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
    }
    if installed:
        archive = plugin_archive(tmp_path / "plugin.zip")
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(archive), os.environ.get("PYTHONPATH")])
        )
    broker = Refusing()
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(
                partial(trio.serve_tcp, broker.serve, 0, host="127.0.0.1")
            )
            port = listener.socket.getsockname()[1]
            command = [sys.executable, "-c", PROGRAM, where, f"127.0.0.1:{port}"]
            done = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False, env=environment
            )
            nursery.cancel_scope.cancel()
    said = done.stdout.decode()
    if installed:
        assert said.startswith("AuthenticationError"), done.stderr.decode()
        assert broker.mechanisms == {"AWS_MSK_IAM"}
        assert {one["x-amz-credential"].split("/")[0] for one in broker.said} == {"AKID"}
    else:
        assert said.startswith(
            "ConfigurationError sasl_mechanism: no plugin offers 'AWS_MSK_IAM'"
        ), done.stderr.decode()
        assert broker.said == []
    assert "s3cr3t" not in said + done.stderr.decode()
