"""Restarts, poison and new generations, over scripted runners in virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from orchestrator.actors.runtime import ended, kill, tell
from orchestrator.actors.supervisor import Supervision
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    EngineUnhealthyError,
    InvalidRequestError,
    LoopBlockedError,
    WorkerStartError,
)
from orchestrator.events import Failed, Finished
from orchestrator.inflight import Inflight, Poisoned
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Stage
from tests.fakes.systems import ask, assert_at_rest, make_request, read, running

QUICK = Supervision(max_restarts=3, within=30.0, initial_backoff=0.1, max_backoff=1.0)


def answers() -> Stage:
    return Stage(lambda _request, _call: ["a", DONE], local=True)


def never_starts() -> Stage:
    return Stage(
        lambda _request, _call: [DONE], start_error=lambda start: OSError(f"no memory {start}")
    )


async def until(inflight: Inflight, reached: Callable[[], bool]) -> None:
    changed = asyncio.Event()
    inflight.observe(changed.set)
    while not reached():
        changed.clear()
        await changed.wait()


def poisoned(system: System) -> Poisoned:
    state = system.deployments["m"].inflight.state
    assert isinstance(state, Poisoned)
    return state


def test_a_system_that_is_closed_at_once_ends_all_the_same():
    async def main() -> int:
        stage = answers()
        async with running({"m": stage}, slots=4) as system:
            await system.aclose()
        return stage.closed

    assert run(0, main) == 4


async def test_a_system_that_is_closed_before_its_first_step_ends() -> None:
    stage = answers()
    async with asyncio.timeout(5):
        async with running({"m": stage}, ready=False, slots=4):
            pass

    assert stage.running == 0


def test_all_slots_of_a_dead_host_cost_one_fault():
    async def main() -> int:
        stage = answers()
        async with running({"m": stage}, slots=8, supervision=QUICK) as system:
            inflight = system.deployments["m"].inflight
            for death in range(3):
                stage.kill_host(RuntimeError(f"segfault {death}"))
                await until(inflight, lambda: inflight.live_slots == 0)
                await until(inflight, lambda: inflight.live_slots == 8)
        return stage.starts

    assert run(0, main) == 8 * 4


def test_while_the_slots_are_started_again_the_reason_is_what_ended_them():
    async def main() -> list[str | None]:
        stage = answers()
        async with running({"m": stage}, slots=2, supervision=QUICK) as system:
            deployment = system.deployments["m"]
            reasons = [deployment.health().reason]
            stage.kill_host(RuntimeError("SIGSEGV"))
            await until(deployment.inflight, lambda: deployment.inflight.live_slots == 0)
            await asyncio.sleep(QUICK.initial_backoff / 2)  # of the simulated clock
            reasons.append(deployment.health().reason)
            await until(deployment.inflight, lambda: deployment.inflight.live_slots == 2)
            reasons.append(deployment.health().reason)
            return reasons

    before, between, after = run(0, main)

    assert before is None
    assert between is not None
    assert "SIGSEGV" in between
    assert after is None


def test_one_death_too_many_poisons_with_the_last_cause():
    async def main() -> tuple[str, str]:
        stage = answers()
        async with running({"m": stage}, slots=2, supervision=QUICK) as system:
            inflight = system.deployments["m"].inflight
            for death in range(4):
                stage.kill_host(RuntimeError(f"segfault {death}"))
                await until(inflight, lambda: inflight.live_slots == 0)
                if death < 3:
                    await until(inflight, lambda: inflight.live_slots == 2)
            await until(inflight, lambda: isinstance(inflight.state, Poisoned))
            request = make_request()
            system.router.submit(request)
            answer = await read(request)
            assert isinstance(answer.ending, Failed)
            assert isinstance(answer.ending.error, EngineUnhealthyError)
            return poisoned(system).fault.stage, str(answer.ending.error)

    stage, text = run(0, main)

    assert stage == "restart budget"
    assert "segfault 3" in text


def test_the_same_error_object_again_and_again_is_no_endless_restart():
    async def main() -> int:
        same = WorkerStartError("out of memory")
        stage = Stage(lambda _request, _call: [DONE], start_error=lambda _: same)
        rules = Supervision(max_restarts=3, on_poison="stay")
        async with running({"m": stage}, slots=2, supervision=rules) as system:
            await until(
                system.deployments["m"].inflight,
                lambda: system.health()[0].state == "poisoned",
            )
        return stage.starts

    assert run(0, main) <= 2 * 5


def test_a_poisoned_deployment_serves_again_with_a_new_generation():
    async def main() -> tuple[int, str, object]:
        stage = Stage(
            lambda _request, _call: ["a", DONE],
            start_error=lambda start: OSError("no memory") if start < 4 else None,
        )
        async with running({"m": stage}, slots=1, supervision=QUICK) as system:
            inflight = system.deployments["m"].inflight
            await until(inflight, lambda: inflight.ready)
            request = make_request()
            system.router.submit(request)
            answer = await read(request)
            return inflight.generation, inflight.state_name, answer.ending

    assert run(0, main) == (2, "serving", DONE)


def test_a_generation_that_fails_too_is_followed_by_another():
    async def main() -> tuple[int, object]:
        # generations 1, 2 and 3 never get ready: 4 starts each
        stage = Stage(
            lambda _request, _call: ["a", DONE],
            start_error=lambda start: OSError(f"no memory {start}") if start < 12 else None,
        )
        async with running({"m": stage}, slots=1, supervision=QUICK) as system:
            inflight = system.deployments["m"].inflight
            await until(inflight, lambda: inflight.ready)
            request = make_request()
            system.router.submit(request)
            return inflight.generation, (await read(request)).ending

    assert run(0, main) == (4, DONE)


def test_a_deployment_that_never_gets_ready_stays_down_in_the_end():
    async def main() -> tuple[int, float | None, int]:
        stage = Stage(
            lambda _request, _call: [DONE], start_error=lambda start: OSError(f"no {start}")
        )
        async with running({"m": stage}, slots=1, supervision=QUICK) as system:
            health = system.deployments["m"].health
            await asyncio.sleep(3600)
            return health().generation, health().retry_after, stage.starts

    # max_restarts generations may follow the first; each starts 1 + max_restarts times
    assert run(0, main) == (4, None, 16)


def test_the_first_cause_survives_the_end_of_the_engine_it_killed():
    async def main() -> tuple[str, list[str]]:
        stage = Stage(
            lambda _request, _call: [DONE], start_error=lambda start: OSError(f"no memory {start}")
        )
        rules = Supervision(max_restarts=0, on_poison="stay")
        async with running({"m": stage}, slots=3, supervision=rules) as system:
            await asyncio.sleep(60)
            inflight = system.deployments["m"].inflight
            return poisoned(system).fault.describe(), [f.describe() for f in inflight.secondary]

    first, secondary = run(0, main)

    assert "no memory 0" in first
    assert secondary == []  # our own kills are no faults


async def test_a_supervisor_that_dies_poisons_and_keeps_its_reason() -> None:
    async with asyncio.timeout(5), running({"m": answers()}, slots=2) as system:
        deployment = system.deployments["m"]
        supervisor = deployment._supervisor
        assert supervisor is not None

        kill(supervisor)
        await until(deployment.inflight, lambda: not deployment.inflight.ready)
        request = make_request()
        system.router.submit(request)
        answer = await read(request)
        health = deployment.health()

    assert isinstance(answer.ending, Failed)
    assert answer.ending.error.code == "engine_unhealthy"
    assert health.state == "poisoned"
    assert "supervise" in str(health.reason)


async def test_a_poison_keeps_its_reason_after_the_supervisor_has_freed_all() -> None:
    async with asyncio.timeout(5), running({"m": answers()}, slots=2) as system:
        deployment = system.deployments["m"]
        assert deployment._supervisor is not None

        kill(deployment._supervisor)
        await ended(deployment._supervisor)

        assert deployment.health().state == "poisoned"


async def test_a_close_waits_for_a_worker_that_died_before_and_is_still_freeing() -> None:
    stage = answers()
    stage.close_gate = asyncio.Event()
    async with asyncio.timeout(5):
        async with running({"m": stage}, slots=1) as system:
            inflight = system.deployments["m"].inflight
            stage.kill_host(RuntimeError("segfault"))
            await until(inflight, lambda: inflight.live_slots == 0)
            closing = asyncio.create_task(system.aclose())
            asyncio.get_running_loop().call_later(0.05, stage.close_gate.set)
            await closing
            closed = stage.closed

    assert closed == 1


def test_a_generation_that_begins_while_draining_accepts_nothing():
    async def main() -> str:
        stage = answers()
        async with running(
            {"m": stage}, slots=1, supervision=Supervision(max_restarts=1)
        ) as system:
            inflight = system.deployments["m"].inflight
            stage.kill_host(RuntimeError("segfault"))
            await until(inflight, lambda: not inflight.ready)
            await until(inflight, lambda: inflight.ready)
            stage.kill_host(RuntimeError("another"))
            await until(inflight, lambda: inflight.state_name == "poisoned")
            inflight.drain()
            await asyncio.sleep(30)
            assert inflight.live_slots == 1
            request = make_request()
            system.router.submit(request)
            answer = await read(request)
            assert isinstance(answer.ending, Failed)
            return answer.ending.error.code

    assert run(0, main) == "draining"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1), OSError("disk")])
def test_a_start_that_fails_in_any_way_is_tried_again(error: BaseException):
    async def main() -> Finished | Failed:
        stage = Stage(
            lambda _request, _call: ["a", DONE],
            start_error=lambda start: error if start == 0 else None,
        )
        async with running({"m": stage}, slots=1, ready=False) as system:
            request = make_request(timeout=20)
            system.router.submit(request)
            return (await read(request)).ending

    assert run(0, main) == DONE


def test_a_start_that_hangs_is_given_up_after_its_time():
    async def main() -> str:
        stage = Stage(lambda _request, _call: [DONE], start_gate=asyncio.Event())
        rules = Supervision(max_restarts=0, on_poison="stay")
        async with running({"m": stage}, slots=1, start_timeout=60.0, supervision=rules) as system:
            return poisoned(system).fault.describe()

    assert "not ready within 60 s" in run(0, main)


def test_a_worker_that_dies_before_it_is_announced_leaves_no_ghost_slot():
    async def main() -> tuple[Finished | Failed, int]:
        stage = answers()
        async with running({"m": stage}, slots=1, ready=False) as system:
            inflight = system.deployments["m"].inflight
            stage.dead_on_arrival = 1
            request = make_request(timeout=20)
            system.router.submit(request)
            return (await read(request)).ending, inflight.live_slots

    for seed in range(20):
        assert run(seed, main, shuffle=True) == (DONE, 1)


@pytest.mark.parametrize("requests", [0, 5])
def test_an_engine_that_dies_is_a_poison_and_a_new_one_serves(requests: int):
    async def main() -> tuple[list[str], int, object]:
        stage = Stage(lambda _request, _call: ["a", 0.5, DONE])
        async with running({"m": stage}, slots=2, supervision=QUICK) as system:
            deployment = system.deployments["m"]
            victims = [make_request() for _ in range(requests)]
            readers = [asyncio.ensure_future(ask(system, request)) for request in victims]
            await asyncio.sleep(0.1)
            assert deployment._engine is not None
            tell(deployment._engine, "no message of an engine")
            endings = [(await reader).ending for reader in readers]
            await until(deployment.inflight, lambda: not deployment.inflight.ready)
            assert poisoned(system).fault.stage == "dispatch"
            await until(deployment.inflight, lambda: deployment.inflight.ready)
            answer = await ask(system, make_request())
            assert_at_rest(system, 2)
            codes = [ending.error.code for ending in endings if isinstance(ending, Failed)]
            return codes, deployment.inflight.generation, answer.ending

    assert run(0, main) == (["engine_unhealthy"] * requests, 2, DONE)


def test_later_faults_of_one_poison_cost_no_further_generation():
    async def main() -> tuple[int, float | None, str, int]:
        async with running({"m": answers()}, slots=2, supervision=QUICK) as system:
            deployment = system.deployments["m"]
            for number in range(10):
                deployment.poison("test", RuntimeError(f"fault {number}"))
            await until(deployment.inflight, lambda: not deployment.inflight.ready)
            await asyncio.sleep(0.5)
            health, later = deployment.health(), len(deployment.inflight.secondary)
            await until(deployment.inflight, lambda: deployment.inflight.ready)
            return deployment.inflight.generation, health.retry_after, str(health.reason), later

    generation, retry_after, reason, later = run(0, main)

    assert (generation, retry_after, later) == (2, 1.0, 9)
    assert "fault 0" in reason


@pytest.mark.parametrize(
    "cause",
    [InvalidRequestError("of another request"), LoopBlockedError(2.0), OSError("pipe")],
    ids=lambda cause: type(cause).__name__,
)
def test_whatever_kills_a_host_is_a_crash_of_the_worker_to_its_requests(cause: Exception):
    async def main() -> tuple[str, BaseException, bool]:
        stage = Stage(lambda _request, call: ["a", 1.0, DONE] if call == 0 else [DONE], local=True)
        async with running({"m": stage}, slots=1) as system:
            request = make_request()
            system.router.submit(request)
            await request.channel.receive()
            stage.kill_host(cause)
            ending = (await read(request)).ending
            assert isinstance(ending, Failed)
            later = await ask(system, make_request())
            return ending.error.code, ending.error.root_cause, later.ending == DONE

    assert run(0, main) == ("worker_crashed", cause, True)


def test_a_deployment_that_served_for_long_starts_its_backoff_anew():
    async def main() -> list[float | None]:
        waits: list[float | None] = []
        async with running({"m": answers()}, slots=1, supervision=QUICK) as system:
            deployment = system.deployments["m"]
            for served in (0.0, 0.0, 60.0, 0.0):
                await asyncio.sleep(served)
                deployment.poison("test", RuntimeError("on purpose"))
                await until(deployment.inflight, lambda: not deployment.inflight.ready)
                waits.append(deployment.health().retry_after)
                await until(deployment.inflight, lambda: deployment.inflight.ready)
        return waits

    assert run(0, main) == [1.0, 2.0, 1.0, 2.0]
