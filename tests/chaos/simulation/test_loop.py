"""The loop's rules, and the names of asyncio's base loop that it leans on."""

import asyncio
import contextlib
import threading

import aiolimiter
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.chaos.simulation.loop import (
    DeadlockError,
    LivelockError,
    SimLoop,
    ThreadUsedError,
    UnhandledError,
)
from orchestrator.chaos.simulation.world import run

DAY = 86_400.0


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_day_of_sleep_passes_at_once():
    async def main() -> float:
        await asyncio.sleep(DAY)
        return now()

    assert run(0, main) == DAY


def test_a_timeout_fires_at_its_exact_virtual_time():
    async def main() -> float:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.Event().wait()
        return now()

    assert run(0, main) == 0.3


@pytest.mark.parametrize("grid", [0.0, 0.01])
@pytest.mark.parametrize("shuffle", [False, True])
def test_three_hundred_permits_come_at_the_limiters_rate(shuffle: bool, grid: float):
    async def main() -> list[float]:
        limiter = aiolimiter.AsyncLimiter(10, 1.0)
        granted: list[float] = []

        async def take() -> None:
            await limiter.acquire()
            granted.append(now())

        await asyncio.gather(*(take() for _ in range(300)))
        return granted

    granted = run(7, main, shuffle=shuffle, grid=grid)

    assert len(granted) == 300
    assert granted == sorted(granted)
    assert granted[9] == pytest.approx(0.0, abs=0.05)
    assert granted[-1] == pytest.approx(29.0, abs=0.1 if grid == 0.0 else 3.0)


def test_waiting_for_what_never_comes_is_a_deadlock_that_names_the_task():
    async def main() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="reader")

    with pytest.raises(DeadlockError, match=r"reader in Event\.wait"):
        run(0, main)


def test_a_loop_that_turns_without_time_is_a_livelock():
    async def main() -> None:
        while True:  # noqa: ASYNC110 - the spin is what is tested
            await asyncio.sleep(0)

    with pytest.raises(LivelockError, match="200000 turns"):
        run(0, main)


def test_time_creeps_so_that_a_timer_ends_a_spin():
    async def main() -> int:
        turns = 0
        loop = asyncio.get_running_loop()
        end = loop.time() + 1e-4
        while loop.time() < end:
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert 200 < run(0, main) < 400


def test_a_foreign_thread_that_wakes_the_loop_ends_the_run():
    gate = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def wake() -> None:
        gate.wait(5)
        loops[0].call_soon_threadsafe(lambda: None)

    outside = threading.Thread(target=wake)
    outside.start()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        gate.set()
        outside.join(5)
        await asyncio.sleep(1)

    with pytest.raises(ThreadUsedError, match="woke"):
        run(0, main)


def test_waking_the_loop_from_its_own_thread_is_allowed():
    async def main() -> bool:
        woken = asyncio.Event()
        asyncio.get_running_loop().call_soon_threadsafe(woken.set)
        return await woken.wait()

    assert run(0, main)


def test_work_given_to_a_thread_ends_the_run_even_if_the_error_is_swallowed():
    async def main() -> str:
        with contextlib.suppress(Exception):
            await asyncio.to_thread(int)
        await asyncio.sleep(1)
        return "nothing noticed"

    with pytest.raises(ThreadUsedError, match="executor"):
        run(0, main)


def test_an_error_swallowed_in_the_very_last_step_still_counts():
    async def main() -> str:
        with contextlib.suppress(Exception):
            await asyncio.to_thread(int)
        return "nothing noticed"

    with pytest.raises(ThreadUsedError, match="executor"):
        run(0, main)


def test_looking_up_a_host_name_ends_the_run():
    async def main() -> None:
        await asyncio.open_connection("localhost", 1)

    with pytest.raises(ThreadUsedError):
        run(0, main)


def test_a_task_that_fails_unseen_ends_the_run_with_its_error():
    async def fail() -> None:
        raise ValueError("supervisor lost")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(fail())
        await asyncio.sleep(1)
        del task
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError) as caught:
        run(0, main)

    assert str(caught.value.__cause__) == "supervisor lost"


def test_a_generator_left_to_the_collector_ends_the_run():
    async def numbers():
        yield 1
        yield 2

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="aclosing"):
        run(0, main)


def test_time_that_is_stretched_passes_within_the_step():
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        timer = asyncio.create_task(asyncio.sleep(0.01))
        await asyncio.sleep(0)
        loop.stretch(0.5)
        stretched = loop.time()
        await timer
        return stretched, loop.time()

    assert run(0, main) == (0.5, 0.5)


def test_a_canceled_timer_takes_no_time_at_all():
    async def main() -> float:
        loop = asyncio.get_running_loop()
        for delay in range(1, 500):
            loop.call_later(delay, lambda: None).cancel()
        await asyncio.sleep(0.5)
        return now()

    assert run(0, main) == 0.5


def test_a_timer_on_a_closed_loop_is_refused():
    loop = SimLoop()
    loop.close()

    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, lambda: None)


def order_of(seed: int, *, shuffle: bool, grid: float) -> list[int]:
    async def main() -> list[int]:
        order: list[int] = []

        async def arrive(number: int) -> None:
            await asyncio.sleep(0.001 * (number + 1))
            order.append(number)

        await asyncio.gather(*(arrive(number) for number in range(8)))
        return order

    return run(seed, main, shuffle=shuffle, grid=grid)


def test_shuffle_on_the_grid_permutes_what_would_come_in_order():
    assert order_of(1, shuffle=False, grid=0.0) == list(range(8))
    assert order_of(1, shuffle=True, grid=0.0) == list(range(8))

    orders = {tuple(order_of(seed, shuffle=True, grid=0.01)) for seed in range(40)}

    assert len(orders) > 30
    assert order_of(3, shuffle=True, grid=0.01) == order_of(3, shuffle=True, grid=0.01)


@given(
    delays=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=30),
    shuffle=st.booleans(),
    grid=st.sampled_from([0.0, 0.01]),
    seed=st.integers(0, 2**32),
)
def test_no_timer_ever_fires_early_or_a_grid_step_late(
    delays: list[float], shuffle: bool, grid: float, seed: int
):
    async def main() -> list[tuple[float, float]]:
        async def wait(delay: float) -> tuple[float, float]:
            await asyncio.sleep(delay)
            return delay, now()

        return await asyncio.gather(*(wait(delay) for delay in delays))

    for due, fired in run(seed, main, shuffle=shuffle, grid=grid):
        assert due <= fired <= due + grid + 1e-9
