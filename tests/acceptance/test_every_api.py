"""Every API in front of every kind of provider and of a local model: the whole matrix."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator
from dataclasses import replace

import httpx
import pytest

from orchestrator.config import parse
from orchestrator.gateway.app import Gateway
from orchestrator.gateway.listener import Listener, bind
from orchestrator.plan import DeploymentPlan, plan_deployments
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.wiring import System
from tests.acceptance.matrix import FAMILIES, Family, Json, Told, events
from tests.acceptance.test_gateway_providers import ARGUMENTS, KINDS
from tests.fakes import model_host
from tests.fakes.sse_server import SseServer

pytestmark = pytest.mark.live

WORDS = Told("Look.", "", (9, 4), ("c1", "weather", ARGUMENTS))


@contextlib.asynccontextmanager
async def gateway(*plans: DeploymentPlan) -> AsyncGenerator[httpx.AsyncClient]:
    system = System(plans, monitored=False)
    system.start()
    await system.settled()
    with bind("127.0.0.1", 0) as sock:
        app = Gateway(system, max_body=1 << 20, access_log=False, linger=5, keep_alive=15)
        listener = Listener(app, sock)
        task = asyncio.create_task(listener.run_until_closed())
        try:
            await listener.listening.wait()
            url = f"http://127.0.0.1:{listener.port}"
            async with httpx.AsyncClient(base_url=url, timeout=5) as client:
                yield client
        finally:
            listener.close()
            await task
            await system.aclose()


def before(provider: SseServer) -> list[DeploymentPlan]:
    """A deployment of each kind; each is called as its kind is."""
    runners = {
        kind: {"runner": {"kind": kind, "base_url": provider.url, "model": "m", "api_key": "k"}}
        for kind in KINDS
    }
    plans, _ = plan_deployments(parse(json.dumps({"deployments": runners})))
    return plans


def a_local_model() -> DeploymentPlan:
    made = factory(
        TorchSettings(model="fake"),
        on_progress=lambda _: None,
        chance=random.Random(0),
        program=model_host.PROGRAM,
    )
    return DeploymentPlan(name="local", factory=made)


def some_tools(family: Family) -> Json:
    return family.asked.get("tools") or FAMILIES["chat"].asked["tools"]


async def told(
    client: httpx.AsyncClient, family: Family, *, stream: bool, **members: object
) -> Told:
    asked: Json = {**members, "stream": stream}
    if stream and family.finish == "stop":
        asked["stream_options"] = {"include_usage": True}
    response = await client.post(family.path, json=asked)
    assert response.status_code == 200, response.text
    return family.streamed(events(response.text)) if stream else family.whole(response.json())


async def test_text_call_finish_and_usage_are_the_same_from_every_provider() -> None:
    scripts = [script() for script in KINDS.values()] * len(FAMILIES) * 2
    found: dict[tuple[str, bool, str], Told] = {}

    async with (
        asyncio.timeout(20),
        SseServer(*scripts) as provider,
        gateway(*before(provider)) as client,
    ):
        for name, family in FAMILIES.items():
            for stream in (False, True):
                for kind in KINDS:
                    found[name, stream, kind] = await told(
                        client, family, stream=stream, model=kind, **family.asked
                    )

    for case, answer in found.items():
        called = FAMILIES[case[0]].called
        # an API that knows of no tools leaves their calls out
        expected = replace(WORDS, finish=called or "tool_calls", call=called and WORDS.call)
        assert answer == expected, case


async def test_tools_results_and_unknown_fields_reach_every_provider() -> None:
    scripts = [script() for script in KINDS.values()] * len(FAMILIES)
    cases = [(name, kind) for name in FAMILIES for kind in KINDS]

    async with (
        asyncio.timeout(20),
        SseServer(*scripts) as provider,
        gateway(*before(provider)) as client,
    ):
        for name, kind in cases:
            family = FAMILIES[name]
            asked: Json = {"model": kind, **family.asked, "x_own": {"deep": [1]}}
            assert (await client.post(family.path, json=asked)).status_code == 200, (name, kind)

    for case, request in zip(cases, provider.requests, strict=True):
        sent = request.json | {"all": request.body.decode()}
        words = ["And there?"]
        if FAMILIES[case[0]].called is not None:
            words += ["drizzle", "weather", "Looks out", "Bonn"]
        assert sent["x_own"] == {"deep": [1]}, case
        assert [word for word in words if word not in str(sent["all"])] == [], case


async def test_every_api_stands_before_a_local_model_which_refuses_what_it_can_not_do() -> None:
    plain: Json = {"messages": [{"role": "user", "content": "say 2"}], "max_tokens": 8}
    asked = {"completions": {"prompt": "say 2"}, "responses": {"input": "say 2"}}

    async with asyncio.timeout(20), gateway(a_local_model()) as client:
        for name, family in FAMILIES.items():
            body: Json = {"model": "local", **asked.get(name, plain)}
            whole = await told(client, family, stream=False, **body)
            streamed = await told(client, family, stream=True, **body)
            refused = await client.post(family.path, json=body | {"x_own": 1})
            tools = await client.post(family.path, json=body | {"tools": some_tools(family)})

            assert whole == streamed, name
            assert (whole.text != "", whole.finish) == (True, family.finish), name
            assert refused.status_code == tools.status_code == 400, name
            assert "x_own" in refused.text, name
            assert "tools" in tools.text, name
