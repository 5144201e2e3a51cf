"""Permits: what the provider sees is never more than what was allowed."""

import asyncio
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.chaos.simulation.loop import SimLoop
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import RequestTooLargeError, UpstreamRateLimitedError
from orchestrator.policies.limits.key import Permit
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.standing import Allowance, Meter


def limiter(*, rpm: float | None = None, tpm: float | None = None) -> RateLimiter:
    return RateLimiter(RateLimits(requests_per_minute=rpm, tokens_per_minute=tpm))


def used(permits: RateLimiter, meter: Meter) -> float:
    return dict(permits.keys[0]._windows)[meter].used


def now() -> float:
    return asyncio.get_running_loop().time()


def all_that_start(permits: RateLimiter) -> int:
    count = 0
    while permits.reserve(3, 4, now()) is not None:
        count += 1
    return count


@settings(max_examples=20, deadline=None)
@given(
    rpm=st.sampled_from([1.0, 7.0, 60.0, 600.0, 6000.0]),
    gaps=st.lists(st.sampled_from([0.0, 0.01, 0.3, 2.0, 25.0]), min_size=1, max_size=40),
)
def test_i13_no_window_sees_more_starts_than_burst_and_rate_allow(
    rpm: float, gaps: list[float]
) -> None:
    async def main() -> list[float]:
        permits = limiter(rpm=rpm)
        starts: list[float] = []
        for gap in gaps:
            await asyncio.sleep(gap)
            while len(starts) < 30_000 and (permit := permits.reserve(0, 1, now())) is not None:
                permit.settle(0, 1)
                starts.append(now())
        return starts

    starts = run(0, main)

    # n starts between two of them need n <= burst + rate * time: so `number - rate * at` must never
    # rise by more than the burst above its lowest value so far
    burst, rate = max(1.0, rpm * 0.1), rpm / 60
    lowest = 0.0
    for number, at in enumerate(starts):
        lowest = min(lowest, number - rate * at)
        assert number + 1 - rate * at - lowest <= burst + 1e-6


def test_a_request_may_start_exactly_when_ready_at_said() -> None:
    async def main() -> list[float]:
        permits = limiter(rpm=60)
        starts: list[float] = []
        for _ in range(12):
            while (permit := permits.reserve(0, 1, now())) is None:  # noqa: ASYNC110 - it is told when
                await asyncio.sleep(permits.ready_at(0, 1, now()) - now())
            permit.settle(0, 1)
            starts.append(round(now(), 3))
        return starts

    # a burst of a tenth of a minute, then one per second
    assert run(0, main) == [0.0] * 6 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a1_a_big_permit_is_not_starved_by_small_ones() -> None:
    async def main() -> float:
        permits = limiter(tpm=600)
        first = permits.reserve(0, 600, now())
        assert first is not None
        first.settle(0, 600)
        # the engine asks for the head of its queue only, so the small ones wait behind it
        queue = [500, *([10] * 50)]
        while queue[0] == 500:
            permit = permits.reserve(0, queue[0], now())
            if permit is not None:
                permit.settle(0, queue.pop(0))
                return now()
            await asyncio.sleep(permits.ready_at(0, queue[0], now()) - now())
        return -1.0

    assert run(0, main) == pytest.approx(61.0)


def test_what_was_not_used_comes_back_when_the_permit_is_settled() -> None:
    async def main() -> tuple[bool, bool]:
        permits = limiter(tpm=1000)
        permit = permits.reserve(0, 1000, now())
        assert permit is not None
        before = permits.reserve(0, 900, now()) is not None
        permit.settle(0, 100)
        return before, permits.reserve(0, 900, now()) is not None

    assert run(0, main) == (False, True)


def test_what_was_used_beyond_the_estimate_is_waited_for_later() -> None:
    async def main() -> float:
        permits = limiter(tpm=600)
        permit = permits.reserve(0, 10, now())
        assert permit is not None
        permit.settle(0, 900)
        return permits.ready_at(0, 1, now())

    assert run(0, main) == pytest.approx(61.0)


def test_a_count_that_nobody_can_have_used_is_waited_for_no_longer_than_a_minute() -> None:
    async def main() -> float:
        permits = limiter(tpm=600)
        permit = permits.reserve(0, 10, now())
        assert permit is not None
        permit.settle(0, 1 << 53)
        return permits.ready_at(0, 0, now())

    assert run(0, main) == pytest.approx(61.0)


def test_a_release_gives_back_the_request_and_its_tokens() -> None:
    async def main() -> tuple[object, bool]:
        permits = limiter(rpm=1, tpm=100)
        permit = permits.reserve(0, 100, now())
        assert permit is not None
        refused = permits.reserve(0, 100, now())
        permit.release()
        return refused, permits.reserve(0, 100, now()) is not None

    assert run(0, main) == (None, True)


def test_a_permit_is_given_back_once_however_often_it_is_asked() -> None:
    async def main() -> int:
        permits = limiter(rpm=600, tpm=1000)
        permit = permits.reserve(0, 100, now())
        assert permit is not None
        permit.settle(0, 50)
        permit.release()
        permit.settle(0, 0)
        assert used(permits, Meter.TOKENS) == 50
        return permits.outstanding

    assert run(0, main) == 0


def test_a_refused_reservation_takes_nothing_from_either_bucket() -> None:
    async def main() -> tuple[float, float]:
        permits = limiter(rpm=600, tpm=100)
        assert permits.reserve(0, 80, now()) is not None
        for _ in range(50):
            assert permits.reserve(0, 80, now()) is None
        return used(permits, Meter.REQUESTS), used(permits, Meter.TOKENS)

    assert run(0, main) == (1.0, 80.0)


def test_of_several_pauses_the_latest_counts() -> None:
    async def main() -> tuple[object, float]:
        permits = limiter()
        permits.pause(5.0)
        permits.pause(30.0)
        permits.pause(10.0)
        return permits.reserve(0, 1, 29.9), permits.ready_at(0, 1, 0.0)

    assert run(0, main) == (None, 30.0)


def test_a_pause_is_refused_only_to_those_who_cannot_wait_for_it() -> None:
    permits = limiter()
    permits.pause(100.0)

    assert permits.refusal(20.0, 90.0) is None
    refusal = permits.refusal(20.0, 60.0)
    assert refusal is not None
    assert refusal.retry_after == 40.0
    assert permits.refusal(0.0, 100.0) is None


def test_no_answer_pauses_a_key_for_longer_than_an_hour_at_a_time() -> None:
    permits = limiter()

    permits.heed(1e9, 100.0)
    first = permits.paused_for(100.0)
    permits.heed(1e9, 600.0)

    assert (first, permits.paused_until) == (3600.0, 4200.0)


def test_the_text_of_a_refusal_has_whole_seconds_only() -> None:
    permits = limiter()
    permits.pause(100.04)

    refusal = permits.refusal(1.0, 90.0)

    assert refusal is not None
    assert refusal.message.endswith("it ends in 10 s")


def test_a3_a_request_above_a_whole_bucket_is_refused_at_admission() -> None:
    permits = limiter(tpm=1000)

    permits.check(0, 1000)
    with pytest.raises(RequestTooLargeError, match="1001 tokens") as caught:
        permits.check(0, 1001)

    assert (caught.value.status_code, caught.value.param) == (413, "max_tokens")


def test_a_key_that_nobody_limits_has_an_infinite_rate_until_it_is_refused_at_one() -> None:
    async def main() -> list[float]:
        key = RateLimiter(RateLimits(learn=True)).keys[0]
        rates = [key.rate]
        for _ in range(10):
            permit = key.reserve(0, 1, now())
            assert permit is not None
            await asyncio.sleep(1.0)
            permit.settle(0, 1)
        key.refused(UpstreamRateLimitedError("429"), now(), now())
        rates.append(key.rate)
        key.restore()
        return [*rates, key.rate]

    assert run(0, main) == [math.inf, pytest.approx(30.0, abs=0.1), math.inf]


def test_a_first_word_about_a_key_leaves_out_those_given_up_since_its_request_was_sent() -> None:
    async def main() -> int:
        permits = RateLimiter(RateLimits(learn=True))
        early = [permits.reserve(3, 4, now()) for _ in range(2)]
        first = permits.reserve(3, 4, now())
        late = [permits.reserve(3, 4, now()) for _ in range(2)]
        for permit in (*early, *late):
            assert permit is not None
            permit.spend()
        assert first is not None
        first.hear((Allowance(remaining=10.0, limit=12.0, reset_after=60.0), None, None, None))
        return all_that_start(permits)

    # nobody knows whether it had counted the four when it counted that one
    assert run(0, main) == 6


def test_a_first_word_about_a_key_counts_what_had_ended_before_its_request_was_sent() -> None:
    async def main() -> int:
        permits = RateLimiter(RateLimits(learn=True))
        for _ in range(5):
            before = permits.reserve(3, 4, now())
            assert before is not None
            before.spend()
        first = permits.reserve(3, 4, now())
        assert first is not None
        first.hear((Allowance(remaining=6.0, limit=12.0, reset_after=60.0), None, None, None))
        return all_that_start(permits)

    assert run(0, main) == 6


def test_without_limits_everything_starts_and_nothing_is_counted() -> None:
    permits = limiter()

    permits.check(0, 10**9)
    permit = permits.reserve(0, 10**9, 0.0)

    assert permit is not None
    assert permits.ready_at(0, 10**9, 3.0) == 3.0


def test_a_rate_below_one_per_minute_is_a_wait_and_no_error() -> None:
    async def main() -> float:
        permits = limiter(rpm=0.5)
        first = permits.reserve(0, 1, now())
        assert first is not None
        first.settle(0, 1)
        return permits.ready_at(0, 1, now())

    assert run(0, main) == pytest.approx(122.0)


class LimiterMachine(RuleBasedStateMachine):
    """Permits come and go in any order; the books balance at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop()
        self.permits = limiter(rpm=6000, tpm=10_000)
        self.out: list[Permit] = []
        pace = self.permits.keys[0]._pace
        assert pace is not None
        pace._event_loop = self.loop

    @property
    def clock(self) -> float:
        return self.loop.time()

    @rule(tokens=st.integers(1, 10_000))
    def reserve(self, tokens: int) -> None:
        ready_at = self.permits.ready_at(0, tokens, self.clock)
        permit = self.permits.reserve(0, tokens, self.clock)

        if permit is not None:
            assert ready_at == self.clock
            self.out.append(permit)
        else:
            assert ready_at > self.clock or ready_at == pytest.approx(self.clock)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), used=st.integers(0, 20_000))
    def settle(self, data: st.DataObject, used: int) -> None:
        self.out.pop(data.draw(st.integers(0, len(self.out) - 1))).settle(0, used)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.out.pop(data.draw(st.integers(0, len(self.out) - 1))).release()

    @rule(seconds=st.floats(0, 120))
    def time_passes(self, seconds: float) -> None:
        self.loop._now += seconds

    @rule(seconds=st.floats(0, 20))
    def pause(self, seconds: float) -> None:
        before = self.permits.paused_until
        self.permits.pause(self.clock + seconds)
        assert self.permits.paused_until >= before

    @invariant()
    def balances(self) -> None:
        assert self.permits.outstanding == len(self.out)
        assert 0 <= used(self.permits, Meter.REQUESTS) <= 6000
        assert used(self.permits, Meter.TOKENS) >= 0

    def teardown(self) -> None:
        for permit in self.out:
            permit.settle(0, 0)
        assert self.permits.outstanding == 0
        self.loop.close()


TestLimiterBooks = LimiterMachine.TestCase
TestLimiterBooks.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
