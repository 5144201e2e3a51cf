"""Other deployments and routes while requests run: nobody who came before notices."""

import asyncio

import pytest

from orchestrator.errors import ReloadRefusedError, UpstreamConnectError
from orchestrator.events import Finished
from orchestrator.plan import DeploymentPlan
from orchestrator.policies.retry import RetrySettings
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Stage, always
from tests.fakes.systems import ask, assert_at_rest, codes, make_request, read, running

ONCE = RetrySettings(max_attempts=1)


def planned(name: str, stage: Stage) -> DeploymentPlan:
    return DeploymentPlan(name=name, factory=stage.factory(), slots=1)


async def change(system: System, *plans: DeploymentPlan, **routes: list[str]) -> None:
    fresh = await system.prepare(plans)
    system.change_over(fresh, plans, routes)


async def retired(system: System) -> None:
    while system.retiring:  # noqa: ASYNC110 - a closed deployment has no event
        await asyncio.sleep(0)


async def test_an_answer_that_runs_goes_on_where_a_changed_deployment_was_before():
    hold = asyncio.Event()
    old, new = Stage(lambda _request, _call: ["a", hold, "b", DONE]), always("new", DONE)

    async with asyncio.timeout(5), running({"m": old}, slots=1) as system:
        request, waits = make_request(), make_request()
        system.router.submit(request)
        system.router.submit(waits)
        chunks, _ = await request.channel.receive()
        await change(system, planned("m", new))
        later = await ask(system, make_request())
        both_there = len(system.retiring), old.closed
        hold.set()
        answer, second = await read(request), await read(waits)
        await retired(system)
        assert_at_rest(system, slots=1)

    assert chunks[0].text + answer.text == "ab"
    assert (second.text, later.text) == ("ab", "new")
    assert both_there == (1, 0)
    assert old.closed == 1


async def test_who_came_before_may_still_fail_over_to_a_deployment_that_is_taken_out():
    hold = asyncio.Event()
    first = Stage(lambda _request, _call: [hold, UpstreamConnectError("gone")])
    second = always("second", DONE)

    async with (
        asyncio.timeout(5),
        running({"a": first, "b": second}, {"r": ["a", "b"]}, slots=1, retry=ONCE) as system,
    ):
        request = make_request("r")
        system.router.submit(request)
        while not first.calls:  # noqa: ASYNC110 - a call has no event
            await asyncio.sleep(0)
        await change(system, planned("c", always("third", DONE)), r=["c"])
        hold.set()
        answer, later = await read(request), await ask(system, make_request("r"))
        await retired(system)

    assert (answer.text, later.text) == ("second", "third")
    assert (first.closed, second.closed) == (1, 1)


async def test_a_deployment_that_stays_keeps_its_engine_and_what_was_learnt_of_it():
    stays, comes = always("stays", DONE), always("comes", DONE)

    async with asyncio.timeout(5), running({"a": stays}, slots=1) as system:
        known = system.router.route("a").deployments[0]
        plan = system.deployments["a"].plan
        await change(system, plan, planned("b", comes), r=["b", "a"])
        names = set(system.router.routes)
        answer = await ask(system, make_request("r"))
        after = system.router.route("a").deployments[0]

    assert names == {"a", "b", "r"}
    assert answer.text == "comes"
    assert (after.inflight, after.latency) == (known.inflight, known.latency)
    assert stays.starts == 1


async def test_a_new_deployment_that_does_not_get_ready_changes_nothing():
    old = always("old", DONE)
    broken = Stage(lambda _request, _call: [DONE], start_error=lambda _: RuntimeError("no model"))

    async with asyncio.timeout(5), running({"m": old}, slots=1) as system:
        plans = [planned("m", always("new", DONE)), planned("n", broken)]
        with pytest.raises(ReloadRefusedError, match=r"deployments\.n: .*no model"):
            await system.prepare(plans)
        answer = await ask(system, make_request())
        names = set(system.router.routes)

    assert answer.text == "old"
    assert names == {"m"}
    assert broken.closed == broken.starts


async def test_a_drain_lets_those_finish_whose_deployment_is_out_of_the_routes_already():
    hold = asyncio.Event()
    old = Stage(lambda _request, _call: ["a", hold, "b", DONE])

    async with asyncio.timeout(5), running({"m": old}, slots=1) as system:
        request = make_request()
        system.router.submit(request)
        await request.channel.receive()
        await change(system, planned("m", always("new", DONE)))
        draining = asyncio.create_task(system.drain(5))
        await asyncio.sleep(0)
        hold.set()
        answer = await read(request)
        await draining

    assert isinstance(answer.ending, Finished)
    assert old.closed == 1


async def test_an_end_in_the_middle_of_a_change_ends_everybody_once_and_closes_all():
    old, new = Stage(lambda _request, _call: ["a", asyncio.Event()]), always("new", DONE)

    async with asyncio.timeout(5):
        async with running({"m": old}, slots=1) as system:
            request = make_request()
            system.router.submit(request)
            await request.channel.receive()
            await change(system, planned("m", new))
        answer = await read(request)

    assert codes([answer]) == {"draining": 1}
    assert (old.closed, new.closed) == (1, 1)


async def test_many_changes_under_load_lose_nobody():
    made: list[Stage] = []

    async with asyncio.timeout(5), running({"m": always("a", DONE)}, slots=1) as system:
        requests = [make_request() for _ in range(200)]
        for number, request in enumerate(requests):
            system.router.submit(request)
            if number % 20 == 0:
                made.append(Stage(lambda _request, _call: ["a", 0.001, "b", DONE]))
                await change(system, planned("m", made[-1]))
        answers = [await read(request) for request in requests]
        await retired(system)

    assert codes(answers) == {"ok": 200}
    assert all(stage.closed == stage.starts == 1 for stage in made)
