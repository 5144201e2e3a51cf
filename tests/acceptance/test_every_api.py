"""Every API in front of every kind of provider and of a local model: the whole matrix."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import anthropic
import httpx
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from orchestrator.config import parse
from orchestrator.gateway.app import Gateway
from orchestrator.gateway.listener import Listener, bind
from orchestrator.plan import DeploymentPlan, plan_deployments
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.wiring import System
from tests.acceptance.matrix import (
    FAMILIES,
    RICH,
    Family,
    Json,
    Told,
    events,
    places,
    with_member,
)
from tests.acceptance.test_gateway_providers import ARGUMENTS, KINDS
from tests.fakes import model_host
from tests.fakes.sse_server import SseServer

pytestmark = pytest.mark.live

ECHOES: dict[str, tuple[str, Callable[[Json], list[Json]]]] = {
    "chat": (
        "messages",
        lambda body: [ChatCompletion.model_validate(body).choices[0].message.model_dump()],
    ),
    "responses": (
        "input",
        lambda body: [item.model_dump() for item in Response.model_validate(body).output],
    ),
    "messages": (
        "messages",
        lambda body: [
            {
                "role": "assistant",
                "content": [
                    block.model_dump() for block in anthropic.types.Message(**body).content
                ],
            }
        ],
    ),
}
"""Where each API has what was said, and an answer as its official client holds it."""
UNLIKE: Json = {
    "id": "",
    "created": 0,
    "created_at": 0,
    "completed_at": 0,
    "output": [],
    "choices": [],
}
CACHED = ("max_tokens", "system", "messages", "tools")
UNABLE = {"ollama": ("tool_choice",)}
"""What a kind refuses whole."""
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


def before(provider: SseServer, **members: object) -> list[DeploymentPlan]:
    """A deployment of each kind; each is called as its kind is."""
    runner = {"base_url": provider.url, "model": "m", "api_key": "k", **members}
    runners = {kind: {"runner": {"kind": kind, **runner}} for kind in KINDS}
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


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unknown_member_anywhere_reaches_the_provider_or_is_refused_by_its_name(
    kind: str,
) -> None:
    lost: list[object] = []
    answered = refused = 0
    async with (
        asyncio.timeout(30),
        SseServer(KINDS[kind]()) as provider,
        gateway(*before(provider)) as client,
    ):
        for name, asked in RICH.items():
            rich = {key: value for key, value in asked.items() if key not in UNABLE.get(kind, ())}
            for path in places(rich):
                body = {"model": kind, **with_member(rich, path, "x_own")}
                response = await client.post(FAMILIES[name].path, json=body)
                sent = provider.requests.pop().body if provider.requests else b""
                if response.status_code == 400 and "x_own" in response.text:
                    refused += 1
                elif response.status_code != 200 or b"x_own" not in sent:
                    lost.append((name, path, response.text[:200]))
                else:
                    answered += 1

    assert lost == []
    assert answered > 0
    assert refused > 0  # where a word stands for the object, if nowhere else


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_an_official_client_sends_back_is_taken_by_every_provider(
    kind: str,
) -> None:
    async with (
        asyncio.timeout(30),
        SseServer(KINDS[kind]()) as provider,
        gateway(*before(provider)) as client,
    ):
        for name, (key, echo) in ECHOES.items():
            family = FAMILIES[name]
            asked: Json = {**family.asked, "model": kind}
            answer = (await client.post(family.path, json=asked)).json()
            asked[key] = [*asked[key], *echo(answer)]
            response = await client.post(family.path, json=asked)
            assert response.status_code == 200, (name, response.text)
            assert response.json() | UNLIKE == answer | UNLIKE


@pytest.mark.parametrize("kind", KINDS)
async def test_where_fields_may_be_dropped_an_unknown_member_costs_no_answer(kind: str) -> None:
    failed: list[object] = []
    async with (
        asyncio.timeout(30),
        SseServer(KINDS[kind]()) as provider,
        gateway(*before(provider, drop_params=True)) as client,
    ):
        asked = {key: RICH["chat"][key] for key in RICH["chat"] if key != "tool_choice"}
        for path in places(asked):
            body = {"model": kind, **with_member(asked, path, "x_own")}
            response = await client.post(FAMILIES["chat"].path, json=body)
            if response.status_code != 200:
                failed.append((path, response.text[:200]))

    assert failed == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "openai"])
async def test_where_a_prompt_may_be_cached_is_told_to_those_alone_who_cache_it(kind: str) -> None:
    async with (
        asyncio.timeout(30),
        SseServer(KINDS[kind]()) as provider,
        gateway(*before(provider)) as client,
    ):
        asked = {key: RICH["messages"][key] for key in CACHED}
        marks = [("system", 0), ("tools", 0), ("messages", 0, "content", 1)]
        marks += [("messages", 1, "content", 0), ("messages", 2, "content", 0)]
        for path in marks:
            body = {"model": kind, **with_member(asked, path, "cache_control")}
            response = await client.post(FAMILIES["messages"].path, json=body)
            assert response.status_code == 200, (path, response.text)

    told = [request.body.count(b'"cache_control":"kept?"') for request in provider.requests]
    assert told == [1 if kind == "anthropic" else 0] * len(marks)


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
