"""Asks a remote runner and notes all that came: what the tests of this folder share."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from orchestrator.channel import Channel
from orchestrator.errors import OrchestratorError
from orchestrator.events import Finished, TokenChunk
from orchestrator.request import Message, PriorityRequest, SamplingParams
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.lease import Lease, StepLimits
from orchestrator.runners.remote.openai import factory
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.remote.settings import RemoteSettings
from tests.fakes.sse_server import SseServer


@dataclass
class Answer:
    """All that one request brought."""

    chunks: list[TokenChunk] = field(default_factory=list)
    ending: Finished | None = None
    error: OrchestratorError | None = None

    @property
    def text(self) -> str:
        """The chunks' texts, joined."""
        return "".join(chunk.text for chunk in self.chunks)


def a_request(**members: Any) -> PriorityRequest:
    given: dict[str, Any] = {
        "request_id": "r1",
        "model": "route",
        "messages": [Message("user", "hi")],
        "sampling": SamplingParams(),
        "deadline": 1e9,
        "channel": Channel(),
    }
    return PriorityRequest(**given | members)


def a_lease(limits: StepLimits | None = None) -> Lease:
    return Lease(limits or StepLimits(), lambda lease: None)


class Asker:
    """A deployment's slots, asked one request after the other."""

    def __init__(self, slots: SlotFactory):
        self.factory = slots
        self.runner = self.factory.create()

    async def ask(self, lease: Lease | None = None, **request: Any) -> Answer:
        lease = lease or a_lease()
        answer = Answer()
        try:
            async with (
                asyncio.timeout(5),
                contextlib.aclosing(self.runner.generate(a_request(**request), lease)) as events,
            ):
                async for event in events:
                    assert answer.ending is None, "something followed the ending"
                    if isinstance(event, Finished):
                        answer.ending = event
                    else:
                        answer.chunks.append(event)
        except OrchestratorError as error:
            answer.error = error
        finally:
            lease.disarm()
        return answer


@contextlib.asynccontextmanager
async def asking(
    server: SseServer | str,
    transport: httpx.AsyncBaseTransport | None = None,
    *,
    kind: Callable[..., RemoteSettings] = OpenAISettings,
    make: Callable[[Any, httpx.AsyncBaseTransport | None], SlotFactory] = factory,
    **settings: Any,
) -> AsyncGenerator[Asker]:
    """Opens a deployment of some kind of provider; `make` is the kind's factory."""
    url = server if isinstance(server, str) else server.url
    given: dict[str, Any] = {"base_url": url, "model": "m", "provider": "acme"}
    asker = Asker(make(kind(**given | settings), transport))
    try:
        yield asker
    finally:
        await asker.factory.aclose()
