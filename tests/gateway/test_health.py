"""The probes tell the truth, in every state, and never wait in a queue."""

import asyncio
import re

import pytest

from orchestrator.actors.supervisor import Supervision
from orchestrator.errors import (
    UpstreamRateLimitedError,
    UpstreamServerError,
    WorkerCrashedError,
    WorkerStartError,
)
from orchestrator.plan import BreakerSettings
from tests.fakes.scripted import DONE, Stage
from tests.gateway.serving import plays, serving, until

STAYS_DOWN = Supervision(max_restarts=0, on_poison="stay")


def make_stage() -> Stage:
    return plays("a", DONE, local=True)


async def test_a_gateway_that_serves_is_live_and_ready() -> None:
    async with asyncio.timeout(5), serving({"m": make_stage()}, {"r": ["m"]}, slots=3) as served:
        live = await served.client.get("/livez")
        ready = await served.client.get("/readyz")

    assert (live.status_code, live.json()) == (200, {"live": True})
    assert ready.status_code == 200
    page = ready.json()
    assert page["ready"]
    assert page["routes"] == {"r": True, "m": True}
    assert page["deployments"] == [
        {
            "name": "m",
            "state": "serving",
            "ready": True,
            "live_slots": 3,
            "slots": 3,
            "generation": 1,
            "breaker": "closed",
            "breaker_forced": False,
            "queued": 0,
            "inflight": 0,
            "reason": None,
            "fault_id": None,
        }
    ]


async def test_one_dead_deployment_takes_no_other_out_of_service() -> None:
    dead, sound = make_stage(), make_stage()

    async with (
        asyncio.timeout(5),
        serving({"a": dead, "b": sound}, {"r": ["a", "b"]}, supervision=STAYS_DOWN) as served,
    ):
        dead.kill_host(WorkerCrashedError("segmentation fault"))
        await until(lambda: served.system.health()[0].state == "poisoned")
        whole = await served.client.get("/readyz")
        alone = await served.client.get("/readyz", params={"route": "a"})
        route = await served.client.get("/readyz", params={"route": "r"})
        live = await served.client.get("/livez")

    assert whole.status_code == 200
    assert whole.json()["routes"] == {"r": True, "a": False, "b": True}
    assert alone.status_code == 503
    assert [state["name"] for state in alone.json()["deployments"]] == ["a"]
    assert "segmentation fault" in alone.json()["deployments"][0]["reason"]
    assert alone.json()["deployments"][0]["fault_id"]
    assert route.status_code == 200
    assert live.status_code == 200


async def test_a_process_that_cannot_help_itself_is_not_live() -> None:
    stage = make_stage()

    async with asyncio.timeout(5), serving({"m": stage}, supervision=STAYS_DOWN) as served:
        stage.kill_host(WorkerCrashedError("gone"))
        await until(lambda: served.system.health()[0].state == "poisoned")
        live = await served.client.get("/livez")

    assert (live.status_code, live.json()) == (503, {"live": False})


async def test_a_poisoned_engine_that_comes_back_stays_live_and_says_when() -> None:
    stage = make_stage()
    rules = Supervision(max_restarts=1, initial_backoff=0.001)

    async with asyncio.timeout(5), serving({"m": stage}, supervision=rules) as served:
        for _ in range(2):
            await until(lambda: len(stage.deaths) == 8)
            stage.kill_host(WorkerCrashedError("again"))
        await until(lambda: served.system.health()[0].state == "poisoned")
        ready = await served.client.get("/readyz")
        live = await served.client.get("/livez")

    assert ready.status_code == 503
    assert int(ready.headers["retry-after"]) >= 1
    assert live.status_code == 200


async def test_a_deployment_without_a_live_slot_is_not_ready() -> None:
    stage = Stage(
        lambda _request, _call: [DONE], start_error=lambda _: WorkerStartError("no such model")
    )
    rules = Supervision(max_restarts=2, initial_backoff=0.001)

    async with asyncio.timeout(5), serving({"m": stage}, slots=1, supervision=rules) as served:
        ready = await served.client.get("/readyz")
        refused = await served.ask()

    assert ready.status_code == 503
    assert "no such model" in ready.json()["deployments"][0]["reason"]
    assert refused.status_code == 503
    assert "no such model" in refused.json()["error"]["message"]


async def test_a_storm_of_probes_at_a_poisoned_engine_is_answered() -> None:
    stage = make_stage()

    async with asyncio.timeout(10), serving({"m": stage}, supervision=STAYS_DOWN) as served:
        stage.kill_host(WorkerCrashedError("gone"))
        await until(lambda: served.system.health()[0].state == "poisoned")
        answers = await asyncio.gather(*(served.client.get("/readyz") for _ in range(100)))

    assert [answer.status_code for answer in answers] == [503] * 100
    assert stage.calls == []


async def test_load_alone_makes_nothing_unready() -> None:
    hold = asyncio.Event()
    stage = plays(hold, "a", DONE)

    async with asyncio.timeout(5), serving({"m": stage}, slots=1, queue_capacity=2) as served:
        asking = [asyncio.create_task(served.ask())]
        await until(lambda: stage.running == 1)
        asking += [asyncio.create_task(served.ask()) for _ in range(3)]
        await until(lambda: any(asked.done() for asked in asking))
        ready = await served.client.get("/readyz")
        hold.set()
        answers = await asyncio.gather(*asking)

    assert ready.status_code == 200
    assert ready.json()["deployments"][0]["queued"] == 2
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 429]


async def test_a_pause_that_nobody_waits_for_makes_a_deployment_unready_and_says_so() -> None:
    limited = plays(UpstreamRateLimitedError("slow down", retry_after=1e6))

    async with (
        asyncio.timeout(5),
        serving({"a": limited, "b": make_stage()}, {"r": ["a", "b"]}) as served,
    ):
        await served.ask(model="a")
        alone = await served.client.get("/readyz", params={"route": "a"})
        whole = await served.client.get("/readyz")

    assert alone.status_code == 503
    assert 3590 <= int(alone.headers["retry-after"]) <= 3600
    state = alone.json()["deployments"][0]
    assert (state["ready"], state["state"]) == (False, "serving")
    assert re.fullmatch(r"paused by the provider's rate limit for 3\d{3} s more", state["reason"])
    assert whole.status_code == 200
    assert whole.json()["routes"] == {"r": True, "a": False, "b": True}


async def test_a_short_pause_is_told_and_leaves_a_deployment_ready() -> None:
    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        limiter = served.system.deployments["m"].gates.limiter
        limiter.heed(5.0, asyncio.get_running_loop().time())
        ready = await served.client.get("/readyz")

    state = ready.json()["deployments"][0]
    assert (ready.status_code, state["ready"]) == (200, True)
    assert state["reason"] == "paused by the provider's rate limit for 5 s more"


async def test_hlt_9_with_every_breaker_open_nothing_is_ready_and_the_page_says_why() -> None:
    broken = plays(UpstreamServerError("500"))
    stages = {"a": broken, "b": make_stage()}
    async with (
        asyncio.timeout(5),
        serving(stages, breaker=BreakerSettings(failure_threshold=1)) as served,
    ):
        await served.ask(model="a")
        alone = await served.client.get("/readyz", params={"route": "a"})
        whole = await served.client.get("/readyz")
        live = await served.client.get("/livez")
        scraped = await served.client.get("/metrics")

    assert (alone.status_code, whole.status_code, live.status_code) == (503, 200, 200)
    assert 29 <= int(alone.headers["retry-after"]) <= 30
    state = alone.json()["deployments"][0]
    assert (state["state"], state["ready"], state["breaker"]) == ("serving", False, "open")
    assert re.fullmatch(
        r"the circuit breaker of a is open; next probe in \d+\.\d s", state["reason"]
    )
    assert 'orchestrator_ready{deployment="a"} 0.0' in scraped.text
    assert 'orchestrator_ready{deployment="b"} 1.0' in scraped.text


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_a_probe_that_asks_for_the_head_alone_gets_no_body(path: str) -> None:
    async with asyncio.timeout(5), serving({"m": make_stage()}) as served:
        answer = await served.client.head(path)
        whole = await served.client.get(path)

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == whole.headers["content-length"]
