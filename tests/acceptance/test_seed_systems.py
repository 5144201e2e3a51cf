"""The runs in which the ancestors of this project failed, with the figures that are right.

The letters are those of the list of observed runs: what happened there stands in a comment, what
must happen here in the assertions. All of them go through the real engine, workers and supervisor
over scripted runners; those in which time matters run in virtual time.
"""

import asyncio
import random
from collections import Counter

import pytest

from orchestrator.actors.supervisor import Supervision
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    OrchestratorError,
    RequestCanceledError,
    UpstreamServerError,
)
from orchestrator.events import Failed
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from tests.fakes.scripted import DONE, Stage, always
from tests.fakes.systems import (
    Answer,
    ask,
    ask_all,
    assert_at_rest,
    codes,
    error_of,
    make_request,
    read,
    running,
)

ONCE = RetrySettings(max_attempts=1)
GONE = Failed(RequestCanceledError("the caller went away"))


@pytest.mark.parametrize(("slots", "load", "sent"), [(8, 2.4, 387), (8, 0.8, 138), (4, 3.0, 474)])
def test_a_work_spreads_over_all_slots_and_all_of_it_is_done(
    slots: int, load: float, sent: int
) -> None:
    # there: 175 of 387 done, 153 of them by one worker of eight
    async def main() -> tuple[Counter[str], dict[int, int], float]:
        chance = random.Random(sent)
        loop = asyncio.get_running_loop()
        mean = 0.05
        stage = Stage(lambda _request, _call: [chance.expovariate(1 / mean), "a", DONE])
        async with running({"m": stage}, slots=slots) as system:
            requests: list[PriorityRequest] = []
            for _ in range(sent):
                await asyncio.sleep(chance.expovariate(load / mean))
                requests.append(make_request())
                system.router.submit(requests[-1])
                health = system.health()[0]
                assert health.live_slots == slots
                assert stage.running <= slots
            answers = [await read(request) for request in requests]
            await asyncio.sleep(1)
            assert_at_rest(system, slots)
            waits = [record.queued_for for request in requests for record in request.attempts]
            assert loop.time() > 0
        return codes(answers), stage.served_by, sorted(waits)[len(waits) // 2]

    outcome, served_by, median_wait = run(0, main)

    assert outcome == {"ok": sent}
    assert len(served_by) == slots
    assert min(served_by.values()) >= 0.5 * sent / slots  # slots take turns, none is left out
    assert median_wait < 0.05


@pytest.mark.parametrize("crash", [SystemExit(1), asyncio.CancelledError(), KeyboardInterrupt()])
@pytest.mark.parametrize("held", [False, True])
def test_b_a_worker_that_dies_costs_no_other_request(crash: BaseException, held: bool) -> None:
    # there: one panic among 101 requests left 16 hanging, 78 refused, 3 answered
    async def main() -> tuple[Counter[str], int]:
        stage = Stage(
            lambda request, call: (
                ["a", 0.01, crash]
                if request.request_id == "victim" and call < 20
                else ["a", 0.01, DONE]
            )
        )
        async with running({"m": stage}, slots=4, queue_capacity=200) as system:
            requests = [make_request() for _ in range(100)]
            requests.insert(10, make_request(request_id="victim", held=held))
            readers = [asyncio.ensure_future(ask(system, request)) for request in requests]
            answers = [await reader for reader in readers]
            await asyncio.sleep(2)
            assert_at_rest(system, 4)
        return codes(answers), stage.starts

    outcome, starts = run(0, main)

    # what was delivered is not sent again; a caller who was given nothing never learns of it
    assert outcome == ({"ok": 101} if held else {"ok": 100, "worker_crashed": 1})
    assert starts == 5


def test_b_sixty_requests_one_after_another_survive_one_death_each_ten() -> None:
    # there: 3 closed without an ending, 16 timed out in the queue, 37 refused, 4 ok
    async def main() -> Counter[str]:
        stage = always("a", DONE, local=True)
        rules = Supervision(max_restarts=100)
        async with running({"m": stage}, slots=4, supervision=rules) as system:
            answers: list[Answer] = []
            for number in range(60):
                if number % 10 == 5:
                    stage.kill_host(RuntimeError(f"panic {number}"))
                answers.append(await ask(system, make_request()))
            await asyncio.sleep(30)
            assert_at_rest(system, 4)
        return codes(answers)

    assert run(0, main) == {"ok": 60}


def test_b_with_no_slot_left_admission_says_503_and_never_429() -> None:
    async def main() -> tuple[str, list[tuple[str, int]]]:
        stage = Stage(lambda _request, _call: [SystemExit(1)])
        rules = Supervision(max_restarts=3, on_poison="stay")
        retry = RetrySettings(max_attempts=10, initial_backoff=0.01, max_backoff=0.02)
        async with running(
            {"m": stage}, slots=2, queue_capacity=2, supervision=rules, retry=retry
        ) as system:
            first = await error_of(system, make_request())
            later = [await error_of(system, make_request()) for _ in range(20)]
        return first.code, [(error.code, error.status_code) for error in later]

    first, later = run(0, main)
    assert first == "worker_crashed"  # what its attempts failed with came before the poison
    assert set(later) == {("engine_unhealthy", 503)}


def test_e_an_error_in_midstream_never_doubles_a_word() -> None:
    # there: the client saw "The cat The cat sat" and a finish
    async def main() -> tuple[str, str, int]:
        stage = Stage(
            lambda _request, call: (
                ["The", " cat", 0.1, UpstreamServerError("reset by peer")]
                if call == 0
                else ["The", " cat", " sat", DONE]
            )
        )
        async with running({"m": stage}, slots=1) as system:
            answer = await ask(system, make_request())
            assert isinstance(answer.ending, Failed)
            return answer.text, answer.ending.error.message, len(stage.calls)

    assert run(0, main) == ("The cat", "reset by peer", 1)


def test_e_a_caller_who_read_nothing_yet_gets_one_whole_answer() -> None:
    async def main() -> tuple[str, int]:
        stage = Stage(
            lambda _request, call: (
                ["The", " cat", UpstreamServerError("reset by peer")]
                if call == 0
                else ["The", " cat", " sat", DONE]
            )
        )
        async with running({"m": stage}, slots=1) as system:
            answer = await ask(system, make_request(held=True))
            return answer.text, len(stage.calls)

    assert run(0, main) == ("The cat sat", 2)


def test_f_a_live_request_runs_next_after_six_callers_have_gone() -> None:
    # there: answered after 713 ms and 7 upstream calls
    async def main() -> tuple[float, list[str]]:
        loop = asyncio.get_running_loop()
        stage = always(0.1, "a", DONE)
        async with running({"m": stage}, slots=1) as system:
            dead = [make_request(request_id=f"dead {number}") for number in range(6)]
            for request in dead:
                system.router.submit(request)
            await asyncio.sleep(0.05)
            for request in dead:
                request.channel.end(GONE)
            left = loop.time()
            assert (await ask(system, make_request(request_id="live"))).ending == DONE
            assert_at_rest(system, 1)
            return loop.time() - left, stage.calls

    seconds, calls = run(0, main)

    assert seconds == pytest.approx(0.1, abs=0.001)
    assert calls == ["dead 0", "live"]


def test_f_a_caller_who_left_between_two_attempts_causes_no_other() -> None:
    # there: 4 upstream calls
    async def main() -> int:
        stage = always(UpstreamServerError("503", retry_after=1.0))
        async with running({"m": stage}, slots=1) as system:
            request = make_request()
            system.router.submit(request)
            await asyncio.sleep(0.5)
            request.channel.end(GONE)
            await asyncio.sleep(60)
            assert_at_rest(system, 1)
        return len(stage.calls)

    assert run(0, main) == 1


def test_i_a_client_that_never_reads_costs_nobody_else() -> None:
    # there: the second client saw nothing for 1.5 s
    async def main() -> tuple[float, str]:
        loop = asyncio.get_running_loop()
        stage = Stage(
            lambda request, _call: (
                ["x" * 1000] * 5000 if request.request_id == "idler" else ["a", DONE]
            )
        )
        async with running({"m": stage}, slots=1) as system:
            idler = make_request(request_id="idler")
            system.router.submit(idler)
            answer = await ask(system, make_request())
            assert answer.ending == DONE
            assert isinstance(idler.channel.ending, Failed)
            assert_at_rest(system, 1)
            return loop.time(), idler.channel.ending.error.code

    at, code = run(0, main)

    assert at < 0.01
    assert code == "slow_consumer"


def test_j_an_early_end_is_told_as_a_cut_stream() -> None:
    # there: "half an ans" and a closed channel, counted as a success
    async def main() -> tuple[str, str, int]:
        stage = always("half an", " ans", 0.01)
        async with running({"m": stage}, slots=1) as system:
            answer = await ask(system, make_request())
            assert isinstance(answer.ending, Failed)
            failures = system.deployments["m"].gates.breaker._machine.fail_counter
            return answer.text, answer.ending.error.code, failures

    assert run(0, main) == ("half an ans", "upstream_truncated", 1)


def test_l_a_cap_of_one_runs_one_and_queues_the_rest() -> None:
    # there: 20 of 20 admitted at once
    async def main() -> tuple[int, Counter[str]]:
        stage = always(0.1, DONE)
        async with running({"m": stage}, slots=1, queue_capacity=15) as system:
            answers = await ask_all(system, [make_request() for _ in range(20)])
            return stage.most_running, codes(answers)

    most, outcome = run(0, main)

    assert most == 1
    assert outcome == {"ok": 15, "queue_full": 5}


def test_p_a_stop_gives_everyone_an_ending_and_later_ones_a_refusal() -> None:
    # there: three closed channels and "internal: admission dropped"
    async def main() -> tuple[Counter[str], OrchestratorError]:
        stage = always("a", 1.0, DONE)
        async with running({"m": stage}, slots=1) as system:
            requests = [make_request(request_id=str(number)) for number in range(4)]
            readers = [asyncio.ensure_future(ask(system, request)) for request in requests]
            await asyncio.sleep(0.5)
            await system.drain(1.0)
            later = await error_of(system, make_request())
            await system.aclose()
            answers = [await reader for reader in readers]
            assert stage.running == 0
        return codes(answers), later

    outcome, later = run(0, main)

    assert outcome == {"ok": 1, "draining": 3}
    assert (later.code, later.status_code) == ("draining", 503)
