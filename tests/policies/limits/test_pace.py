"""An even pace of starts, and how a key that was told to slow down wins its rate back."""

import asyncio
import inspect

import pytest
from aiolimiter import AsyncLimiter

from orchestrator.chaos.simulation.world import run
from orchestrator.policies.limits.pace import Pace, Throttle


@pytest.mark.parametrize("name", ["_level", "_rate_per_sec", "_last_check", "max_rate"])
def test_aiolimiter_still_has_the_arithmetic_that_the_pace_uses(name: str) -> None:
    assert name in AsyncLimiter.__slots__


def test_aiolimiter_still_leaks_by_the_loops_clock() -> None:
    async def main() -> tuple[float, float]:
        bucket = AsyncLimiter(10, 5)
        assert bucket.has_capacity(10)
        bucket._level = 10.0
        await asyncio.sleep(1.0)
        bucket._leak()
        return bucket._level, bucket._rate_per_sec

    assert run(0, main) == (8.0, 2.0)
    assert list(inspect.signature(AsyncLimiter.has_capacity).parameters) == ["self", "amount"]


def test_a_change_of_the_rate_keeps_what_has_started() -> None:
    async def main() -> tuple[float, float]:
        pace = Pace(60.0, 1.0)
        pace.count(1)
        before = pace.ready_in()
        pace.change(6.0)
        return before, pace.ready_in()

    assert run(0, main) == (pytest.approx(1.0), pytest.approx(10.0))


def test_a_rate_is_halved_at_once_and_won_back_step_by_step() -> None:
    async def main() -> tuple[float, float, float, bool]:
        throttle = Throttle(600.0, 0.0)
        halved = throttle.per_minute
        throttle.recover(0.5)  # too soon after the last change
        soon = throttle.per_minute
        throttle.recover(1.0)
        later = throttle.per_minute
        whole = [throttle.recover(float(second)) for second in range(2, 60)]
        return halved, soon, later, whole.index(True) == 23

    assert run(0, main) == (300.0, 300.0, 312.0, True)


def test_no_refusal_takes_the_last_start_per_minute() -> None:
    async def main() -> float:
        throttle = Throttle(8.0, 0.0)
        for second in range(10):
            throttle.lower(float(second))
        return throttle.per_minute

    assert run(0, main) == 1.0
