"""A thread that watches the event loop from outside.

Everything that watches workers runs on the loop, so a blocked loop would watch nothing and say that
all is well. The monitor asks the loop to answer, again and again; an answer that is more than a
second late is a fault of the engine, whatever blocked it. It measures its own lateness too: a
pause that froze both (a stopped process, a native call that holds the interpreter's lock) is no
evidence against the loop and is not counted.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

TICK = 0.05
LIMIT = 1.0
OWN_LATENESS = 0.5
"""Seconds: a busy machine wakes every thread late by less, and that excuses no loop."""


class LoopMonitor:
    """Watches one loop.

    Args:
        loop: Which.
        on_blocked: Called on the loop, with the seconds it was blocked, once per block.
        limit: Seconds without an answer that count as a block.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_blocked: Callable[[float], None],
        *,
        limit: float = LIMIT,
    ) -> None:
        self._loop = loop
        self._on_blocked = on_blocked
        self._limit = limit
        self._asked_at: float | None = None
        self._blocked_for = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop-monitor", daemon=True)

    def start(self) -> None:
        """Starts the thread.

        Raises:
            RuntimeError: The system has no thread left; then nothing may be served unwatched.
        """
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; waits for at most one tick."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        woke_at = time.perf_counter()
        while not self._end.wait(TICK):
            now = time.perf_counter()
            own_lateness = now - woke_at - TICK
            woke_at = now
            if self._asked_at is None:
                self._asked_at = now
                with contextlib.suppress(RuntimeError):  # the loop was closed just now
                    self._loop.call_soon_threadsafe(self._answer)
            elif own_lateness > OWN_LATENESS:
                self._asked_at += own_lateness
            elif now - self._asked_at > self._limit:
                self._blocked_for = now - self._asked_at

    def _answer(self) -> None:
        """Runs on the loop."""
        blocked_for, self._blocked_for = self._blocked_for, 0.0
        self._asked_at = None
        if blocked_for and not self._end.is_set():
            self._on_blocked(blocked_for)
