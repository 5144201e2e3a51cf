"""One live run, phase by phase: baseline, faults, heal, recovery, drain, check.

Nothing is injected before the steady state held; whatever was injected is undone on every way out,
here if this process lives, by the guardian and the kernel if it doesn't.
"""

import asyncio
import contextlib
import os
import random
import time
from dataclasses import replace
from pathlib import Path

from orchestrator.chaos.journal import Event, Journal, Kind, line_of, read_journal
from orchestrator.chaos.live.crowd import Crowd, Prompts
from orchestrator.chaos.live.drain import drain
from orchestrator.chaos.live.figures import is_whole
from orchestrator.chaos.live.guardian import Guardian
from orchestrator.chaos.live.hand import Hand, hosts_of, longest_lease
from orchestrator.chaos.live.injector import Injector
from orchestrator.chaos.live.moments import Moments
from orchestrator.chaos.live.options import Options
from orchestrator.chaos.live.preflight import LOOK, Ground, prepare, tell_of_targets
from orchestrator.chaos.live.strain import Strain
from orchestrator.chaos.live.target import Target
from orchestrator.chaos.live.watch import Watch
from orchestrator.chaos.verdict.steady import steady_state

JOURNAL = "journal.ndjson"
WARM_UPS = 20
FAILED = ("error", "cut")
PROMPTS = ("Count from one to twenty.", "Name the days of the week.", "What is the sea?")


async def run_live(options: Options) -> Path:
    """Runs a scenario against a real gateway and returns its journal.

    Raises:
        ConfigError: It can't begin.
    """
    options.folder.mkdir(parents=True, exist_ok=True)
    place = options.folder / JOURNAL
    origin = time.perf_counter()
    with place.open("ab", buffering=0) as file, Guardian() as guardian:

        def write(event: Event) -> None:
            file.write(line_of(event))

        journal = Journal(lambda: time.perf_counter() - origin, sink=write)
        run = _Run(options, journal, guardian, origin)
        await run.all()
    return place


class _Run:
    def __init__(
        self, options: Options, journal: Journal, guardian: Guardian, origin: float
    ) -> None:
        self._options = options
        self._scenario = options.scenario
        self._journal = journal
        self._guardian = guardian
        self._origin = origin
        self._chance = random.Random(options.scenario.seed)
        self._broken_off = asyncio.Event()

    async def all(self) -> None:
        """From preflight to check."""
        options = self._options
        async with contextlib.AsyncExitStack() as stack:
            ground = await prepare(stack, options, self._journal, self._origin)
            if options.dry:
                tell_of_targets(options, ground)
                return
            await self._phases(ground)

    async def _phases(self, ground: Ground) -> None:
        scenario, journal = self._scenario, self._journal
        target, state = ground.target, ground.state
        strain = Strain((os.getpid(), state.pid))
        watch = Watch(target.url, target.inside, journal)
        crowd = Crowd(
            address=target.address,
            load=scenario.load,
            route=self._options.route or next(iter(state.routes)),
            deadline=scenario.system.deadline,
            journal=journal,
            chance=self._chance,
            prompts=Prompts(),
        )
        hand = Hand(
            state.pid,
            hosts_of(target),
            self._guardian,
            self._chance,
            lease=longest_lease(state),
        )
        injector = Injector(
            scenario,
            target=target,
            hand=hand,
            guardian=self._guardian,
            fronts=ground.fronts,
            crowd=crowd,
            moments=Moments(target, crowd, ground.serving),
            journal=journal,
        )
        for front in ground.fronts.values():
            front.toxics.on_landed = injector.provider_landed
        watch.on_look = lambda: self._guard(watch, crowd)
        watch.begin()
        try:
            await self._know_the_answers(crowd)
            if not await self._baseline(crowd):
                return
            await self._break(crowd, injector)
            if target.ended_with is None:
                await self._heal(target, crowd, injector)
        finally:
            injector.heal()
            await crowd.disperse()
            await watch.end()
        self._options.tell("drain")
        await drain(ground, journal, strain)
        self._phase("check")

    async def _know_the_answers(self, crowd: Crowd) -> None:
        """Real models: asks each prompt twice; what they answer alike they must answer always."""
        if self._options.config is None or self._options.stubs:
            return
        crowd.prompts = Prompts(tokens=min(crowd.prompts.tokens, self._scenario.load.tokens[1]))
        known: list[tuple[str, str | None]] = []
        for number, text in enumerate(PROMPTS):
            once = await crowd.ask_for(f"known-{number}-a", text)
            again = await crowd.ask_for(f"known-{number}-b", text)
            known.append((text, once if once == again and once else None))
        crowd.prompts = replace(crowd.prompts, texts=known)

    async def _baseline(self, crowd: Crowd) -> bool:
        steady = self._scenario.steady
        self._phase("baseline")
        await crowd.come("b", steady.for_)
        await crowd.settle()
        events = read_journal(self._options.folder / JOURNAL)
        missed = steady_state(events)
        for line in missed:
            self._options.tell(f"baseline: {line}")
        return not missed

    async def _break(self, crowd: Crowd, injector: Injector) -> None:
        self._phase("fault")
        injector.plan()
        injecting = asyncio.create_task(injector.run())
        coming = asyncio.create_task(crowd.come("f", self._scenario.load.for_))
        stopping = asyncio.create_task(self._broken_off.wait())
        both = asyncio.ensure_future(asyncio.gather(injecting, coming))
        try:
            await asyncio.wait({both, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (injecting, coming, stopping):
                task.cancel()
            results = await asyncio.gather(injecting, coming, stopping, return_exceptions=True)
            both.cancel()
            await asyncio.gather(both, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _heal(self, target: Target, crowd: Crowd, injector: Injector) -> None:
        scenario, loop = self._scenario, asyncio.get_running_loop()
        self._phase("heal")
        injector.heal()
        end = loop.time() + scenario.heal
        while loop.time() < end:
            if is_whole(await target.state()):
                break
            await asyncio.sleep(LOOK)
        await crowd.settle()
        if scenario.mode == "safety":
            return
        for _ in range(WARM_UPS):  # a circuit may be half open still, and lets one in at a time
            if await crowd.ask("w") or loop.time() > end:
                break
            await asyncio.sleep(LOOK)
        self._phase("recovery")
        await crowd.come("r", scenario.steady.for_, must_succeed=True)
        await crowd.settle()

    def _guard(self, watch: Watch, crowd: Crowd) -> None:
        limits = self._scenario.safeguards
        errors, seen = sum(outcome in FAILED for outcome in crowd.recent), len(crowd.recent)
        away = time.perf_counter() - watch.ready_at
        reason = ""
        if away > limits.ready_false_for:
            reason = f"no route was ready for {away:.1f} s"
        elif seen == crowd.recent.maxlen and errors > limits.max_errors * seen:
            reason = f"{errors} of the last {seen} requests failed"
        if reason and not self._broken_off.is_set():
            self._journal.record(Kind.ABORTED, reason=reason)
            self._broken_off.set()

    def _phase(self, name: str) -> None:
        self._journal.record(Kind.PHASE, name=name)
        self._options.tell(name)
