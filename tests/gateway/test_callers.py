"""Who is let in, over HTTP: with official clients' headers, in each API's own shape of errors."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.callers.door import Door, Rules
from orchestrator.callers.keyring import Keyring
from orchestrator.callers.making import NewKey, create_key
from orchestrator.reading.references import Secret
from orchestrator.request import Priority
from tests.fakes.scripted import DONE
from tests.gateway.serving import CHAT, body, plays, serving, until

MESSAGES = "/v1/messages"


def clock() -> float:
    return 1_700_000_000.0


def key_of(folder: Path, **members: object) -> str:
    wanted = msgspec.convert({"caller": "ann"} | members, NewKey)
    return create_key(folder / "keys.json", wanted, now=clock())[1]


def door_of(folder: Path, **options: Any) -> Door:
    return Door(Rules(keyring=Keyring(folder / "keys.json", clock), **options))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Basic abc"}, 401),
        (bearer("sk-orc-000000000000-guess"), 401),
        (bearer("a.b.c"), 401),
        ({"authorization": "Bearer \xe9\xff"}, 401),
    ],
)
async def test_without_a_valid_key_nothing_is_answered(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    key_of(tmp_path)
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    async with (
        asyncio.timeout(5),
        serving({"m": plays("a", DONE)}, door=door_of(tmp_path)) as served,
    ):
        chat = await served.client.post(CHAT, json=body(), headers=raw)
        models = await served.client.get("/v1/models", headers=raw)
        document = await served.client.get("/openapi.json", headers=raw)
        nowhere = await served.client.get("/nowhere", headers=raw)

    for response in (chat, models, document, nowhere):
        assert response.status_code == status
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert "x-request-id" in response.headers


async def test_probes_need_no_key_and_show_none(tmp_path: Path) -> None:
    key = key_of(tmp_path)
    async with (
        asyncio.timeout(5),
        serving({"m": plays("a", DONE)}, door=door_of(tmp_path)) as served,
    ):
        live = await served.client.get("/livez")
        ready = await served.client.get("/readyz")

    assert (live.status_code, ready.status_code) == (200, 200)
    assert key.split("-")[2] not in live.text + ready.text


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
async def test_a_valid_key_makes_the_request_its_callers(tmp_path: Path, header: str) -> None:
    key = key_of(tmp_path, priority="high")
    seen: list[tuple[str, Priority]] = []
    stage = plays("a", DONE)
    stage.inspect = lambda request: seen.append((request.caller, request.priority))
    headers = {header: f"Bearer {key}" if header == "authorization" else key}
    async with asyncio.timeout(5), serving({"m": stage}, door=door_of(tmp_path)) as served:
        for members in ({}, {"priority": "critical"}, {"priority": "normal"}):
            response = await served.client.post(CHAT, json=body(**members), headers=headers)
            assert response.status_code == 200

    assert seen == [("ann", Priority.HIGH), ("ann", Priority.HIGH), ("ann", Priority.NORMAL)]


async def test_a_key_sees_and_asks_only_its_own_models(tmp_path: Path) -> None:
    key = key_of(tmp_path, routes=["a"])
    stages = {"a": plays("a", DONE), "b": plays("b", DONE)}
    async with asyncio.timeout(5), serving(stages, door=door_of(tmp_path)) as served:
        client, headers = served.client, bearer(key)
        listed = (await client.get("/v1/models", headers=headers)).json()
        own = await client.post(CHAT, json=body(model="a"), headers=headers)
        refused = [
            await client.post(CHAT, json=body(model=model), headers=headers)
            for model in ("b", "nowhere")
        ]
        refused += [
            await client.get(f"/v1/models/{model}", headers=headers) for model in ("b", "nowhere")
        ]

    assert [model["id"] for model in listed["data"]] == ["a"]
    assert own.status_code == 200
    assert {response.status_code for response in refused} == {403}
    assert len({response.text for response in refused}) == 1


async def test_each_api_tells_a_missing_key_in_its_own_shape(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(5),
        serving({"m": plays("a", DONE)}, door=door_of(tmp_path)) as served,
    ):
        responses = [
            await served.client.post(MESSAGES, json={}),
            await served.client.get(MESSAGES),
            await served.client.post(f"{MESSAGES}/nowhere", json={}),
        ]

    for response in responses:
        assert response.status_code == 401
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == "authentication_error"


async def test_a_busy_key_is_429_and_another_is_not(tmp_path: Path) -> None:
    busy, free = key_of(tmp_path, max_concurrent=1), key_of(tmp_path, caller="bob")
    gate = asyncio.Event()
    async with (
        asyncio.timeout(5),
        serving({"m": plays("a", gate, DONE)}, door=door_of(tmp_path)) as served,
    ):
        async with served.client.stream(
            "POST", CHAT, json=body(stream=True), headers=bearer(busy)
        ) as stream:
            assert stream.status_code == 200
            again = await served.client.post(CHAT, json=body(), headers=bearer(busy))
            gate.set()
            other = await served.client.post(CHAT, json=body(), headers=bearer(free))
            await stream.aread()
        later = await served.client.post(CHAT, json=body(), headers=bearer(busy))

    assert (again.status_code, again.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert again.headers["retry-after"] == "1"
    assert (other.status_code, later.status_code) == (200, 200)


async def test_where_anybody_may_come_a_foreign_key_does_no_harm(tmp_path: Path) -> None:
    key = key_of(tmp_path)
    door = door_of(tmp_path, allow_anonymous=True)
    seen: list[str] = []
    stage = plays("a", DONE)
    stage.inspect = lambda request: seen.append(request.caller)
    async with asyncio.timeout(5), serving({"m": stage}, door=door) as served:
        for headers in ({}, bearer("none"), bearer(key)):
            await served.client.post(CHAT, json=body(), headers=headers)
        guessed = await served.client.post(CHAT, json=body(), headers=bearer("sk-orc-1-2"))

    assert seen == ["", "", "ann"]
    assert guessed.status_code == 401


async def test_metrics_and_admin_are_for_administrators(tmp_path: Path) -> None:
    plain, admin = key_of(tmp_path), key_of(tmp_path, admin=True)
    door = door_of(tmp_path, admin_key=Secret("root"))
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}, door=door) as served:
        statuses = {
            (path, name): (
                await served.client.get(path, headers=bearer(key) if key else {})
            ).status_code
            for path in ("/metrics", "/admin/deployments", "/admin/keys", "/admin/nowhere")
            for name, key in (("none", ""), ("plain", plain), ("admin", admin), ("root", "root"))
        }

    for path in ("/metrics", "/admin/deployments", "/admin/keys"):
        assert [statuses[path, name] for name in ("none", "plain", "admin", "root")] == [
            *(401, 403),
            *(200, 200),
        ]
    assert [statuses["/admin/nowhere", name] for name in ("none", "admin")] == [401, 404]


@pytest.mark.parametrize("since_ms", ["9" * 5000, str(1 << 63), "-1", "1e3", "\u0663", ""])
async def test_a_time_that_is_none_is_a_400_that_names_it(tmp_path: Path, since_ms: str) -> None:
    door, root = door_of(tmp_path, admin_key=Secret("root")), bearer("root")
    async with (
        asyncio.timeout(5),
        serving({"m": plays("a", DONE)}, door=door, ledger=tmp_path / "u.sqlite3") as served,
    ):
        answer = await served.client.get(
            "/admin/usage", params={"since_ms": since_ms}, headers=root
        )

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since_ms")


async def test_an_administrator_holds_a_breaker_open_and_lets_it_go(tmp_path: Path) -> None:
    door, root = door_of(tmp_path, admin_key=Secret("root")), bearer("root")
    key, stage = bearer(key_of(tmp_path)), plays("a", DONE)
    async with asyncio.timeout(5), serving({"m": stage}, door=door) as served:
        client = served.client

        async def put(order: object, name: str = "m", by: dict[str, str] = root) -> Any:
            path = f"/admin/deployments/{name}/breaker"
            return await client.put(path, json=order, headers=by)

        held = await put({"state": "open"})
        refused = await client.post(CHAT, json=body(), headers=key)
        unready = await client.get("/readyz")
        scraped = await client.get("/metrics", headers=root)
        calls = len(stage.calls)
        closed = await put({"state": "closed"})
        let_go = await put({"state": "auto"})
        served_again = await client.post(CHAT, json=body(), headers=key)
        bad = [await put({"state": "ajar"}), await put({}), await put({"state": "open"}, "nowhere")]
        others = await put({"state": "open"}, by=key)

    assert (held.status_code, held.json()["breaker"], held.json()["ready"]) == (200, "open", False)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "circuit_open")
    assert calls == 0
    assert unready.status_code == 503
    reason = "the circuit breaker of m is open; an operator holds it so"
    assert unready.json()["deployments"][0]["reason"] == reason
    assert 'orchestrator_breaker_forced{deployment="m"} 1.0' in scraped.text
    assert (closed.json()["breaker"], closed.json()["breaker_forced"]) == ("closed", True)
    assert (let_go.json()["breaker"], let_go.json()["breaker_forced"]) == ("closed", False)
    assert served_again.status_code == 200
    assert [answer.status_code for answer in bad] == [400, 400, 400]
    assert others.status_code == 403


async def test_an_administrator_makes_and_revokes_keys(tmp_path: Path) -> None:
    door, root = door_of(tmp_path, admin_key=Secret("root")), bearer("root")
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}, door=door) as served:
        client = served.client
        made = await client.post("/admin/keys", json={"caller": "eve"}, headers=root)
        bad = await client.post("/admin/keys", json={"colour": "red"}, headers=root)
        endless = await client.post(
            "/admin/keys", json={"caller": "eve", "expires_in_days": 1e308}, headers=root
        )
        key = made.json()["key"]
        served_with_it = await client.post(CHAT, json=body(), headers=bearer(key))
        listed = await client.get("/admin/keys", headers=root)
        revoked = await client.delete(f"/admin/keys/{made.json()['id']}", headers=root)
        refused = await client.post(CHAT, json=body(), headers=bearer(key))
        unknown = await client.delete("/admin/keys/none", headers=root)
        usage = await client.get("/admin/usage", headers=root)

    assert made.status_code == 201
    assert served_with_it.status_code == 200
    assert (listed.json()[0]["caller"], listed.json()[0].get("digest")) == ("eve", None)
    assert key not in listed.text
    assert revoked.json()["revoked_at"] is not None
    assert (refused.status_code, bad.status_code, unknown.status_code) == (401, 400, 400)
    assert (endless.status_code, endless.json()["error"]["param"]) == (400, "expires_in_days")
    assert (usage.status_code, usage.json()["error"]["code"]) == (400, "invalid_request")


async def test_requests_without_a_key_have_a_bound_of_their_own_where_no_keys_are_configured() -> (
    None
):
    gate, door = asyncio.Event(), Door(Rules(anonymous_concurrent=1))
    stage = plays("a", gate, DONE)
    priorities: list[Priority] = []
    stage.inspect = lambda request: priorities.append(request.priority)

    async with asyncio.timeout(5), serving({"m": stage}, door=door) as served:
        first = asyncio.create_task(served.ask())
        await until(lambda: stage.running == 1)
        refused = await served.ask()
        gate.set()
        answered = await first
        after = await served.ask(priority="high")

    assert not door.asks
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "without a key" in refused.json()["error"]["message"]
    assert (answered.status_code, after.status_code) == (200, 200)
    assert priorities == [Priority.NORMAL, Priority.HIGH]


async def test_a_key_that_is_wrong_in_any_way_gets_one_answer_whatever_exists(
    tmp_path: Path,
) -> None:
    right = create_key(tmp_path / "keys.json", NewKey(caller="ann"), now=0)[1]
    door = door_of(tmp_path, admin_key=Secret("root" * 8))
    wrong = [
        right[:-1] + "_",
        right[:20],
        f"sk-orc-{'0' * 12}-x",
        "root" * 7,
        "x" * 300,
        "-",
        "sk-orc-",
    ]
    paths = ["/admin/keys", "/metrics", "/v1/models", "/v1/models/m", "/v1/models/none"]
    told: set[tuple[int, str]] = set()

    async with asyncio.timeout(10), serving({"m": plays("a", DONE)}, door=door) as served:
        for key in wrong:
            headers = {"authorization": f"Bearer {key}"}
            answers = [await served.client.get(path, headers=headers) for path in paths]
            answers += [
                await served.client.post(CHAT, json=body(model=model), headers=headers)
                for model in ("m", "none")
            ]
            told |= {(answer.status_code, answer.text) for answer in answers}

    assert [status for status, _ in told] == [401]
