"""A gateway on a real socket over a real system, whose runners are scripted."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import httpx

from orchestrator.callers.door import Door
from orchestrator.gateway.app import Gateway
from orchestrator.gateway.connection import ConnectionLimits
from orchestrator.gateway.listener import Listener, bind
from orchestrator.gateway.repeats.repeats import Repeats, Submit
from orchestrator.wiring import System
from tests.fakes.scripted import Line, Stage
from tests.fakes.systems import Settings, running

CHAT = "/v1/chat/completions"
MAX_BODY = 1 << 20


@dataclass
class Served:
    url: str
    port: int
    system: System
    gateway: Gateway
    client: httpx.AsyncClient
    listener: Listener

    @property
    def connections(self) -> int:
        return len(self.listener.server_state.connections)

    async def ask(self, **members: object) -> httpx.Response:
        return await self.client.post(CHAT, json=body(**members))

    async def idle(self) -> None:
        """Waits until no deployment holds a request."""
        for deployment in self.system.deployments.values():
            gone = asyncio.Event()
            deployment.inflight.when_idle(gone.set)
            await gone.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything else run until something has come to pass that has no event."""
    while not condition():  # noqa: ASYNC110 - neither a queue's length nor a call has an event
        await asyncio.sleep(0)


def plays(*lines: Line, local: bool = False) -> Stage:
    """A stage whose every request gets these lines."""
    return Stage(lambda _request, _call: lines, local=local)


def body(**members: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | members


def events(text: str) -> list[Any]:  # Any: what json.loads makes of foreign bytes
    """The data of each event of a stream; `[DONE]` stays text, comments are nothing."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    data = [block.removeprefix("data: ") for block in blocks]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def text_of(stream: str) -> str:
    pieces: list[str] = []
    for event in events(stream):
        if event != "[DONE]":
            pieces += [choice["delta"].get("content", "") for choice in event.get("choices", [])]
    return "".join(pieces)


@contextlib.asynccontextmanager
async def serving(
    stages: Mapping[str, Stage],
    routes: Mapping[str, Sequence[str]] | None = None,
    *,
    access_log: bool = True,
    linger: float = 30,
    keep_alive: float = 15,
    resume_window: float = 0,
    resume_memory: int = 1 << 24,
    max_bodies: int = 1 << 29,
    patience: ConnectionLimits | None = None,
    door: Door | None = None,
    ledger: Path | None = None,
    explained: bool | None = None,
    repeats: Callable[[Submit], Repeats] | None = None,
    **settings: Unpack[Settings],
) -> AsyncGenerator[Served]:
    async with running(stages, routes, **settings) as system:
        gateway = Gateway(
            system,
            max_body=MAX_BODY,
            access_log=access_log,
            linger=linger,
            keep_alive=keep_alive,
            resume_window=resume_window,
            resume_memory=resume_memory,
            max_bodies=max_bodies,
            door=door,
            ledger=ledger,
            explained=explained,
            repeats=repeats(system.router.submit) if repeats else None,
        )
        with bind("127.0.0.1", 0) as sock:
            listener = Listener(gateway, sock, patience)
            task = asyncio.create_task(listener.run_until_closed())
            try:
                await listener.listening.wait()
                url = f"http://127.0.0.1:{listener.port}"
                async with httpx.AsyncClient(base_url=url, timeout=5) as client:
                    yield Served(url, listener.port, system, gateway, client, listener)
            finally:
                listener.close()
                await task
