"""One round: eight streams, one fault at a random moment, and all that must hold afterwards."""

import asyncio
import random
import time
from dataclasses import dataclass, field

from orchestrator.errors import OrchestratorError, WorkerCrashedError, WorkerError, WorkerHungError
from orchestrator.events import Ending
from orchestrator.sdk import TokenStream
from tests.torture.lab import ALIVE_SECONDS, PROMPTS, SLOTS, Lab
from tests.torture.record import Record
from tests.torture.target import DEATHS, Target, stopped

EARLY_SHARE = 0.15
"""Of the rounds, those whose fault comes at a time and not at a token."""
EARLY_SECONDS = 0.3
LATEST_SHARE = 0.85
"""Of all tokens; later some rounds would find nothing that runs."""
STEP_SECONDS = 0.05
SHORT = 6
"""Tokens of the answer that shows that the service is back."""
PROBE_SECONDS = 0.005
DEATH_SECONDS = 0.05
HANG_SLACK_SECONDS = 0.1
SIGNS = {
    "kill": "SIGKILL",
    "segv": "SIGSEGV",
    "stop": "missed its lease",
    "wedge": "missed its lease",
}
"""What the crash's text must say of each fault."""


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

    async def have_read(self, chunks: int) -> None:
        """Waits until so many pieces were read, all streams together."""
        while self.chunks < chunks:
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
    retried: int = 0
    unread: int = 0
    """Streams that ended with an error before anything was read."""
    noticed_after: float = 0.0
    """From the signal (deaths), or from the end of the lease (hangs)."""
    died_after: float = 0.0
    """From the signal to the end of the process, as the kernel told it."""
    lateness: float = 0.0
    """The most that a timer on the loop was late between the signal and the noticing."""
    back_after: float = 0.0
    """From the signal to the first ready slot."""
    violations: list[str] = field(default_factory=list[str])


class Probe:
    """Measures how late this machine runs a timer, and watches the fault land."""

    def __init__(self, target: Target, record: Record) -> None:
        self._target = target
        self._record = record
        self._beats = record.beats
        self.lateness = 0.0
        self.saw_it_stopped = False
        self.beats = 0
        """Heartbeats since the injection."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            due = time.perf_counter() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            self.lateness = max(self.lateness, time.perf_counter() - due)
            self.saw_it_stopped |= stopped(self._target.pid)
            self.beats = self._record.beats - self._beats

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def play(lab: Lab, number: int, fault: str, chance: random.Random) -> Outcome:
    """Plays one round and judges it; the system is whole again when it returns."""
    begun_at = time.perf_counter()
    process, record = lab.process, lab.record()
    crowd = Crowd([Reading(prompt, lab.ask(prompt)) for prompt in PROMPTS])
    readings = crowd.readings
    tasks = [asyncio.create_task(crowd.read(reading)) for reading in readings]
    outcome = Outcome(number=number, fault=fault)
    with Target(process.pid, lab.host_started_at()) as target:
        outcome.chunks_before = await _random_moment(lab, crowd, chance)
        probe = Probe(target, record)
        try:
            signalled_at = target.inject(fault)
        except ProcessLookupError:
            # a lease that is too short for this machine, or something worse
            outcome.violations.append(f"it died before it was broken: {await process.closed()}")
            signalled_at = begun_at
        crash = await process.closed()
        noticed_at = await _noticed(lab, readings, signalled_at)
        await probe.end()
    outcome.lateness = probe.lateness
    outcome.died_after = (target.ended_at or noticed_at) - signalled_at
    due_at = signalled_at if fault in DEATHS else _lease_end(lab, readings, signalled_at)
    outcome.noticed_after = noticed_at - due_at
    await asyncio.wait(tasks)
    await lab.readiness.slots(SLOTS)
    back_at = lab.readiness.first(True, noticed_at)
    outcome.back_after = (back_at or time.perf_counter()) - signalled_at
    _judge_evidence(outcome, fault, str(crash), probe)
    for reading in readings:
        _judge_stream(lab, outcome, reading, record)
    _judge_times(outcome)
    await _judge_aftermath(lab, outcome, chance.choice(PROMPTS))
    record.close()
    return outcome


async def _random_moment(lab: Lab, crowd: Crowd, chance: random.Random) -> int:
    """Waits for it: now and then before the first token, mostly somewhere in the answers."""
    if chance.random() < EARLY_SHARE:
        await asyncio.sleep(chance.uniform(0.0, EARLY_SECONDS))
    else:
        total = sum(reference.tokens for reference in lab.references.values())
        await crowd.have_read(chance.randrange(int(LATEST_SHARE * total)))
        await asyncio.sleep(chance.uniform(0.0, STEP_SECONDS))
    return crowd.chunks


async def _noticed(lab: Lab, readings: list[Reading], since: float) -> float:
    """When the first stream failed or readiness turned false, whichever came first."""
    while (unready_at := lab.readiness.first(False, since)) is None:
        lab.readiness.changed.clear()
        await lab.readiness.changed.wait()
    failed = [r.ended_at for r in readings if r.error is not None and r.ended_at >= since]
    return min([unready_at, *failed])


def _lease_end(lab: Lab, readings: list[Reading], signalled_at: float) -> float:
    """The latest moment by which a lease had to expire: the shortest one of a running stream.

    What had been sent before the signal may be read a moment after it, and counts as progress.
    """
    ends = [
        max(signalled_at, reading.read_at or 0.0)
        + (lab.limits.first_token if reading.read_at is None else lab.limits.inter_token)
        for reading in readings
        if reading.ended_at == 0.0 or reading.ended_at >= signalled_at
    ]
    return min(ends, default=signalled_at)


def _judge_evidence(outcome: Outcome, fault: str, crash: str, probe: Probe) -> None:
    if SIGNS[fault] not in crash:
        outcome.violations.append(f"the crash says nothing of {SIGNS[fault]}: {crash}")
    if fault == "stop" and not probe.saw_it_stopped:
        outcome.violations.append("inconclusive: the host was never seen stopped")
    if fault == "wedge" and not probe.beats:
        outcome.violations.append("inconclusive: the host's heart did not beat on")


def _judge_stream(lab: Lab, outcome: Outcome, reading: Reading, record: Record) -> None:
    reference = lab.references[reading.prompt]
    attempts = reading.stream.attempts
    name = f"stream {PROMPTS.index(reading.prompt)}"
    found = outcome.violations
    if len(reading.endings) != 1:
        found.append(f"{name} ended {len(reading.endings)} times")
    if not reference.text.startswith(reading.text):
        found.append(f"{name} read {reading.text!r}, which is no beginning of the answer")
    if len(attempts) > 1:
        outcome.retried += 1
    if reading.error is None:
        outcome.finished += 1
        usage = reading.stream.usage
        if reading.text != reference.text or usage is None:
            found.append(f"{name} is finished but not whole: {reading.text!r}")
        elif usage.completion_tokens != reference.tokens:
            found.append(f"{name} counted {usage.completion_tokens} tokens")
        return
    outcome.interrupted += bool(reading.text)
    outcome.unread += not reading.text
    if not isinstance(reading.error, WorkerError):
        found.append(f"{name} ended with {reading.error!r}")
    expected = WorkerCrashedError if outcome.fault in DEATHS else WorkerHungError
    if not isinstance(reading.error.root_cause, expected):
        found.append(f"{name} tells {reading.error.root_cause!r} as its root cause")
    if reading.text and len(attempts) == 1:
        _judge_bounds(found, name, reading, record)


def _judge_bounds(found: list[str], name: str, reading: Reading, record: Record) -> None:
    read = len(reading.text.encode())
    bounds = record.bounds(reading.prompt)
    if bounds is None:
        found.append(f"{name} was read, but the host knows nothing of it")
    elif not bounds[0] <= read <= bounds[1]:
        found.append(f"{name}: {read} bytes read, {bounds[0]} to {bounds[1]} sent")


def _judge_times(outcome: Outcome) -> None:
    # a lease whose own timer is late looks once more, after as long again
    noticed = outcome.noticed_after - 2 * outcome.lateness
    if outcome.fault in DEATHS:
        # how long the kernel takes to take a process apart isn't ours to answer for
        noticed = min(noticed, outcome.noticed_after - max(0.0, outcome.died_after))
        if noticed > DEATH_SECONDS:
            outcome.violations.append(f"death noticed after {noticed * 1000:.0f} ms")
    elif noticed > HANG_SLACK_SECONDS:
        outcome.violations.append(f"hang noticed {noticed * 1000:.0f} ms after its lease")


async def _judge_aftermath(lab: Lab, outcome: Outcome, prompt: str) -> None:
    """The next request is answered, and everything is back where it was."""
    async with asyncio.timeout(ALIVE_SECONDS):
        try:
            answer = await lab.ask(prompt, SHORT)
        except OrchestratorError as error:
            outcome.violations.append(f"the next request failed: {error!r}")
            return
    if not answer.text or not lab.references[prompt].text.startswith(answer.text):
        outcome.violations.append(f"the next answer is {answer.text!r}")
    outcome.violations += lab.at_rest()
