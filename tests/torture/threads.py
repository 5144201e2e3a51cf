"""Threads that begin at the same moment, and an event loop that lives on one."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""Whoever has waited for so long waits for ever."""
DELAY_STEPS = 400

Work = Callable[[], str]


class Threads:
    """Lets pieces of work begin at the same moment on threads of their own.

    Args:
        seed: Of the small delays before each of them.
    """

    def __init__(self, seed: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="race")
        self._chance = random.Random(seed)
        self.came_back: Counter[str] = Counter()

    def together(self, *works: Work, last: Work, late_by: int) -> None:
        """Runs them and counts how each came back.

        Args:
            works: Whoever asks for something.
            last: What comes in between.
            late_by: The most steps of a loop that it waits longer than the others.

        Raises:
            TimeoutError: One of them waits for ever.
        """
        barrier = threading.Barrier(len(works) + 1)

        def begin(work: Work, delay: int) -> str:
            barrier.wait(PATIENCE_SECONDS)
            for _ in range(delay):
                pass
            return work()

        futures = [
            self._pool.submit(begin, work, self._chance.randrange(DELAY_STEPS)) for work in works
        ]
        futures.append(self._pool.submit(begin, last, self._chance.randrange(late_by)))
        for future in futures:
            self.came_back[future.result(PATIENCE_SECONDS)] += 1

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


class Home:
    """An event loop on a thread of its own, as the SDK has one."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="home", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_SECONDS)

    def close(self) -> None:
        """Ends loop and thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def home() -> Generator[Home]:
    """A loop on a thread, closed at the end."""
    made = Home()
    try:
        yield made
    finally:
        made.close()
