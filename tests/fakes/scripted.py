"""A runner that does what a script says: the world outside, without a world."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.errors import WorkerHungError
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import PriorityRequest, Work
from orchestrator.resume import Resume
from orchestrator.runners.base import CHAT_ALONE, Abilities, SlotFactory, accept_anything
from orchestrator.runners.lease import Lease, Step

Line = str | TokenChunk | BaseException | asyncio.Event | float | Finished
"""A token; a chunk; an error to raise; an event to wait for; seconds to sleep; an ending."""

DONE = Finished(FinishReason.STOP, Usage(prompt_tokens=1, completion_tokens=1))


@dataclass
class Stage:
    """What all runners of one deployment share: the script and what was seen."""

    script: Callable[[PriorityRequest, int], Sequence[Line]]
    """(request, number of the call from 0) -> lines; without `Finished` it ends early."""
    local: bool = False
    context: int | None = None
    resumes: str | None = None
    """Lines of the script that were sent before are skipped when an answer goes on."""
    prefill: bool = False
    start_error: Callable[[int], BaseException | None] = lambda _: None
    """(number of the start from 0) -> what the start fails with."""
    start_gate: asyncio.Event | None = None
    """Starts wait for it."""
    close_gate: asyncio.Event | None = None
    """Closes wait for it."""
    dead_on_arrival: int = 0
    """So many runners die at the moment in which they are ready."""
    works: frozenset[Work] = CHAT_ALONE
    inspect: Callable[[PriorityRequest], Awaitable[None] | None] = accept_anything
    on_running: Callable[[int], None] = lambda _: None
    """Told how many attempts run, whenever that changes."""
    resumed: list[Resume] = field(default_factory=list)
    """What the attempts that go on with an answer were given."""
    calls: list[str] = field(default_factory=list)
    """Request ids in the order in which they reached a runner."""
    served_by: dict[int, int] = field(default_factory=dict)
    starts: int = 0
    running: int = 0
    most_running: int = 0
    closed: int = 0
    hung: list[BaseException] = field(default_factory=list)
    deaths: list[asyncio.Future[BaseException]] = field(default_factory=list)

    def factory(self) -> SlotFactory:
        return SlotFactory(
            create=lambda: ScriptedRunner(self),
            model="scripted",
            works=self.works,
            inspect=self.inspect,
            resumes=self.resumes,
        )

    def kill_host(self, cause: BaseException) -> None:
        """All runners that were started die of one cause, as the slots of one model host do."""
        deaths, self.deaths = self.deaths, []
        for death in deaths:
            if not death.done():
                death.set_result(cause)


def always(*lines: Line, local: bool = False) -> Stage:
    """Does the same for every request."""
    return Stage(lambda _request, _call: lines, local=local)


class ScriptedRunner:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._death: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.number = -1

    @property
    def abilities(self) -> Abilities:
        return Abilities(local=self._stage.local, resumable=self._stage.resumes is not None)

    async def start(self) -> None:
        self.number = self._stage.starts
        self._stage.starts += 1
        if self._stage.start_gate is not None:
            await self._stage.start_gate.wait()
        error = self._stage.start_error(self.number)
        if error is not None:
            raise error
        self._stage.deaths.append(self._death)
        if self._stage.dead_on_arrival:
            self._stage.dead_on_arrival -= 1
            self._death.set_result(RuntimeError("dead on arrival"))

    async def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        stage = self._stage
        call = len(stage.calls)
        stage.calls.append(request.request_id)
        stage.served_by[self.number] = stage.served_by.get(self.number, 0) + 1
        stage.running += 1
        stage.most_running = max(stage.most_running, stage.running)
        stage.on_running(stage.running)
        lease.arm(Step.FIRST_TOKEN)
        try:
            sent = 0
            if request.resume is not None:
                stage.resumed.append(request.resume)
                sent = len(request.resume.chunks) if stage.resumes is not None else 0
            for line in stage.script(request, call):
                match line:
                    case str() | TokenChunk() if sent > 0:
                        sent -= 1
                    case str() | TokenChunk():
                        if lease.step is Step.FIRST_TOKEN:
                            lease.arm(Step.NEXT_TOKEN)
                        lease.progress()
                        yield TokenChunk(line) if isinstance(line, str) else line
                    case asyncio.Event():
                        await line.wait()
                    case int() | float():
                        await asyncio.sleep(line)
                    case Finished():
                        yield line
                    case BaseException():
                        raise line
        finally:
            stage.running -= 1
            stage.on_running(stage.running)

    async def closed(self) -> BaseException:
        return await asyncio.shield(self._death)

    def hung(self, cause: WorkerHungError) -> None:
        self._stage.hung.append(cause)

    async def aclose(self) -> None:
        if self._stage.close_gate is not None:
            await self._stage.close_gate.wait()
        self._stage.closed += 1
