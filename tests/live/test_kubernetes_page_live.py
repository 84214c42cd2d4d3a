"""docs/kubernetes.md: its program answers probes and stops by SIGTERM; its manifest fits it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import trio
import yaml
from cluster_waits import topic_reported

import trikafka

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"<!-- run: service -->\n```python\n(.*?)```", PAGE, re.DOTALL)
(IMAGE,) = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
(MANIFEST,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def probe(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=240) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_manifest_fits_the_program() -> None:
    pod = yaml.safe_load(MANIFEST)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert IMAGE.splitlines()[-1] == f"CMD {json.dumps(container['command'])}"
    assert {each["name"] for each in container["env"]} == set(
        re.findall(r'os\.environ\["(\w+)"\]', PROGRAM)
    )
    (limit,) = re.findall(r'"close_timeout_ms": ([\d_]+)', PROGRAM)
    # The end of the run, and the end of the consumer's block.
    assert pod["terminationGracePeriodSeconds"] * 1000 > 2 * int(limit)
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert [str(port["containerPort"]) for port in container["ports"]] == [values["PROBE_PORT"]]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["port"] == container["ports"][0]["name"]
        assert container[name]["httpGet"]["path"] in ("/live", "/ready")


async def test_service_answers_probes_and_stops(kafka_broker: Any, tmp_path: Path) -> None:
    servers = kafka_broker.bootstrap_servers
    async with trikafka.open_admin(bootstrap_servers=servers) as admin:
        await admin.create_topics({"orders": trikafka.NewTopic(1, 1)})
        await topic_reported(admin, "orders", 1)
    file = tmp_path / "service.py"
    file.write_text(PROGRAM, encoding="utf-8")
    names = {"KAFKA": servers, "POD_NAME": "billing-0", "PROBE_PORT": "0"}
    process = await trio.lowlevel.open_process(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **names},
    )
    try:
        with trio.fail_after(400):
            said = b""
            assert process.stdout is not None
            while b"\n" not in said:
                said += await process.stdout.receive_some()
            *_, host, port = said.decode().split()
            place = "[::1]" if ":" in host else "127.0.0.1"
            for path in ("live", "ready"):
                code = None
                while code != 200:  # a member that is still joining may not be ready
                    code, _ = await trio.to_thread.run_sync(probe, f"http://{place}:{port}/{path}")
                    await trio.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            async for part in process.stdout:
                said += part
            assert await process.wait() == 0
            assert said.endswith(b"stopped in order\n")
    finally:
        process.kill()
        await process.wait()
        async with trikafka.open_admin(bootstrap_servers=servers) as admin:
            await admin.delete_topics(["orders"])
