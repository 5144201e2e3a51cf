"""The process behind a simulated local runner: it can die, and everyone in it with it."""

import asyncio
from collections.abc import Callable

from orchestrator.errors import OrchestratorError, WorkerCrashedError, describe


class Host:
    """One model host.

    Args:
        number: Of its life; what its death is known by.
        on_death: Told once, with this host and the cause, before anyone in it learns of it.
    """

    def __init__(self, number: int, on_death: "Callable[[Host, BaseException], None]") -> None:
        self.number = number
        self.cause: BaseException | None = None
        """What it died of; None while it lives."""
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._death: asyncio.Future[BaseException] = self._loop.create_future()
        self._stopped_until = 0.0
        self._waiters: dict[asyncio.Future[None], None] = {}  # a dict, for its order

    def __repr__(self) -> str:
        return f"<Host {self.number} {'alive' if self.cause is None else 'dead'}>"

    async def wait(self, seconds: float | None) -> None:
        """Lets time pass in the host; None waits for ever.

        Raises:
            WorkerCrashedError: The host is dead, or dies meanwhile.
        """
        await self._pass(seconds)
        while (rest := self._stopped_until - self._loop.time()) > 0:
            await self._pass(rest)

    def stop(self, seconds: float) -> None:
        """Lets nothing go on in it for so long."""
        self._stopped_until = max(self._stopped_until, self._loop.time() + seconds)

    async def _pass(self, seconds: float | None) -> None:
        """Lets time pass.

        Raises:
            WorkerCrashedError: The host is dead, or dies meanwhile.
        """
        if self.cause is not None:
            raise self.crash()
        waiter: asyncio.Future[None] = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, _wake, waiter)
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            del self._waiters[waiter]
            if timer is not None:
                timer.cancel()

    async def closed(self) -> BaseException:
        """Waits for the death and returns its cause."""
        return await asyncio.shield(self._death)

    def die(self, cause: BaseException) -> None:
        """Ends the host; only the first time counts."""
        if self.cause is not None:
            return
        self.cause = cause
        self._on_death(self, cause)
        self._death.set_result(cause)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self.crash())

    def crash(self) -> OrchestratorError:
        """A fresh error for one of those who were in it.

        Raises:
            RuntimeError: It lives.
        """
        if self.cause is None:
            raise RuntimeError(f"{self} has nothing to tell")
        error = WorkerCrashedError(f"the model host died: {describe(self.cause)}")
        error.__cause__ = self.cause
        return error


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
