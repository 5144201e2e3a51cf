"""What a simulated run replaces, what it refuses, and that it leaves nothing behind."""

import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import aiolimiter
import pybreaker
import pykka
import pytest
import tenacity

from orchestrator.actors import runtime
from orchestrator.chaos.simulation.loop import DeadlockError, ThreadUsedError
from orchestrator.chaos.simulation.world import EPOCH, LeftoverError, run


def breakers_clock() -> type[datetime]:
    return vars(pybreaker)["datetime"]


def test_all_clocks_of_the_world_agree_with_the_loop():
    async def main() -> tuple[float, float, datetime]:
        await asyncio.sleep(90.0)
        return time.monotonic(), time.time(), breakers_clock().now(UTC)  # noqa: TID251 - what is tested

    monotonic, unix, date = run(0, main)

    assert monotonic == 90.0
    assert unix == EPOCH + 90.0
    assert date.timestamp() == EPOCH + 90.0


def test_everything_is_put_back_after_a_run_that_fails():
    before = (time.monotonic, time.time, time.sleep, threading.Thread.start)  # noqa: TID251 - what is tested
    chance = random.getstate()

    async def main() -> None:
        random.seed(99)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        run(0, main)

    assert (time.monotonic, time.time, time.sleep, threading.Thread.start) == before  # noqa: TID251 - as above
    assert breakers_clock() is datetime
    assert random.getstate() == chance
    assert gc.isenabled()


@pytest.mark.parametrize(
    "escape",
    [lambda: time.sleep(0), lambda: threading.Thread(target=int).start()],  # noqa: TID251 - what is refused
    ids=["sleep", "thread"],
)
def test_leaving_for_real_time_ends_the_run_even_if_swallowed(escape: Callable[[], None]):
    async def main() -> None:
        with contextlib.suppress(Exception):
            escape()
        await asyncio.sleep(1)

    with pytest.raises(ThreadUsedError):
        run(0, main)


def test_a_thread_outside_of_the_run_may_sleep_on():
    begin, slept = threading.Event(), threading.Event()

    def outside() -> None:
        begin.wait(5)
        time.sleep(0)  # noqa: TID251 - what is tested
        slept.set()

    thread = threading.Thread(target=outside)
    thread.start()

    async def main() -> bool:
        begin.set()
        return slept.wait(5)

    assert run(0, main)
    thread.join(5)


def test_a_task_left_behind_is_an_error_that_names_it():
    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(9), name="forgotten")
        task.add_done_callback(lambda _: None)

    with pytest.raises(LeftoverError, match="forgotten in sleep"):
        run(0, main)


def test_a_task_canceled_in_the_last_step_is_no_leftover():
    async def main() -> str:
        asyncio.create_task(asyncio.sleep(9)).cancel()
        return "done"

    assert run(0, main) == "done"


def test_a_task_that_swallows_its_cancel_cannot_hold_the_run():
    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(stubborn())

    with pytest.raises(DeadlockError):
        run(0, main)


class Echo(runtime.LoopActor):
    """Answers what it is asked."""

    def on_receive(self, message: object) -> object:
        return message


def test_actors_started_in_a_run_are_gone_after_it_and_others_are_not():
    outsider = pykka.ThreadingActor.start()  # noqa: TID251 - an actor that the run doesn't own

    async def main() -> None:
        ref = Echo.start()
        assert await runtime.ask(ref, "ping", within=1) == "ping"
        Echo.start()

    try:
        with pytest.raises(LeftoverError, match="Echo"):
            run(0, main)

        assert pykka.ActorRegistry.get_all() == [outsider]
    finally:
        outsider.stop()


def test_the_breaker_opens_and_recovers_in_virtual_time():
    async def main() -> list[str]:
        breaker = pybreaker.CircuitBreaker(
            fail_max=2, reset_timeout=30, throw_new_error_on_trip=False
        )

        def fail() -> None:
            raise OSError("down")

        def attempt(work: Callable[[], object]) -> str:
            try:
                breaker.call(work)
            except pybreaker.CircuitBreakerError:
                return "refused"
            except OSError:
                return "failed"
            return "passed"

        seen = [attempt(fail), attempt(fail), attempt(int)]
        await asyncio.sleep(29.9)
        seen.append(attempt(int))
        await asyncio.sleep(0.2)
        seen.append(attempt(int))
        return seen

    assert run(0, main) == ["failed", "failed", "refused", "refused", "passed"]


def retry_times(seed: int) -> list[float]:
    async def main() -> list[float]:
        times: list[float] = []
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_before_delay(20),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
            retry=tenacity.retry_if_exception_type(OSError),
            reraise=True,
        )
        with contextlib.suppress(OSError):
            async for attempt in retrying:
                with attempt:
                    times.append(asyncio.get_running_loop().time())
                    raise OSError("down")
        return times

    return run(seed, main)


def test_tenacitys_jitter_and_limits_follow_the_seed_and_the_virtual_clock():
    times = retry_times(5)

    assert times == retry_times(5)
    assert times != retry_times(6)
    assert 15 < times[-1] < 20


def tangle(seed: int) -> str:
    """A run in which a limiter, a breaker, jitter and a shuffled loop meet; returns its trace."""

    async def main() -> str:
        limiter = aiolimiter.AsyncLimiter(5, 0.1)
        breaker = pybreaker.CircuitBreaker(fail_max=3, reset_timeout=1)
        backoff = tenacity.wait_random(0.01, 0.2)
        lines: list[str] = []

        async def client(number: int) -> None:
            for attempt in range(4):
                await limiter.acquire()
                now = asyncio.get_running_loop().time()
                lines.append(f"{now:.6f} {number} {attempt} {breaker.current_state}")
                with contextlib.suppress(pybreaker.CircuitBreakerError, ZeroDivisionError):
                    breaker.call(lambda: 1 // random.choice((0, 1)))
                state = tenacity.RetryCallState(tenacity.AsyncRetrying(), None, (), {})
                await asyncio.sleep(backoff(state))

        await asyncio.gather(*(client(number) for number in range(20)))
        return "\n".join(lines)

    return run(seed, main, shuffle=seed % 2 == 0, grid=0.01 if seed % 2 == 0 else 0.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_trace_and_another_does_not(seed: int):
    assert tangle(seed) == tangle(seed)
    assert tangle(seed) != tangle(seed + 2)


def test_another_hash_seed_in_another_process_gives_the_same_trace():
    code = "from tests.chaos.simulation.test_world import tangle; print(tangle(2), end='')"

    traces = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=50,
        ).stdout
        for hash_seed in ("1", "42")
    ]

    assert traces == [tangle(2)] * 2
