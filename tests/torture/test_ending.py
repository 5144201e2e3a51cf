"""A gateway over a real model host, stopped or killed at a bad moment, leaves nothing behind."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.gateway.process import ROOT, GatewayProcess, gateway_process
from tests.gateway.serving import CHAT, body, events, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

CONFIG = ROOT / "config" / "gateway.yaml"
LIMIT = 100
"""Seconds; a loaded machine takes half a minute to read the model."""
ENDS_SECONDS = 15
"""Whatever it was at: a drain of nothing, and a host that is asked, terminated and killed."""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A configuration whose model never loads, so that its engine is poisoned again and again."""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, but no more")
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "deployments:\n  m:\n    runner: {kind: torch, model: ./broken.gguf}\n"
        "    supervision: {max_restarts: 0}\n",
        encoding="utf-8",
    )
    return config


@pytest.fixture
def spared(tmp_path: Path) -> Path:
    """The embedded configuration, with a spare host."""
    config = tmp_path / "gateway.yaml"
    text = CONFIG.read_text(encoding="utf-8")
    config.write_text(text.replace("# spare: false", "spare: true"), encoding="utf-8")
    return config


class Host:
    """One of the gateway's model hosts, watched by a pidfd, which nobody else can take over."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    async def ends(self) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._descriptor)
            os.close(self._descriptor)


async def hosts_of(gateway: GatewayProcess, count: int = 1) -> list[Host]:
    """Waits until there are so many."""
    await until(lambda: len(list(filter(is_host, gateway.children()))) == count)
    return [Host(child) for child in gateway.children() if is_host(child)]


def is_host(pid: int) -> bool:
    return "runners.torch.host" in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")


def still_there(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_a_gateway_killed_while_it_loads_takes_its_host_along() -> None:
    async with asyncio.timeout(LIMIT), gateway_process(CONFIG) as (gateway, _):
        await gateway.prints("starting torch")
        (host,) = await hosts_of(gateway)
        gateway.send(signal.SIGKILL)
        async with asyncio.timeout(ENDS_SECONDS):
            await host.ends()
            code = await gateway.ends()

    assert code == -signal.SIGKILL


@pytest.mark.parametrize("times", [1, 2])
async def test_a_stop_signal_while_a_model_loads_ends_gateway_and_host(times: int) -> None:
    async with asyncio.timeout(LIMIT), gateway_process(CONFIG) as (gateway, _):
        await gateway.prints("starting torch")
        (host,) = await hosts_of(gateway)
        for _ in range(times):
            gateway.send(signal.SIGTERM)
        async with asyncio.timeout(ENDS_SECONDS):
            code = await gateway.ends()
            await host.ends()

    assert code == 0
    assert "Traceback" not in gateway.output


async def test_stop_signals_to_a_poisoned_gateway_end_it_well(broken: Path) -> None:
    async with asyncio.timeout(LIMIT), gateway_process(broken) as (gateway, client):
        await gateway.prints("m is poisoned")
        refused = await client.post(CHAT, json=body())
        children = gateway.children()
        for _ in range(2):
            gateway.send(signal.SIGTERM)
        async with asyncio.timeout(ENDS_SECONDS):
            code = await gateway.ends()

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_unhealthy"
    assert code == 0
    assert still_there(children) == []


async def test_a_gateway_killed_in_mid_stream_takes_its_hosts_along(spared: Path) -> None:
    members = body(model="chat", stream=True, max_tokens=400, seed=1)
    async with asyncio.timeout(LIMIT), gateway_process(spared) as (gateway, client):
        await gateway.prints(r"^curl ")
        hosts = await hosts_of(gateway, 2)
        async with client.stream("POST", CHAT, json=members) as response:
            await anext(response.aiter_text())
            gateway.send(signal.SIGKILL)
            async with asyncio.timeout(ENDS_SECONDS):
                for host in hosts:
                    await host.ends()


async def test_a_second_stop_signal_in_mid_stream_ends_stream_and_hosts(spared: Path) -> None:
    members = body(model="chat", stream=True, max_tokens=400, seed=1)
    text = ""
    async with asyncio.timeout(LIMIT), gateway_process(spared) as (gateway, client):
        await gateway.prints(r"^curl ")
        hosts = await hosts_of(gateway, 2)
        async with client.stream("POST", CHAT, json=members) as response:
            async for piece in response.aiter_text():
                if not text:
                    gateway.send(signal.SIGTERM)
                    await gateway.prints("stopping: 1 requests")
                    gateway.send(signal.SIGTERM)
                text += piece
        async with asyncio.timeout(ENDS_SECONDS):
            code = await gateway.ends()
            for host in hosts:
                await host.ends()

    assert events(text)[-1]["error"]["code"] == "draining"
    assert code == 0
