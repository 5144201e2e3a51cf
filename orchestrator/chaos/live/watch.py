"""Asks the health page twenty times a second, and notes what it says and how late we were."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import httpx

from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.live.inside import Inside
from orchestrator.errors import ConfigError
from orchestrator.reading.text import list_of, section_of

EVERY = 0.05
PATIENCE = 5.0


class Watch:
    """The prober of one gateway.

    Args:
        url: Base URL.
        inside: What is true within, beside what the page says.
        journal: Told of every answer, and of each deployment whenever it changes.
    """

    def __init__(self, url: str, inside: Inside, journal: Journal) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False)
        self._inside = inside
        self._true: dict[str, tuple[int, int]] = {}
        self._journal = journal
        self._last: dict[str, tuple[bool, int, int]] = {}
        self._task: asyncio.Task[None] | None = None
        self.ready_at = time.perf_counter()
        """When the page last said that some route is ready."""
        self.on_look: Callable[[], None] = lambda: None
        """Told after each look."""

    def begin(self) -> None:
        """Looks from now on."""
        self._task = asyncio.create_task(self._look())

    async def end(self) -> None:
        """Looks no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._client.aclose()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._ask(late=max(0.0, loop.time() - due))
            self.on_look()
            due = max(due + EVERY, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _ask(self, *, late: float) -> None:
        asked = time.perf_counter()
        try:
            response = await self._client.get("/readyz")
            page = section_of(response.json())
        except (httpx.HTTPError, ValueError):
            self._journal.record(Kind.PROBE, ready=False, status=0, late=late, took=0.0)
            return
        ready, took = page.get("ready") is True, time.perf_counter() - asked
        status = response.status_code
        self._journal.record(Kind.PROBE, ready=ready, status=status, late=late, took=took)
        if ready:
            self.ready_at = time.perf_counter()
        before, self._true = self._true, await self._within()
        told = [section_of(item) for item in list_of(page.get("deployments"))]
        for one in told:
            self._note(one, before)
        for name in self._last.keys() - {str(one.get("name", "")) for one in told}:
            del self._last[name]
            self._journal.record(Kind.RETIRED, deployment=name)

    async def _within(self) -> dict[str, tuple[int, int]]:
        try:
            state = await self._inside.state()
        except ConfigError:  # it ends just now
            return {}
        return {one.name: (one.changes, one.live_slots) for one in state.deployments}

    def _note(self, one: Mapping[str, object], before: Mapping[str, tuple[int, int]]) -> None:
        name = str(one.get("name", ""))
        live, queued = one.get("live_slots"), one.get("queued")
        seen = (
            one.get("ready") is True,
            live if isinstance(live, int) else 0,
            queued if isinstance(queued, int) else 0,
        )
        last = self._last.get(name)
        # with no change from before the look to after it, this was so at the look
        true = before.get(name)
        dead = true is not None and true == self._true.get(name) and not true[1]
        if last is None or last[:2] != seen[:2] or (dead and seen[0]):
            self._journal.record(
                Kind.READY,
                deployment=name,
                ready=seen[0],
                live=seen[1],
                more={"within": False} if dead else {},
            )
        if last is None or last[2] != seen[2]:
            self._journal.record(Kind.QUEUE_DEPTH, deployment=name, depth=seen[2])
        self._last[name] = seen
