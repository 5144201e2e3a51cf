"""`orchestrator check --connect` as a process, against providers on loopback."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.fakes.keys import ANSWERED, REFUSED
from tests.fakes.sse_server import SseServer

pytestmark = pytest.mark.live

LIMIT = 30
"""Seconds for a process that has to load all that the command line needs."""


async def check(config: Path, *options: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orchestrator", "check", str(config), "--connect", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"NO_COLOR": "1", "PROVIDER_KEY": "s3cret-key"},
    )
    async with asyncio.timeout(LIMIT):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def configured(folder: Path, **servers: str) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(
        "deployments:\n"
        + "".join(
            f"  {name}: {{runner: {{kind: openai, base_url: '{url}', model: m,"
            " api_key: {env: PROVIDER_KEY}}}\n"
            for name, url in servers.items()
        ),
        encoding="utf-8",
    )
    return path


async def test_a_table_shows_every_step_and_the_exit_code_is_0_if_all_is_good(tmp_path: Path):
    async with SseServer(ANSWERED) as server:
        code, out, err = await check(configured(tmp_path, near=server.url))

    assert (code, err) == (0, "")
    assert {"near", "reachable", "key", "model", "ok", "ms"} <= set(out.replace("│", " ").split())


async def test_each_fault_is_a_line_with_deployment_step_and_advice_and_exit_code_1(tmp_path: Path):
    async with SseServer(ANSWERED) as good, SseServer(REFUSED) as bad:
        servers = {"good": good.url, "locked": bad.url, "far": "http://127.0.0.1:9/v1"}
        code, out, _ = await check(configured(tmp_path, **servers))

    lines = [line for line in out.splitlines() if ": " in line]
    assert code == 1
    assert len(lines) == 2
    assert lines[0].startswith("locked: key: ")
    assert lines[0].endswith("; check api_key")
    assert lines[1].startswith("far: reachable: ")
    assert "s3cret" not in out


async def test_json_tells_the_same_to_a_program(tmp_path: Path):
    async with SseServer(ANSWERED) as good, SseServer(REFUSED) as bad:
        config = configured(tmp_path, good=good.url, locked=bad.url)
        code, out, _ = await check(config, "--json")

    first, second = json.loads(out)
    assert code == 1
    assert (first["deployment"], first["ok"], first["error"]) == ("good", True, None)
    assert 0 < first["first_token_seconds"] < LIMIT
    assert second["failed"] == "key"
    assert second["steps"] == {"reachable": True, "key": False, "model": None, "first_token": None}
    assert second["error"]["code"] == "upstream_authentication"


async def test_a_wrong_file_is_exit_code_2_before_anybody_is_asked(tmp_path: Path):
    path = tmp_path / "wrong.yaml"
    path.write_text("deployments: {}\n", encoding="utf-8")

    code, out, err = await check(path)

    assert (code, out) == (2, "")
    assert err.startswith(f"{path}:1: ")
