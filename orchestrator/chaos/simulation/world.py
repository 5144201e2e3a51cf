"""The world around a simulated run: clocks, chance and threads, all put back afterwards.

asyncio, aiolimiter and httpx tell the time from the loop. tenacity asks `time.monotonic` and the
global `random`, pybreaker asks `datetime.now` (P7); these are replaced while a run lasts. What
can't be simulated is refused: a thread that starts and a sleep that blocks (`ThreadUsedError`).

Two runs of one seed are equal only if nothing that enters the trace comes from hash order, `id()`,
uuid or task names (asyncio numbers tasks over the whole life of the process).
"""

import asyncio
import gc
import random
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, tzinfo
from typing import ParamSpec, Self, TypeVar

import pybreaker

from orchestrator.chaos.simulation.loop import SimLoop, SimulationError, ThreadUsedError

T = TypeVar("T")
P = ParamSpec("P")

EPOCH = 1_700_000_000.0
"""Unix time, seconds, at which every simulated run begins."""
SETTLE_TURNS = 10
CLEAR_ROUNDS = 3
CLEAR_SECONDS = 60.0


class LeftoverError(SimulationError):
    """The run is over, but tasks of it are still there."""


def run(
    seed: int,
    main: Callable[[], Awaitable[T]],
    *,
    shuffle: bool = False,
    grid: float = 0.0,
) -> T:
    """Runs `main` to its end in virtual time and leaves nothing behind.

    Actors live as tasks on the loop, so those that were started here, and no others, are gone
    afterwards, from pykka's registry too. Must not be called from a running loop.

    Args:
        seed: Of the loop's shuffle and of the global `random`.
        main: Makes the system and drives it.
        shuffle: Whether what is ready at one instant runs in random order.
        grid: Seconds to which timers are rounded up; 0 for exact times.

    Returns:
        What `main` returns.

    Raises:
        SimulationError: The run got stuck, used a thread, lost an exception or left tasks behind.
    """
    loop = SimLoop(seed, shuffle=shuffle, grid=grid)
    with virtual_world(loop, seed):
        try:
            return _run_to_the_end(loop, main)
        except Exception:
            if loop.verdict is not None:
                raise loop.verdict  # noqa: B904 - what the code under test made of it is its context
            raise
        finally:
            _clear(loop)
            loop.close()


@contextmanager
def virtual_world(loop: SimLoop, seed: int) -> Generator[None, None, None]:
    """Replaces clocks, chance and threads while a run lasts.

    The garbage collector rests meanwhile: its hour depends on all that the process did before, and
    a finalizer would bring that into the run.
    """
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        random.seed(seed)
        if gc.isenabled():
            stack.callback(gc.enable)
            gc.disable()
        for target, name, value in (
            (time, "monotonic", loop.time),
            (time, "time", lambda: EPOCH + loop.time()),
            (time, "sleep", _refused(loop, "time.sleep", _blocking_sleep)),
            (threading.Thread, "start", _refused(loop, "a thread", threading.Thread.start)),
            (pybreaker, "datetime", _virtual_datetime(loop)),
        ):
            stack.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, value)
        yield


_blocking_sleep = time.sleep  # noqa: TID251 - kept for the threads outside of the run


def _refused(loop: SimLoop, name: str, real: Callable[P, T]) -> Callable[P, T]:
    def canary(*args: P.args, **kwargs: P.kwargs) -> T:
        if loop.on_this_thread():
            raise loop.fail(ThreadUsedError(f"{name} was used in simulation"))
        return real(*args, **kwargs)

    return canary


def _virtual_datetime(loop: SimLoop) -> type[datetime]:
    class VirtualDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(EPOCH + loop.time(), tz)

    return VirtualDatetime


def _run_to_the_end(loop: SimLoop, main: Callable[[], Awaitable[T]]) -> T:
    result = loop.run_until_complete(_awaited(main))
    loop.run_until_complete(_settle())
    if loop.verdict is not None:
        raise loop.verdict
    if asyncio.all_tasks(loop):
        raise LeftoverError(f"the run left {loop.waiting()}")
    return result


async def _awaited(main: Callable[[], Awaitable[T]]) -> T:
    return await main()


async def _settle() -> None:
    # a task that was canceled by the last step needs a few turns to end
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)


def _clear(loop: SimLoop) -> None:
    loop.pardon()
    for _ in range(CLEAR_ROUNDS):
        if not asyncio.all_tasks(loop):
            break
        with suppress(SimulationError):  # a task that swallows its cancel waits for ever
            loop.run_until_complete(_cancel_all())
    with suppress(SimulationError):
        loop.run_until_complete(loop.shutdown_asyncgens())


async def _cancel_all() -> None:
    await asyncio.sleep(0)  # a task that never began couldn't clean up
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLEAR_SECONDS)
