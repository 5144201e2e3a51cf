"""What one round showed: its streams as their readers saw them, and its figures."""

import asyncio
import time
from dataclasses import dataclass, field

from orchestrator.errors import OrchestratorError
from orchestrator.events import Ending
from orchestrator.stream import TokenStream


@dataclass(slots=True, eq=False)
class Reading:
    """One stream and its reader."""

    prompt: str
    stream: TokenStream
    text: str = ""
    read_at: float | None = None
    """When something was last read."""
    ended_at: float = 0.0
    error: OrchestratorError | None = None
    endings: list[Ending | None] = field(default_factory=list[Ending | None])


@dataclass(slots=True, eq=False)
class Crowd:
    """All streams of a round."""

    readings: list[Reading]
    chunks: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        """Whether all have ended."""
        return all(reading.ended_at for reading in self.readings)

    async def have_read(self, chunks: int) -> None:
        """Waits until so many pieces were read, all streams together, or all have ended."""
        while self.chunks < chunks and not self.over:
            self.changed.clear()
            await self.changed.wait()

    async def read(self, reading: Reading) -> None:
        """Reads one stream to its end, and looks whether anything follows it."""
        channel = reading.stream._request.channel
        channel.watch(lambda: reading.endings.append(channel.ending))
        try:
            async for chunk in reading.stream:
                reading.text += chunk.text
                reading.read_at = time.perf_counter()
                self.chunks += 1
                self.changed.set()
        except OrchestratorError as error:
            reading.error = error
        reading.ended_at = time.perf_counter()
        self.changed.set()
        chunks, ending = await channel.receive()
        if chunks or ending is not reading.endings[0]:
            reading.endings.append(ending)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one round showed; times in seconds."""

    number: int
    fault: str
    chunks_before: int = 0
    """Pieces of text that had been read at the moment of the fault."""
    finished: int = 0
    interrupted: int = 0
    """Streams that ended with an error."""
    retried: int = 0
    """Streams with more than one attempt."""
    resumed: int = 0
    """Those of them that went on where they had broken off."""
    mismatches: int = 0
    """Streams whose text is not the undisturbed answer, or not the bytes sent."""
    noticed_after: float = 0.0
    """From the signal (deaths), or from the end of the lease (hangs)."""
    died_after: float = 0.0
    """From the signal to the end of the process, as the kernel told it."""
    lateness: float = 0.0
    """The most that a timer on the loop was late between the signal and the noticing."""
    back_after: float = 0.0
    """From the signal to the first ready slot."""
    prodded: bool = False
    """Whether the fault found nothing that ran, so that a further request had to meet it."""
    crash: str = ""
    """What the system says of the host's end."""
    seen_stopped: bool = False
    """Whether the kernel showed the host as stopped."""
    beats: int = 0
    """Heartbeats of the host between the signal and the noticing."""
    violations: list[str] = field(default_factory=list[str])
