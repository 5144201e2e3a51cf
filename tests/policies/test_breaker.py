"""The breaker against a model, and the traps of the library below it, by their ids."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

import hypothesis.strategies as st
import pybreaker
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from typing_extensions import override

from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    CircuitOpenError,
    InvalidRequestError,
    OrchestratorError,
    RequestCanceledError,
    UpstreamAuthenticationError,
    UpstreamConflictError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    WorkerCrashedError,
)
from orchestrator.policies.breaker import Breaker, FailureRate

LEGAL = {("closed", "open"), ("open", "half-open"), ("half-open", "open"), ("half-open", "closed")}
NO_VERDICTS = [
    InvalidRequestError("400"),
    UpstreamRateLimitedError("429"),
    UpstreamAuthenticationError("401"),
    UpstreamConflictError("409"),
    RequestCanceledError("gone"),
    WorkerCrashedError("segfault"),
]


def fail(breaker: Breaker, now: float, times: int = 1) -> None:
    for _ in range(times):
        breaker.failed(breaker.admit(now), UpstreamServerError("500"))


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Out:
    """An attempt that was let through and has no verdict yet."""

    era: int
    model_era: int


class Traced(Breaker):
    """Remembers its moves."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str]] = []
        super().__init__("m", failure_threshold=3, open_for=10.0, max_open_for=10.0, probes=2)

    @override
    def state_change(
        self,
        cb: pybreaker.CircuitBreaker,
        old_state: pybreaker.CircuitBreakerState | None,
        new_state: pybreaker.CircuitBreakerState,
    ) -> None:
        super().state_change(cb, old_state, new_state)
        if old_state is not None:
            self.moves.append((old_state.name, new_state.name))


class BreakerMachine(RuleBasedStateMachine):
    """Four outcomes in any order, in any number at once, at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.offset = 0.0
        self.breaker = Traced()
        self.out: list[Out] = []
        self.state, self.failures, self.era, self.probing = "closed", 0, 0, 0
        self.opened_at = 0.0

    def now(self) -> float:
        return self.offset

    def move(self, state: str) -> None:
        self.state = state
        self.era += 1
        self.probing = self.failures = 0
        if state == "open":
            self.opened_at = self.now()

    @rule()
    def admit(self) -> None:
        due = self.now() >= self.opened_at + 10.0
        if (self.state == "open" and not due) or (self.state == "half-open" and self.probing == 2):
            with pytest.raises(CircuitOpenError):
                self.breaker.admit(self.now())
            return
        era = self.breaker.admit(self.now())
        if self.state == "open":
            self.move("half-open")
        if self.state == "half-open":
            self.probing += 1
        self.out.append(Out(era, self.era))

    def take(self, data: st.DataObject) -> Out:
        out = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if out.model_era == self.era and self.state == "half-open":
            self.probing -= 1
        return out

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        out = self.take(data)

        async def succeeded() -> None:
            self.breaker.succeeded(out.era)

        self.loop.run_until_complete(succeeded())
        if out.model_era == self.era:
            self.failures = 0
            if self.state == "half-open":
                self.move("closed")

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        out = self.take(data)

        async def failed() -> None:
            self.breaker.failed(out.era, UpstreamServerError("500"))

        self.loop.run_until_complete(failed())
        if out.model_era != self.era:
            return
        self.failures += 1
        if self.state == "half-open" or self.failures == 3:
            self.move("open")
            self.breaker._opened_at = self.opened_at

    @precondition(lambda self: self.out)
    @rule(data=st.data(), error=st.sampled_from(NO_VERDICTS))
    def say_nothing(self, data: st.DataObject, error: OrchestratorError) -> None:
        out = self.take(data)
        if data.draw(st.booleans()):
            self.breaker.failed(out.era, error)
        else:
            self.breaker.no_verdict(out.era)

    @rule(seconds=st.sampled_from([0.5, 5.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.offset += seconds

    @invariant()
    def agrees(self) -> None:
        assert self.breaker.state == self.state
        assert self.breaker._probing == self.probing
        assert self.probing <= 2
        assert set(self.breaker.moves) <= LEGAL
        refused = self.breaker.refusal(self.now()) is not None
        due = self.now() >= self.opened_at + 10.0
        assert refused == (
            (self.state == "open" and not due) or (self.state == "half-open" and self.probing == 2)
        )

    def teardown(self) -> None:
        self.loop.close()


TestBreakerAgainstAModel = BreakerMachine.TestCase
TestBreakerAgainstAModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


async def test_p1_a_failure_of_an_attempt_is_seen() -> None:
    breaker = Breaker("m", failure_threshold=3)

    fail(breaker, now(), 3)

    assert breaker.state == "open"


async def test_p3_a_hung_attempt_blocks_no_other() -> None:
    breaker = Breaker("m", failure_threshold=3)
    hung = breaker.admit(now())

    others = [breaker.admit(now()) for _ in range(100)]

    assert set(others) == {hung}


@pytest.mark.parametrize("error", NO_VERDICTS, ids=lambda error: type(error).__name__)
async def test_p4_what_says_nothing_about_the_upstream_is_no_success_either(
    error: OrchestratorError,
) -> None:
    breaker = Breaker("m", failure_threshold=3)
    fail(breaker, now(), 2)

    breaker.failed(breaker.admit(now()), error)
    fail(breaker, now())

    assert breaker.state == "open"


@pytest.mark.parametrize("error", NO_VERDICTS, ids=lambda error: type(error).__name__)
async def test_twenty_errors_of_the_callers_own_leave_it_closed(error: OrchestratorError) -> None:
    breaker = Breaker("m", failure_threshold=3)

    for _ in range(20):
        breaker.failed(breaker.admit(now()), error)

    assert breaker.state == "closed"


def test_p5_a_hundred_at_once_find_one_probe_when_half_open() -> None:
    async def main() -> tuple[int, str]:
        breaker = Breaker("m", failure_threshold=1, open_for=30.0)
        fail(breaker, now())
        await asyncio.sleep(30.0)
        admitted = 0
        for _ in range(100):
            try:
                breaker.admit(now())
            except CircuitOpenError:
                continue
            admitted += 1
        return admitted, breaker.state

    assert run(0, main) == (1, "half-open")


def test_a_probe_that_ends_without_a_verdict_makes_room_for_the_next() -> None:
    async def main() -> str:
        breaker = Breaker("m", failure_threshold=1, open_for=30.0)
        fail(breaker, now())
        await asyncio.sleep(30.0)
        for _ in range(10):
            breaker.no_verdict(breaker.admit(now()))
        breaker.succeeded(breaker.admit(now()))
        return breaker.state

    assert run(0, main) == "closed"


def test_a_provider_that_fails_for_ever_gets_one_probe_per_open_time() -> None:
    async def main() -> int:
        breaker = Breaker("m", failure_threshold=10, open_for=30.0)
        let_through = 0
        for _ in range(2000):  # 10 per second for 200 s
            try:
                fail(breaker, now())
                let_through += 1
            except CircuitOpenError:
                pass
            await asyncio.sleep(0.1)
        return let_through

    assert run(0, main) == 10 + 2  # after 30 s, and 60 s after that


class SteppedBack(datetime):
    """A wall clock that somebody has set back by a day."""

    @classmethod
    @override
    def now(cls, tz: object = None) -> "SteppedBack":
        return cls(2001, 1, 1, tzinfo=UTC)


def test_p7_a_step_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[bool, str]:
        breaker = Breaker("m", failure_threshold=1, open_for=1.0)
        fail(breaker, now())
        monkeypatch.setattr(pybreaker, "datetime", SteppedBack)
        await asyncio.sleep(0.9)
        early = breaker.refusal(now()) is not None
        await asyncio.sleep(0.2)
        breaker.succeeded(breaker.admit(now()))
        return early, breaker.state

    assert run(0, main) == (True, "closed")


async def test_p8_the_refusal_tells_what_the_upstream_failed_with() -> None:
    breaker = Breaker("openai", failure_threshold=1, open_for=30.0)
    error = UpstreamServerError("500: out of cards")
    breaker.failed(breaker.admit(now()), error)

    with pytest.raises(CircuitOpenError, match="breaker of openai is open; next probe in 30") as e:
        breaker.admit(now())

    assert e.value.root_cause is error
    assert e.value.retry_after == pytest.approx(30.0, abs=0.5)


async def test_p8_each_refusal_is_an_object_of_its_own() -> None:
    breaker = Breaker("m", failure_threshold=1)
    fail(breaker, now())

    assert breaker.refusal(now()) is not breaker.refusal(now())


async def test_p9_a_success_in_between_starts_the_count_anew() -> None:
    breaker = Breaker("m", failure_threshold=3)

    fail(breaker, now(), 2)
    breaker.succeeded(breaker.admit(now()))
    fail(breaker, now(), 2)

    assert breaker.state == "closed"


def test_p11_a_late_result_of_an_older_era_changes_nothing() -> None:
    async def main() -> list[str]:
        states: list[str] = []
        breaker = Breaker("m", failure_threshold=2, open_for=1.0)
        straggler, other = breaker.admit(now()), breaker.admit(now())
        fail(breaker, now(), 2)
        breaker.succeeded(straggler)
        states.append(breaker.state)
        await asyncio.sleep(1.0)
        breaker.succeeded(breaker.admit(now()))
        for _ in range(5):
            breaker.failed(other, UpstreamServerError("500"))
        states.append(breaker.state)
        return states

    assert run(0, main) == ["open", "closed"]


def test_looking_at_it_moves_nothing_and_takes_nothing() -> None:
    async def main() -> tuple[str, int]:
        breaker = Breaker("m", failure_threshold=1, open_for=1.0)
        fail(breaker, now())
        await asyncio.sleep(1.0)
        for _ in range(10):
            assert breaker.refusal(now()) is None
        return breaker.state, breaker._probing

    assert run(0, main) == ("open", 0)


async def test_replayed_outcomes_leave_no_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    breaker = Breaker("m", failure_threshold=1)

    fail(breaker, now())

    assert [record.levelname for record in caplog.records if record.name == "pybreaker"] == []


def test_its_repr_says_state_and_probes_in_words() -> None:
    assert repr(Breaker("m")) == "<Breaker m closed, 0 probing>"


def opened_for(breaker: Breaker) -> float:
    """Seconds until its next probe, just after it opened."""
    refusal = breaker.refusal(now())
    assert refusal is not None
    assert refusal.retry_after is not None
    return round(refusal.retry_after, 3)


def test_it_is_open_for_twice_as_long_each_time_that_its_probe_fails() -> None:
    async def main() -> list[float]:
        breaker = Breaker("m", failure_threshold=3, open_for=30.0, max_open_for=100.0)
        waits: list[float] = []
        fail(breaker, now(), 3)
        for _ in range(4):
            waits.append(opened_for(breaker))
            await asyncio.sleep(waits[-1])
            fail(breaker, now())
        return waits

    assert run(0, main) == [30.0, 60.0, 100.0, 100.0]


@pytest.mark.parametrize(("healthy", "next_wait"), [(59.0, 120.0), (61.0, 30.0)])
def test_its_open_time_is_the_first_again_after_as_long_a_healthy_time(
    healthy: float, next_wait: float
) -> None:
    async def main() -> float:
        breaker = Breaker("m", failure_threshold=1, open_for=30.0)
        fail(breaker, now())
        await asyncio.sleep(30)
        fail(breaker, now())
        await asyncio.sleep(60)
        breaker.succeeded(breaker.admit(now()))
        await asyncio.sleep(healthy)
        fail(breaker, now())
        return opened_for(breaker)

    assert run(0, main) == next_wait


def answer(breaker: Breaker, *, well: bool) -> None:
    era = breaker.admit(now())
    if well:
        breaker.succeeded(era)
    else:
        breaker.failed(era, UpstreamServerError("500"))


def test_p9_one_that_fails_every_other_time_opens_by_its_share() -> None:
    async def main() -> tuple[int, str]:
        breaker = Breaker(
            "m", failure_threshold=10, failure_rate=FailureRate(share=0.5, min_calls=20)
        )
        calls = 0
        while breaker.state == "closed" and calls < 1000:
            answer(breaker, well=calls % 2 == 0)
            calls += 1
            await asyncio.sleep(0.1)
        return calls, breaker.state

    assert run(0, main) == (20, "open")


@pytest.mark.parametrize(("pause", "state"), [(1.0, "open"), (7.0, "closed")])
def test_failures_that_lie_far_apart_are_no_share_of_a_window(pause: float, state: str) -> None:
    async def main() -> str:
        rate = FailureRate(share=0.3, window=60.0, min_calls=20)
        breaker = Breaker("m", failure_threshold=10, failure_rate=rate)
        for call in range(40):
            if breaker.state == "open":
                break
            answer(breaker, well=call % 3 != 0)
            await asyncio.sleep(pause)
        return breaker.state

    assert run(0, main) == state


def test_few_failures_among_many_attempts_open_nothing() -> None:
    async def main() -> str:
        breaker = Breaker(
            "m", failure_threshold=10, failure_rate=FailureRate(share=0.5, min_calls=20)
        )
        for call in range(1000):
            answer(breaker, well=call % 3 != 0)
            await asyncio.sleep(0.01)
        return breaker.state

    assert run(0, main) == "closed"


def test_one_that_is_held_open_lets_nothing_through_until_it_is_let_go() -> None:
    async def main() -> tuple[str, str, str]:
        breaker = Breaker("m", failure_threshold=1, open_for=30.0)
        breaker.force("open")
        await asyncio.sleep(3600)
        with pytest.raises(CircuitOpenError, match="an operator holds it so") as caught:
            breaker.admit(now())
        assert caught.value.retry_after is None
        held = breaker.state
        breaker.force(None)
        answer(breaker, well=True)
        return held, breaker.state, repr(breaker)

    assert run(0, main) == ("open", "closed", "<Breaker m closed, 0 probing>")


def test_one_that_is_held_closed_lets_all_through_whatever_fails() -> None:
    async def main() -> tuple[str, str]:
        breaker = Breaker("m", failure_threshold=1, failure_rate=FailureRate(min_calls=1))
        fail(breaker, now())
        breaker.force("closed")
        fail(breaker, now(), 50)
        held = breaker.state
        breaker.force(None)
        fail(breaker, now())
        return held, breaker.state

    assert run(0, main) == ("closed", "open")


def test_an_attempt_from_before_it_was_forced_moves_nothing_after() -> None:
    async def main() -> str:
        breaker = Breaker("m", failure_threshold=1)
        era = breaker.admit(now())
        breaker.force("closed")
        breaker.force(None)
        breaker.failed(era, UpstreamServerError("500"))
        return breaker.state

    assert run(0, main) == "closed"
