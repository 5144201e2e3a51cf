"""What a recording provider sees is what the configuration promises.

In virtual time over ten minutes, at five times the allowed load, with failures and retries in it;
`test_limits_live.py` does the same over a socket, for as long as it is told to.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from orchestrator import metrics
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    UpstreamAuthenticationError,
    UpstreamConnectError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamServerError,
)
from orchestrator.events import Finished, FinishReason, Usage
from orchestrator.plan import BreakerSettings, DeploymentPlan, KeyPlan
from orchestrator.policies.breaker import FailureRate
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.lease import KeyAccess, Lease
from orchestrator.standing import Allowance, Standing
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Line, ScriptedRunner, Stage, always
from tests.fakes.systems import ask, ask_all, assert_at_rest, codes, make_request, read, running

MINUTE = 60.0
NEVER_OPEN = BreakerSettings(failure_threshold=10_000, failure_rate=None)


def most_in_a_minute(used: Sequence[tuple[float, float]]) -> float:
    """The most that any window of 60 s holds, of (time, amount) in the order of time."""
    most, held, oldest = 0.0, 0.0, 0
    for at, amount in used:
        held += amount
        while used[oldest][0] <= at - MINUTE:
            held -= used[oldest][1]
            oldest += 1
        most = max(most, held)
    return most


@dataclass
class Recording:
    """A provider that notes when what came with which key, and answers by script."""

    script: dict[str, list[Line]] = field(default_factory=dict)
    seen: list[tuple[float, str]] = field(default_factory=list)
    standing: Standing | None = None

    def factory(self) -> SlotFactory:
        return SlotFactory(create=lambda: _Recorder(self), model="recording")

    def calls(self) -> Counter[str]:
        return Counter(key for _, key in self.seen)


class _Recorder(ScriptedRunner):
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        super().__init__(Stage(lambda _request, _call: recording.script.get(self._key, [DONE])))
        self._key = ""

    def generate(self, request: PriorityRequest, lease: Lease):
        self._key = "" if lease.key is None else lease.key.read()
        self._recording.seen.append((asyncio.get_running_loop().time(), self._key))
        if self._recording.standing is not None and lease.on_standing is not None:
            lease.on_standing(self._recording.standing)
        return super().generate(request, lease)


def keys(*names: str, limits: RateLimits | None = None) -> list[KeyPlan]:
    def access(name: str) -> KeyAccess:
        return KeyAccess(lambda: name)

    return [KeyPlan(access=access(name), limits=limits or RateLimits()) for name in names]


def serving(recording: Recording, plans: Sequence[KeyPlan] = (), *, slots: int = 8) -> System:
    plan = DeploymentPlan(
        name="m", factory=recording.factory(), slots=slots, keys=plans, breaker=NEVER_OPEN
    )
    return System([plan], monitored=False)


def test_no_minute_of_ten_sees_more_than_the_limit_at_five_times_the_load() -> None:
    limit = 60

    async def main() -> tuple[list[tuple[float, float]], Counter[str]]:
        loop, chance = asyncio.get_running_loop(), random.Random(4)
        seen: list[tuple[float, float]] = []

        def script(_request: PriorityRequest, _call: int) -> list[Line]:
            seen.append((loop.time(), 1.0))
            fate = chance.random()
            if fate < 0.1:
                return [UpstreamServerError("500")]
            if fate < 0.15:
                return [UpstreamRateLimitedError("429", retry_after=chance.choice((0.5, 2.0)))]
            return ["a", chance.uniform(0.0, 0.1), DONE]

        limits = RateLimits(requests_per_minute=limit)
        async with running(
            {"m": Stage(script)}, slots=16, limits=limits, breaker=NEVER_OPEN, queue_capacity=1000
        ) as system:
            requests: list[PriorityRequest] = []
            for _ in range(5 * limit * 10):
                request = make_request(timeout=20.0)
                system.router.submit(request)
                requests.append(request)
                await asyncio.sleep(MINUTE / (5 * limit))
            answers = [await read(request) for request in requests]
            assert_at_rest(system, 16)
        return seen, codes(answers)

    seen, outcome = run(0, main)

    assert most_in_a_minute(seen) <= limit
    assert len(seen) >= 0.9 * 10 * limit  # and what is allowed is used
    assert outcome["ok"] >= 0.7 * len(seen)


def test_no_minute_of_ten_sees_more_tokens_than_the_limit_and_nearly_all_are_used() -> None:
    limit, allowed = 60_000, 0.98 * 60_000

    async def main() -> tuple[list[tuple[float, float]], float]:
        loop, chance = asyncio.get_running_loop(), random.Random(5)
        seen: list[tuple[float, float]] = []

        def script(request: PriorityRequest, _call: int) -> list[Line]:
            used = chance.randint(1, request.estimated_answer_tokens)
            seen.append((loop.time(), used + 1.0))
            usage = Usage(prompt_tokens=1, completion_tokens=used)
            return ["a", chance.uniform(0.0, 1.0), Finished(FinishReason.STOP, usage)]

        limits = RateLimits(tokens_per_minute=limit)
        async with running(
            {"m": Stage(script)}, slots=16, limits=limits, queue_capacity=5000
        ) as system:
            requests = [make_request(timeout=620.0, max_tokens=1000) for _ in range(1400)]
            for request in requests:
                system.router.submit(request)
            await asyncio.sleep(600.0)
            booked = system.deployments["m"].gates.limiter.keys[0]._windows[0][1].used
            for request in requests:
                await read(request)
        recent = sum(amount for at, amount in seen if loop.time() - 620.0 + 540 <= at <= 600.0)
        return seen, booked / recent if recent else 1.0

    seen, books = run(0, main)
    total = sum(amount for at, amount in seen if at < 600.0)

    assert most_in_a_minute(seen) <= limit
    assert total >= 0.98 * 0.98 * 10 * allowed
    assert books == pytest.approx(1.0, abs=0.1)


def test_no_minute_of_ten_sees_more_input_or_output_tokens_than_each_of_their_limits() -> None:
    inputs, outputs, load = 12_000, 9_000, 600  # a minute allows about 120 requests

    async def main() -> tuple[list[tuple[float, float]], list[tuple[float, float]], Counter[str]]:
        loop, chance = asyncio.get_running_loop(), random.Random(7)
        asked: list[tuple[float, float]] = []
        told: list[tuple[float, float]] = []

        def script(request: PriorityRequest, _call: int) -> list[Line]:
            asked.append((loop.time(), request.estimated_prompt_tokens))
            fate = chance.random()
            if fate < 0.1:
                return [UpstreamServerError("500")]
            if fate < 0.15:
                return [UpstreamRateLimitedError("429", retry_after=chance.choice((0.5, 2.0)))]
            used = chance.randint(1, request.estimated_answer_tokens)
            told.append((loop.time(), used))
            prompt = request.estimated_prompt_tokens
            usage = Usage(prompt_tokens=prompt, completion_tokens=used)
            return ["a", chance.uniform(0.0, 0.1), Finished(FinishReason.STOP, usage)]

        limits = RateLimits(input_tokens_per_minute=inputs, output_tokens_per_minute=outputs)
        async with running(
            {"m": Stage(script)}, slots=16, limits=limits, breaker=NEVER_OPEN, queue_capacity=1000
        ) as system:
            requests: list[PriorityRequest] = []
            for _ in range(10 * load):
                request = make_request(timeout=20.0, max_tokens=100)
                request.estimated_prompt_tokens = chance.randint(50, 150)
                system.router.submit(request)
                requests.append(request)
                await asyncio.sleep(MINUTE / load)
            answers = [await read(request) for request in requests]
            assert_at_rest(system, 16)
        return asked, told, codes(answers)

    asked, told, outcome = run(0, main)

    assert most_in_a_minute(asked) <= inputs
    assert most_in_a_minute(told) <= outputs
    assert sum(amount for _, amount in asked) >= 0.9 * 10 * inputs  # the one that runs out first
    assert outcome["ok"] >= 0.7 * len(asked)


def test_once_settled_the_books_are_within_two_percent_of_what_was_really_used() -> None:
    async def main() -> tuple[float, float]:
        chance, used = random.Random(6), 0

        def script(request: PriorityRequest, call: int) -> list[Line]:
            nonlocal used
            if call % 7 == 3:  # refused: of these the provider counts the prompt alone
                used += request.estimated_prompt_tokens
                return [UpstreamServerError("500")]
            tokens = chance.randint(1, request.estimated_answer_tokens)
            used += tokens + 1
            usage = Usage(prompt_tokens=1, completion_tokens=tokens)
            return ["a", chance.uniform(0.0, 1.0), Finished(FinishReason.STOP, usage)]

        limits = RateLimits(tokens_per_minute=60_000)
        async with running(
            {"m": Stage(script)}, slots=16, limits=limits, breaker=NEVER_OPEN, queue_capacity=500
        ) as system:
            await ask_all(system, [make_request(max_tokens=1000) for _ in range(90)])
            ((_, window),) = system.deployments["m"].gates.limiter.keys[0]._windows
            assert window.has_room(0.0, asyncio.get_running_loop().time())
            return window.used, float(used)

    booked, used = run(0, main)

    assert booked == pytest.approx(used, rel=0.02)
    assert used > 30_000


def test_fifty_at_once_send_no_more_than_the_provider_said_is_left() -> None:
    async def main() -> int:
        recording = Recording()
        left = Allowance(remaining=3.0, limit=60.0, reset_after=57.0)
        recording.standing = (left, None, None, None)
        plans = keys("only", limits=RateLimits(learn=True))
        system = serving(recording, plans, slots=50)
        system.start()
        await system.settled()
        await ask(system, make_request())
        recording.standing = None
        for _ in range(50):
            system.router.submit(make_request(timeout=0.5))
        await asyncio.sleep(0.6)
        await system.aclose()
        return len(recording.seen) - 1

    assert run(0, main) == 3


def rates(deployment: str) -> list[float | None]:
    return [
        metrics.REGISTRY.get_sample_value(
            "orchestrator_key_requests_per_minute", {"deployment": deployment, "key": number}
        )
        for number in ("1", "2")
    ]


def test_the_rate_of_each_key_is_told_by_its_limit_its_provider_and_what_a_429_left_of_it() -> None:
    async def main() -> list[list[float | None]]:
        recording = Recording({"bad": [UpstreamRateLimitedError("429", retry_after=5.0)]})
        plans = keys("bad", "good", limits=RateLimits(requests_per_minute=60, learn=True))
        system = serving(recording, plans, slots=1)
        system.start()
        await system.settled()
        told = [rates("m")]
        await ask(system, make_request())
        recording.standing = (Allowance(remaining=9.0, limit=20.0), None, None, None)
        await ask(system, make_request())
        told.append(rates("m"))
        await system.aclose()
        return [*told, rates("m")]

    assert run(0, main) == [[60.0, 60.0], [30.0, 20.0], [0.0, 0.0]]


def test_r_a_paused_key_of_two_costs_nobody_anything() -> None:
    # there: one of six ok, at 6 s
    async def main() -> tuple[Counter[str], Counter[str], float]:
        limited = UpstreamRateLimitedError("429", retry_after=2.0)
        recording = Recording({"bad": [limited]})
        system = serving(recording, keys("bad", "good"), slots=2)
        system.start()
        await system.settled()
        answers = await ask_all(system, [make_request() for _ in range(6)])
        at = asyncio.get_running_loop().time()
        await system.aclose()
        return codes(answers), recording.calls(), at

    outcome, calls, at = run(0, main)

    assert outcome == {"ok": 6}
    assert calls == {"bad": 1, "good": 6}
    assert at < 0.1


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (UpstreamQuotaExceededError("insufficient_quota"), "exhausted"),
        (UpstreamAuthenticationError("401"), "revoked"),
    ],
)
def test_a_key_that_is_no_good_is_passed_over_and_the_health_page_says_so(
    error: Exception, state: str
) -> None:
    async def main() -> tuple[Counter[str], Counter[str], bool, str | None]:
        recording = Recording({"bad": [error]})
        system = serving(recording, keys("bad", "good"), slots=1)
        system.start()
        await system.settled()
        answers = [await ask(system, make_request()) for _ in range(8)]
        health = system.health()[0]
        await system.aclose()
        return codes(answers), recording.calls(), health.ready, health.reason

    outcome, calls, ready, reason = run(0, main)

    assert outcome == {"ok": 8}
    assert calls == {"bad": 1, "good": 8}
    assert ready
    assert reason is not None
    assert reason.startswith(f"key 1 of 2 is {state} for")


def test_rty_4_an_account_without_credit_is_not_asked_again_for_ten_minutes() -> None:
    async def main() -> tuple[Counter[str], int, bool]:
        stage = always(UpstreamQuotaExceededError("insufficient_quota"))
        async with running({"m": stage}, slots=1) as system:
            answers = [await ask(system, make_request()) for _ in range(5)]
            ready = system.health()[0].ready
        return codes(answers), len(stage.calls), ready

    assert run(0, main) == ({"insufficient_quota": 5}, 1, False)


def test_lim_2_of_two_pauses_the_longer_one_counts_at_once() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        starts: list[float] = []
        hints = [1.0, 30.0]

        def script(_request: PriorityRequest, call: int) -> list[Line]:
            starts.append(loop.time())
            if call < len(hints):
                return [0.1 * call, UpstreamRateLimitedError("429", retry_after=hints[call])]
            return [DONE]

        retry = RetrySettings(max_backoff=60.0)
        async with running({"m": Stage(script)}, slots=2, retry=retry) as system:
            await ask_all(system, [make_request(), make_request()])
        return starts

    starts = run(0, main)

    assert starts[:2] == [0.0, 0.0]
    assert starts[2] == pytest.approx(30.1, abs=0.01)


def test_lim_1_a_refusal_for_concurrency_spends_no_request() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        starts: list[float] = []
        stage = always(5.0, DONE)
        stage.on_running = lambda count: starts.append(loop.time()) if count else None
        limits = RateLimits(requests_per_minute=2, concurrency=1)
        async with running({"m": stage}, slots=2, limits=limits) as system:
            system.router.submit(make_request())
            assert (await ask(system, make_request(timeout=1.0))).ending != DONE
            await asyncio.sleep(5.0)
            await ask(system, make_request(timeout=40.0))
        return starts

    starts = run(0, main)

    assert len(starts) == 2
    assert starts[1] < 31.0


@pytest.mark.parametrize("error", [UpstreamServerError("503"), UpstreamConnectError("refused")])
def test_a_total_outage_sees_no_more_attempts_than_the_budget_allows(error: Exception) -> None:
    async def main() -> tuple[int, int]:
        stage = always(error)
        async with running({"m": stage}, slots=8) as system:
            for _ in range(500):
                await ask(system, make_request())
                await asyncio.sleep(0.01)
        return len(stage.calls), 500

    attempts, accepted = run(0, main)

    assert attempts <= 1.2 * accepted + 10


def test_without_a_breaker_too_an_outage_is_not_amplified_beyond_the_budget() -> None:
    async def main() -> int:
        stage = always(UpstreamServerError("503"))
        async with running({"m": stage}, slots=8, breaker=NEVER_OPEN, queue_capacity=500) as system:
            await ask_all(system, [make_request() for _ in range(500)])
        return len(stage.calls)

    attempts = run(0, main)

    assert 500 < attempts <= 1.2 * 500 + 10


def test_a_provider_that_is_down_for_a_minute_sees_five_attempts_and_then_traffic() -> None:
    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        down: list[float] = []
        back: list[float] = []

        def script(_request: PriorityRequest, _call: int) -> list[Line]:
            if loop.time() < 60.0:
                down.append(loop.time())
                return [UpstreamServerError("503")]
            back.append(loop.time())
            return [DONE]

        rules = BreakerSettings(failure_rate=FailureRate())  # as a configuration has by default
        async with running({"m": Stage(script)}, slots=4, breaker=rules) as system:
            for _ in range(20):
                await ask(system, make_request())
                await asyncio.sleep(3.0)
            while not back:
                await ask(system, make_request())
                await asyncio.sleep(1.0)
        return len(down), back[0]

    attempts, back_at = run(0, main)

    assert attempts <= 5
    assert back_at <= 60.0 + 60.0  # its open time by then


def test_a_storm_of_refusals_of_one_key_takes_nothing_from_the_others() -> None:
    async def main() -> tuple[Counter[str], Counter[str], float]:
        recording = Recording({"bad": [0.05, UpstreamRateLimitedError("429")]})
        limits = RateLimits(learn=True, requests_per_minute=600)
        system = serving(recording, keys("bad", "good", "fine", limits=limits), slots=8)
        system.start()
        await system.settled()
        answered: Counter[str] = Counter()
        for _ in range(60):
            answered += codes(await ask_all(system, [make_request() for _ in range(3)]))
            await asyncio.sleep(1.0)
        slowest = max(key.rests_until for key in system.deployments["m"].gates.limiter.keys[1:])
        await system.aclose()
        return answered, recording.calls(), slowest

    answered, calls, rested = run(0, main)

    assert answered == {"ok": 180}
    assert calls["bad"] <= 8  # after 0.5 s, 1 s, 2 s, ... for as long again each time
    assert rested == 0.0


@pytest.mark.parametrize(
    "lie",
    [
        Allowance(remaining=0.0, limit=1e12, reset_after=1e12),
        Allowance(remaining=1e12, limit=1e12, reset_after=0.0),
        Allowance(remaining=0.0),
        Allowance(remaining=1e12, limit=0.0),
        Allowance(remaining=0.5, limit=0.5, reset_after=0.0),
    ],
)
def test_headers_that_lie_lift_no_limit_and_stop_nobody_for_ever(lie: Allowance) -> None:
    limit = 60

    async def main() -> list[tuple[float, float]]:
        recording = Recording(standing=(lie, lie, lie, lie))
        plans = keys("only", limits=RateLimits(learn=True, requests_per_minute=limit))
        system = serving(recording, plans, slots=8)
        system.start()
        await system.settled()
        requests = [make_request(timeout=20.0) for _ in range(5 * limit * 5)]
        for request in requests:
            system.router.submit(request)
            await asyncio.sleep(MINUTE / (5 * limit))
        for request in requests:
            await read(request)
        await system.aclose()
        return [(at, 1.0) for at, _ in recording.seen]

    seen = run(0, main)

    assert most_in_a_minute(seen) <= limit
    for minute in range(1, 5):  # something is sent, whose answer may say more
        assert any(minute * MINUTE <= at < (minute + 1) * MINUTE + 1.0 for at, _ in seen)
