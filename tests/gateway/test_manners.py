"""Headers that are refused before anything of a request is read, and those that are passed by."""

import asyncio

import pytest

from orchestrator.callers.door import Door, Rules
from orchestrator.reading.references import Secret
from tests.fakes.scripted import DONE
from tests.gateway.serving import CHAT, body, plays, serving

PAGE = "https://evil.example"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (PAGE, 403),
        ("http://evil.example:8080", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        ("", 403),
        ("http://localhost:3000", 200),
        ("http://app.localhost", 200),
        ("http://127.0.0.1:8080", 200),
        ("http://[::1]:8080", 200),
    ],
)
async def test_a_web_page_from_elsewhere_can_not_ask_where_nobody_needs_a_key(
    origin: str, status: int
) -> None:
    stage, sent = plays("a", DONE), {"origin": origin, "content-type": "text/plain"}
    async with asyncio.timeout(5), serving({"m": stage}) as served:
        answer = await served.client.post(CHAT, json=body(), headers=sent)

    assert answer.status_code == status
    assert len(stage.calls) == (status == 200)


@pytest.mark.parametrize(
    ("door", "status"),
    [
        (Door(Rules(admin_key=Secret("root"))), 403),
        (Door(Rules(allow_anonymous=True)), 200),
        (Door(Rules(anonymous_concurrent=9)), 403),
    ],
)
async def test_who_invites_everybody_invites_web_pages_too(door: Door, status: int) -> None:
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}, door=door) as served:
        answer = await served.client.post(CHAT, json=body(), headers={"origin": PAGE})

    assert answer.status_code == status


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("authorization", 400),
        ("X-Api-Key", 400),
        ("idempotency-key", 400),
        ("x-forwarded-for", 200),
    ],
)
async def test_a_header_that_decides_something_may_not_come_twice(name: str, status: int) -> None:
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        twice = [(name, "a"), (name, "b")]
        answer = await served.client.post(CHAT, json=body(), headers=twice)

    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["param"] == name.lower()


@pytest.mark.parametrize(("coding", "status"), [("gzip", 400), ("br", 400), ("identity", 200)])
async def test_a_compressed_body_is_refused_by_its_header(coding: str, status: int) -> None:
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        answer = await served.client.post(CHAT, json=body(), headers={"content-encoding": coding})

    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["param"] == "content-encoding"


@pytest.mark.parametrize("name", ["Upgrade", "upgrade", "UPGRADE"])
async def test_a_client_that_offers_another_protocol_is_answered_in_this_one(name: str) -> None:
    offer = {name: "h2c", "connection": "Upgrade, HTTP2-Settings", "http2-settings": "AAMA"}
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        first = await served.client.post(CHAT, json=body(), headers=offer)
        again = await served.client.post(CHAT, json=body())

    assert [first.status_code, again.status_code] == [200, 200]
    assert served.connections <= 1


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_a_refusal_of_a_ranking_has_a_message_where_coheres_clients_look(path: str) -> None:
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        asked = await served.client.post(path, json={"model": "m", "documents": ["a"]})
        got = await served.client.get(path)

    for answer, status in ((asked, 400), (got, 405)):
        told = answer.json()
        assert answer.status_code == status
        assert told["message"] == told["error"]["message"]
        assert told["id"] == answer.headers["x-request-id"]
