"""One round: eight streams, one fault at a random moment, and all that must hold afterwards."""

import asyncio
import random
import time

from tests.torture.judge import judge
from tests.torture.lab import PROMPTS, SLOTS, Lab
from tests.torture.outcome import Crowd, Outcome, Reading
from tests.torture.record import Record
from tests.torture.target import DEATHS, Target, stopped

EARLY_SHARE = 0.15
"""Of the rounds, those whose fault comes at a time and not at a token."""
EARLY_STEPS = 3.0
LATEST_SHARE = 0.85
"""Of all tokens; later some rounds would find nothing that runs."""
PROBE_SECONDS = 0.005


class Probe:
    """Measures how late this machine runs a timer, and watches the fault land."""

    def __init__(self, outcome: Outcome, target: Target, record: Record) -> None:
        self._outcome = outcome
        self._target = target
        self._record = record
        self._first_beat = record.beats
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        outcome = self._outcome
        while True:
            due = time.perf_counter() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            outcome.lateness = max(outcome.lateness, time.perf_counter() - due)
            outcome.seen_stopped |= stopped(self._target.pid)
            outcome.beats = self._record.beats - self._first_beat

    async def end(self) -> None:
        """Measures no longer."""
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
        probe = Probe(outcome, target, record)
        try:
            signalled_at = target.inject(fault)
        except ProcessLookupError:
            # a lease that is too short for this machine, or something worse
            outcome.violations.append(f"it died before it was broken: {await process.closed()}")
            signalled_at = begun_at
        dying = asyncio.ensure_future(process.closed())
        await asyncio.wait({dying, asyncio.gather(*tasks)}, return_when=asyncio.FIRST_COMPLETED)
        unbroken = all(reading.error is None for reading in readings)
        if unbroken and not dying.done() and fault not in DEATHS:
            # all had been said before it landed: that nothing moves is no hang without work
            outcome.prodded = True
            readings.append(Reading(PROMPTS[0], lab.ask(PROMPTS[0])))
            tasks.append(asyncio.create_task(crowd.read(readings[-1])))
        outcome.crash = str(await dying)
        noticed_at = await _noticed(lab, readings, signalled_at)
        # before any of them goes on at the next host
        due_at = signalled_at if fault in DEATHS else _lease_end(lab, readings, signalled_at)
        await probe.end()
    outcome.died_after = (target.ended_at or noticed_at) - signalled_at
    outcome.noticed_after = noticed_at - due_at
    await asyncio.wait(tasks)
    await lab.readiness.slots(SLOTS)
    back_at = lab.readiness.first(True, noticed_at)
    outcome.back_after = (back_at or time.perf_counter()) - signalled_at
    await judge(lab, outcome, readings, record, chance.choice(PROMPTS))
    record.close()
    return outcome


async def _random_moment(lab: Lab, crowd: Crowd, chance: random.Random) -> int:
    """Waits for it: now and then before the first token, mostly somewhere in the answers."""
    if chance.random() < EARLY_SHARE:
        await asyncio.sleep(chance.uniform(0.0, EARLY_STEPS * lab.breed.pace))
    else:
        total = sum(reference.tokens for reference in lab.references.values())
        await crowd.have_read(chance.randrange(int(LATEST_SHARE * total)))
        await asyncio.sleep(chance.uniform(0.0, lab.breed.pace))
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
        + (
            lab.breed.limits.first_token
            if reading.read_at is None
            else lab.breed.limits.inter_token
        )
        for reading in readings
        if reading.ended_at == 0.0 or reading.ended_at >= signalled_at
    ]
    return min(ends, default=signalled_at)
