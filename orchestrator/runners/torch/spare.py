"""The host that waits beside the one that serves, to take its place when it dies.

Most of a small model's start is imports: a spare has done them and has loaded nothing. Its own
deaths are nobody's: no slot waits for it, so it costs no restart budget; another one is started
after a while, later each time.
"""

import asyncio
import logging
from collections.abc import Callable

from orchestrator.errors import OrchestratorError, WorkerStartError, describe
from orchestrator.runners.torch.process import HostProcess

FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 60.0
"""Seconds before a spare that died is replaced; one that lived longer than this is the first
again."""

logger = logging.getLogger(__name__)


class Spare:
    """Keeps one spare host, from `keep` until it is taken.

    Args:
        model: Its name for people.
        spawn: Starts a spare host; raises a `WorkerStartError` where that can't be done.
        on_loss: Called for each that died while it waited.
    """

    def __init__(
        self, model: str, spawn: Callable[[], HostProcess], on_loss: Callable[[], None]
    ) -> None:
        self._model = model
        self._spawn = spawn
        self._on_loss = on_loss
        self._process: HostProcess | None = None
        self._keeping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Spare {self.process or 'none'}>"

    @property
    def process(self) -> HostProcess | None:
        """The one that waits, None while there is none."""
        return self._process if self._process is not None and self._process.alive else None

    def keep(self) -> None:
        """From now on there is one, as soon as it can be."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    def take(self) -> HostProcess | None:
        """Gives it away, if there is one; there is none from then on until `keep`."""
        taken, self._process = self.process, None
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        return taken

    async def aclose(self) -> None:
        """Ends it, within 7 s."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._process is not None:
            await self._process.aclose()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = FIRST_BACKOFF
        while True:
            began = loop.time()
            cause = await self._live()
            self._on_loss()
            if loop.time() - began > LONGEST_BACKOFF:
                backoff = FIRST_BACKOFF
            logger.warning(
                "the spare host of %s is lost, the next one is started in %.0f s: %s",
                self._model,
                backoff,
                describe(cause),
            )
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LONGEST_BACKOFF)

    async def _live(self) -> OrchestratorError:
        """Starts one and returns why it is there no longer."""
        try:
            self._process = process = self._spawn()
        except WorkerStartError as error:
            return error
        cause = await process.closed()
        await process.reaped()
        return cause
