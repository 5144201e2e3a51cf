"""Slots, permits, probes and requests are conserved, whatever breaks in whatever order."""

import asyncio
import random
from collections import Counter

import pytest

from orchestrator.actors.supervisor import Supervision
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    RequestCanceledError,
    UpstreamConnectError,
    UpstreamRateLimitedError,
    UpstreamServerError,
)
from orchestrator.events import Failed
from orchestrator.plan import BreakerSettings
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import Priority, PriorityRequest
from orchestrator.runners.lease import StepLimits
from tests.fakes.scripted import DONE, Line, Stage
from tests.fakes.systems import Answer, assert_at_rest, codes, make_request, read, running

SLOTS = 4
REQUESTS = 120
ALPHABET = "abcdefgh"
RULES = Supervision(max_restarts=4, within=5.0, initial_backoff=0.05, max_backoff=0.5)


class Weather:
    """Everything that can go wrong, in an order that the seed decides."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def script(self, _request: PriorityRequest, _call: int) -> list[Line]:
        lines: list[Line] = []
        for letter in ALPHABET:
            lines += [self.chance.choice([0.0, 0.0, 0.01, 0.2]), letter]
        lines.append(DONE)
        if self.chance.random() < 0.4:
            lines.insert(self.chance.randrange(len(lines)), self.fault())
        return lines

    def fault(self) -> Line:
        faults: list[Line] = [
            UpstreamServerError("500"),
            UpstreamConnectError("refused"),
            UpstreamRateLimitedError("429", retry_after=0.3),
            ValueError("a bug of the runner"),
            TimeoutError("of its own"),
            SystemExit(1),
            asyncio.CancelledError(),
            60.0,
        ]
        return self.chance.choice(faults)

    async def strike(self, stage: Stage, poison: "asyncio.Future[None]") -> None:
        """Kills the host now and then, and poisons the engine once."""
        for number in range(4):
            await asyncio.sleep(self.chance.uniform(0.1, 2.0))
            stage.kill_host(RuntimeError(f"segfault {number}"))
        poison.set_result(None)

    async def caller(self, request: PriorityRequest) -> Answer:
        """Reads, and sometimes goes away."""
        if self.chance.random() < 0.2:
            asyncio.get_running_loop().call_later(
                self.chance.uniform(0.0, 3.0),
                request.channel.end,
                Failed(RequestCanceledError("gone")),
            )
        answer = await read(request)
        again = await request.channel.receive()
        assert again == ([], answer.ending)
        assert ALPHABET.startswith(answer.text)
        if answer.ending == DONE:
            assert answer.text == ALPHABET
        return answer


async def storm(seed: int, *, local: bool) -> Counter[str]:
    weather = Weather(seed)
    chance = weather.chance
    stages = {name: Stage(weather.script, local=local) for name in ("a", "b")}
    async with running(
        stages,
        {"m": ["a", "b"]},
        slots=SLOTS,
        queue_capacity=40,
        limits=RateLimits(requests_per_minute=6000.0, tokens_per_minute=1_000_000.0),
        retry=RetrySettings(initial_backoff=0.02, max_backoff=0.5),
        breaker=BreakerSettings(failure_threshold=3, open_for=0.3),
        steps=StepLimits(first_token=1.0, inter_token=1.0),
        supervision=RULES,
    ) as system:
        poison = asyncio.get_running_loop().create_future()
        poison.add_done_callback(
            lambda _: system.deployments["a"].poison("test", RuntimeError("on purpose"))
        )
        striking = asyncio.ensure_future(weather.strike(stages["a"], poison))
        callers: list[asyncio.Future[Answer]] = []
        for _ in range(REQUESTS):
            await asyncio.sleep(chance.choice([0.0, 0.0, 0.02, 0.1]))
            request = make_request(
                priority=chance.choice(list(Priority)),
                held=chance.random() < 0.3,
                timeout=chance.choice([0.5, 3.0, 30.0]),
            )
            system.router.submit(request)
            callers.append(asyncio.ensure_future(weather.caller(request)))
        answers = [await caller for caller in callers]
        await striking
        for stage in stages.values():
            stage.script = lambda _request, _call: ["a", DONE]
        await asyncio.sleep(300.0)
        assert [stage.running for stage in stages.values()] == [0, 0]
        assert_at_rest(system, SLOTS)
    return codes(answers)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_i4_after_a_storm_everything_is_back_where_it_was(seed: int, local: bool) -> None:
    outcome = run(seed, lambda: storm(seed, local=local), shuffle=True)

    assert sum(outcome.values()) == REQUESTS
    assert outcome["ok"] > 0
