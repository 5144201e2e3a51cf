"""The gateway at the system's limit on open files: it goes on, refuses cleanly, and recovers."""

import asyncio
import contextlib
import resource
from pathlib import Path

import httpx
import pytest

from tests.fakes.sse_server import SseServer, answer, event
from tests.gateway.process import GatewayProcess, gateway_process
from tests.gateway.serving import CHAT, body

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SPARE = 6
"""Files that it may still open when the crowd comes."""
CROWD = 40


def configuration(folder: Path, url: str) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(
        "deployments:\n  m:\n"
        f"    runner: {{kind: openai, model: x, base_url: '{url}', api_key: k}}\n"
        "    breaker: {failure_threshold: 1000, min_calls: 1000}\n    retry: {max_attempts: 1}\n",
        encoding="utf-8",
    )
    return path


def leave_files(gateway: GatewayProcess, spare: int) -> None:
    files = len(list(Path(f"/proc/{gateway.pid}/fd").iterdir())) + spare
    _, hard = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (files, hard))


async def answered(client: httpx.AsyncClient) -> int:
    """The status of a request; 0 if its connection was refused or closed."""
    try:
        return (await client.post(CHAT, json=body())).status_code
    except httpx.TransportError:
        return 0


async def test_with_no_files_left_it_goes_on_refuses_cleanly_and_recovers(tmp_path: Path) -> None:
    told = answer(
        event({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}),
        b"data: [DONE]\n\n",
    )
    async with asyncio.timeout(100), contextlib.AsyncExitStack() as stack:
        provider = await stack.enter_async_context(SseServer(told))
        config = configuration(tmp_path, provider.url)
        gateway, client = await stack.enter_async_context(gateway_process(config))
        before = await answered(client)
        leave_files(gateway, SPARE)
        port = httpx.URL(gateway.url).port
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CROWD)]
        during = [await answered(client) for _ in range(3)]
        alive = await client.get("/livez")
        for _, writer in crowd:
            writer.close()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=10) as newcomer:
            while (after := await answered(newcomer)) == 0:
                pass

    assert before == after == 200
    assert set(during) <= {200, 502, 503}
    assert alive.status_code == 200
