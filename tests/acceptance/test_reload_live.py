"""A gateway that runs takes another configuration over, by a signal and by an administrator."""

import asyncio
import signal
from pathlib import Path

import pytest

from tests.fakes.sse_server import LAST_CHUNK, Send, SseServer, Wait, delta, framed, head
from tests.gateway.process import gateway_process
from tests.gateway.serving import CHAT, body, text_of

pytestmark = pytest.mark.live

LIMIT = 20
"""Seconds; a process starts in about two on a busy machine."""


def configured(url: str, *deployments: str, more: str = "") -> str:
    sections = [
        f"  {name}: {{runner: {{kind: openai, base_url: '{url}', model: {name}}}}}\n"
        for name in deployments
    ]
    callers = "callers: {admin_key: root, allow_anonymous: true}\n"
    return f"{callers}{more}deployments:\n{''.join(sections)}"


async def test_a_gateway_takes_another_file_over_while_a_stream_runs(tmp_path: Path):
    release, path = asyncio.Event(), tmp_path / "gateway.yaml"
    root = {"authorization": "Bearer root"}
    rest = framed(delta(" world")) + framed(delta(finish="stop"))
    script = [
        Send(head()),
        Send(framed(delta("Hello"))),
        Wait(release),
        Send(rest + framed(b"data: [DONE]\n\n") + LAST_CHUNK),
    ]

    async with asyncio.timeout(LIMIT), SseServer(script, script) as server:
        path.write_text(configured(server.url, "m"), encoding="utf-8")
        async with gateway_process(path) as (gateway, client):
            asked = body(stream=True)
            async with client.stream("POST", CHAT, json=asked) as stream:
                pieces = stream.aiter_text()
                text = await anext(pieces)

                path.write_text(configured(server.url, "n"), encoding="utf-8")
                gateway.send(signal.SIGHUP)
                await gateway.prints("read anew: added: n; removed: m")
                models = (await client.get("/v1/models")).json()["data"]
                gone = await client.post(CHAT, json=body())
                path.write_text("deployments: {n: {slots: 0}}\n", encoding="utf-8")
                gateway.send(signal.SIGHUP)
                await gateway.prints("not taken over")
                path.write_text(configured(server.url, "n", "o"), encoding="utf-8")
                added = await client.post("/admin/reload", headers=root)
                moved = "server: {port: 1, drain: 1s}\n"
                path.write_text(configured(server.url, "n", more=moved), encoding="utf-8")
                refused = await client.post("/admin/reload", headers=root)

                release.set()
                text += "".join([piece async for piece in pieces])
            gateway.send(signal.SIGTERM)
            code = await gateway.ends()

    assert text_of(text.replace(": keep-alive\n\n", "")) == "Hello world"
    assert [model["id"] for model in models] == ["n"]
    assert gone.status_code == 404
    assert (added.status_code, added.json()["added"]) == (200, ["o"])
    assert refused.status_code == 422
    assert "server.drain" in refused.json()["error"]["message"]
    assert code == 0
