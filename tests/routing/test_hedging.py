"""A second deployment beside a slow one: the first token wins, once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.channel import Channel
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    InvalidRequestError,
    UpstreamServerError,
    UpstreamTruncatedError,
)
from orchestrator.events import Failed, Finished, FinishReason, TokenChunk
from orchestrator.plan import RoutePlan
from orchestrator.policies.breaker import Forced
from orchestrator.policies.retry import RetrySettings
from orchestrator.routing.hedging import FEWEST_SAMPLES, SAMPLES, HedgeSettings, Hedging
from orchestrator.routing.race import Race
from orchestrator.routing.route import RoutePolicy
from tests.fakes.scripted import DONE, Stage, always
from tests.fakes.systems import Answer, ask, assert_at_rest, error_of, make_request, running
from tests.routing.deployments import deployment

AFTER_1S = HedgeSettings(seconds=1.0, share=1.0)
ONCE = RetrySettings(max_attempts=1)


def hedged(*names: str, settings: HedgeSettings = AFTER_1S) -> dict[str, RoutePlan]:
    return {"m": RoutePlan(deployments=names, policy=RoutePolicy(hedge=settings))}


def raced(first: Stage, second: Stage, **more: bool) -> tuple[float, Answer, list[str], list[bool]]:
    """When the answer was whole, what it was, how the attempts ended, who was a hedge."""

    async def main() -> tuple[float, Answer, list[str], list[bool]]:
        stages = {"a": first, "b": second}
        async with running(stages, hedged("a", "b"), retry=ONCE) as system:
            request = make_request(held=more.get("held", False))
            answer = await ask(system, request)
            at = asyncio.get_running_loop().time()
            await asyncio.sleep(0.1)
            assert_at_rest(system, 8)
            outcomes = [record.outcome for record in request.attempts]
            return at, answer, outcomes, [record.hedge for record in request.attempts]

    return run(0, main)


@pytest.mark.parametrize("held", [False, True])
def test_the_second_deployment_wins_and_the_first_attempt_is_canceled(held: bool):
    slow, fast = always(5.0, "slow", DONE), always(0.5, "fa", "st", DONE)

    at, answer, outcomes, hedges = raced(slow, fast, held=held)

    assert (at, answer.text, answer.ending) == (1.5, "fast", DONE)
    assert outcomes == ["canceled", "done"]
    assert hedges == [False, True]
    assert slow.running == 0


def test_the_first_deployment_may_still_win_and_the_second_is_canceled():
    at, answer, outcomes, _ = raced(always(1.2, "first", 1.0, DONE), always(0.5, "second", DONE))

    assert (at, answer.text) == (2.2, "first")
    assert outcomes == ["done", "canceled"]


def test_two_first_tokens_at_one_instant_give_one_answer():
    _, answer, outcomes, _ = raced(always(1.5, "a", "a", DONE), always(0.5, "b", "b", DONE))

    assert answer.text in {"aa", "bb"}
    assert sorted(outcomes) == ["canceled", "done"]


def test_a_first_token_in_time_asks_nobody_else():
    second = always("never", DONE)

    at, answer, _, _ = raced(always(0.9, "first", 5.0, DONE), second)

    assert (at, answer.text) == (5.9, "first")
    assert second.calls == []


def test_one_that_fails_leaves_the_answer_to_the_other():
    down = always(1.2, UpstreamServerError("down"))

    at, answer, outcomes, _ = raced(down, always(2.0, "second", DONE))

    assert (at, answer.text) == (3.0, "second")
    assert outcomes == ["gave_up", "done"]


def test_a_request_that_no_deployment_can_answer_ends_at_once_beside_its_hedge():
    wrong = always(1.2, InvalidRequestError("no such role", param="messages"))

    at, answer, outcomes, _ = raced(wrong, always(2.0, "second", DONE))

    assert at == 1.2
    assert isinstance(answer.ending, Failed)
    assert answer.ending.error.message == "no such role"
    assert outcomes == ["gave_up", "canceled"]


def test_a_hedge_that_refuses_the_request_leaves_it_to_who_was_asked_first():
    wrong = always(0.1, InvalidRequestError("no tools here", param="tools"))

    at, answer, outcomes, _ = raced(always(2.0, "first", DONE), wrong)

    assert (at, answer.text) == (2.0, "first")
    assert outcomes == ["done", "gave_up"]


def test_when_both_fail_the_first_cause_is_told():
    async def main() -> tuple[str, int]:
        stages = {
            "a": always(1.2, UpstreamServerError("a is down")),
            "b": always(0.1, UpstreamServerError("b is down")),
        }
        async with running(stages, hedged("a", "b"), retry=ONCE) as system:
            request = make_request()
            return str(await error_of(system, request)), len(request.attempts)

    told, attempts = run(0, main)

    assert "is down" in told
    assert attempts == 2


def test_a_winner_that_breaks_before_it_was_read_goes_on_to_the_next_deployment():
    async def main() -> tuple[str, list[str]]:
        stages = {
            "a": always(5.0, "a", DONE),
            "b": always("b", UpstreamTruncatedError("cut")),
            "c": always("c", DONE),
        }
        async with running(stages, hedged("a", "b", "c"), retry=ONCE) as system:
            request = make_request(held=True)
            answer = await ask(system, request)
            return answer.text, [record.deployment for record in request.attempts]

    assert run(0, main) == ("c", ["a", "b", "c"])


def test_a_request_that_is_not_idempotent_is_never_hedged():
    async def main() -> int:
        stages = {"a": always(3.0, "a", DONE), "b": always("b", DONE)}
        async with running(stages, hedged("a", "b")) as system:
            await ask(system, make_request(idempotent=False))
            return len(stages["b"].calls)

    assert run(0, main) == 0


def test_there_are_no_hedges_in_a_partial_outage_or_beyond_the_budget():
    route = [deployment("a"), deployment("b"), deployment("c", healthy=False)]
    whole = [deployment("a"), deployment("b")]
    settings = HedgeSettings(seconds=1.0, share=0.05)
    out, well = Hedging(settings, route, "r"), Hedging(settings, whole, "r")

    spent = 0
    for _ in range(1000):
        well.delay()
        spent += well.spend()

    assert out.choose(route[1:]) is None
    assert well.choose(whole[1:]) is whole[1]
    assert spent == pytest.approx(50, abs=2)


@pytest.mark.parametrize(("held_open", "asked"), [(None, 1), ("open", 0)])
def test_while_one_of_a_route_lets_nothing_through_a_slow_one_is_waited_for(
    held_open: Forced | None, asked: int
):
    async def main() -> tuple[str, int]:
        stages = {"a": always(3.0, "a", DONE), "b": always("b", DONE), "c": always("c", DONE)}
        async with running(stages, hedged("a", "b", "c")) as system:
            system.deployments["c"].gates.breaker.force(held_open)
            answer = await ask(system, make_request())
            return answer.text, len(stages["b"].calls)

    assert run(0, main) == ("b" if asked else "a", asked)


def test_a_second_deployment_without_an_idle_slot_is_not_asked():
    busy = deployment("b", slots=1)
    busy.inflight.accept(make_request(), lambda _: None, now=0.0)

    assert Hedging(AFTER_1S, [busy], "r").choose([busy]) is None


@given(st.lists(st.floats(0.001, 60.0), min_size=1, max_size=3 * SAMPLES))
def test_a_percentile_is_that_of_the_newest_first_tokens(times: list[float]):
    hedging = Hedging(HedgeSettings(percentile=0.95), [], "r")
    for seconds in times:
        hedging.observe(seconds)

    newest = sorted(times[-SAMPLES:])
    expected = None if len(newest) < FEWEST_SAMPLES else newest[int(0.95 * (len(newest) - 1))]
    assert hedging.delay() == expected


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["begin", "send", "end"])), max_size=20)
)
def test_whatever_two_contenders_do_only_one_of_them_is_heard(steps: list[tuple[int, str]]):
    channel = Channel()
    race = Race(channel, lambda _: None)
    lanes = [race.enter(deployment("a")), race.enter(deployment("b"))]
    epochs, number = [1, 2], 2
    for lane, epoch in zip(lanes, epochs, strict=True):
        lane.begin(epoch)
    heard: list[int] = []

    for who, what in steps:
        if what == "begin":
            number += 1
            epochs[who] = number
            lanes[who].begin(number)
        elif what == "send":
            if lanes[who].send(TokenChunk(str(who)), epochs[who]):
                heard.append(who)
        elif lanes[who].end(Finished(FinishReason.STOP), epochs[who]):
            heard.append(who)

    assert len(set(heard)) <= 1
    assert {chunk.text for chunk in channel.take()[0]} <= {str(who) for who in heard}


def test_the_records_tell_who_won_a_hedge_and_who_lost_it():
    async def main() -> list[str]:
        stages = {"a": always(5.0, "slow", DONE), "b": always(0.5, "fast", DONE)}
        async with running(stages, hedged("a", "b")) as system:
            request = make_request()
            system.router.submit(request)
            await asyncio.sleep(1.2)
            decisions = [record.decision for record in request.attempts]
            await asyncio.sleep(1.0)
            return decisions + [record.decision for record in request.attempts]

    assert run(0, main) == ["hedged: b", "", "lost the hedge", "won the hedge"]


def test_what_follows_a_hedge_is_noted_at_the_attempt_that_failed():
    async def main() -> list[str]:
        down = UpstreamServerError("down")
        stages = {"a": always(1.2, down), "b": always(0.1, down), "c": always("c", DONE)}
        async with running(stages, hedged("a", "b", "c"), retry=ONCE) as system:
            request = make_request()
            await ask(system, request)
            return [record.decision for record in request.attempts]

    assert run(0, main) == ["next: c", "", ""]
