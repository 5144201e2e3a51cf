"""One live run, phase by phase: baseline, faults, heal, recovery, drain, check.

Nothing is injected before the steady state held; whatever was injected is undone on every way out,
here if this process lives, by the guardian and the kernel if it doesn't.
"""

import asyncio
import contextlib
import os
import random
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.chaos.attendant.service import DebugState
from orchestrator.chaos.journal import Event, Journal, Kind, line_of, read_journal
from orchestrator.chaos.live.crowd import Crowd, Prompts
from orchestrator.chaos.live.figures import describe, gauge, is_quiet, is_whole, measure
from orchestrator.chaos.live.guardian import Guardian
from orchestrator.chaos.live.hand import STOPPED, Hand, hosts_of
from orchestrator.chaos.live.injector import Injector
from orchestrator.chaos.live.own import write_config
from orchestrator.chaos.live.places import opened
from orchestrator.chaos.live.reach import must_be_within_reach
from orchestrator.chaos.live.strain import Strain
from orchestrator.chaos.live.target import Target, attached, started
from orchestrator.chaos.live.watch import Watch
from orchestrator.chaos.processes import state_of
from orchestrator.chaos.provider.proxy import Proxy
from orchestrator.chaos.provider.stub import Stub
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.verdict.steady import bounds_of, steady_state
from orchestrator.config import load
from orchestrator.errors import ConfigError

JOURNAL = "journal.ndjson"
LOOK = 0.05
QUIET_SECONDS = 3.0
READY_SECONDS = 180.0
WARM_UPS = 20
FAILED = ("error", "cut")
PROMPTS = ("Count from one to twenty.", "Name the days of the week.", "What is the sea?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a live run is told."""

    scenario: Scenario
    folder: Path
    """Where journal and log go; made if it isn't there."""
    named: str = ""
    """How the scenario was named, if not by its own name: by a file's path."""
    config: Path | None = None
    """The user's own configuration; None builds the scenario's system of stubs."""
    stubs: bool = False
    """Whether stubs take the place of all models and providers of the configuration."""
    route: str = ""
    """The model to ask for; empty for the configuration's first."""
    attach: str = ""
    """Base URL of a gateway that runs; empty starts one."""
    state_dir: Path | None = None
    """The folder of that gateway's socket."""
    sure: bool = False
    """Whether a target that isn't on this machine is meant."""
    dry: bool = False
    """Whether to stop when all is known that would be broken."""
    planted: str = ""
    tell: Callable[[str], None] = lambda _: None
    """Told of the progress, a line at a time."""


def again(options: Options) -> str:
    """The command that runs it once more."""
    words = ["orchestrator", "chaos", "live", options.named or options.scenario.name]
    for flag, value in (
        ("--config", options.config),
        ("--route", options.route),
        ("--target", options.attach),
        ("--state-dir", options.state_dir),
        ("--planted", options.planted),
    ):
        words += [flag, str(value)] if value else []
    words += ["--stubs"] if options.stubs else []
    words += ["--yes"] if options.sure else []
    return shlex.join(words)


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
        self._fronts: Mapping[str, Stub | Proxy] = {}
        self._broken_off = asyncio.Event()

    async def all(self) -> None:
        """From preflight to check."""
        options = self._options
        if options.attach:
            must_be_within_reach(self._scenario)
        self._introduce()
        async with contextlib.AsyncExitStack() as stack:
            if options.attach:
                place = options.state_dir or Path("chaos-state")
                target = await attached(options.attach, place, sure=options.sure)
            else:
                target = await self._start(stack)
            await target.inside.follow(self._pass_on)
            stack.push_async_callback(target.inside.leave)
            state = await self._wait_until_ready(target)
            for one in state.deployments:
                describe(self._journal, one)
            if options.dry:
                self._tell_of_targets(state)
                return
            await self._phases(target, state)

    # --- before ---

    def _introduce(self) -> None:
        scenario = self._scenario
        self._journal.record(
            Kind.RUN,
            seed=scenario.seed,
            scenario=scenario.name,
            mode=scenario.mode,
            world="live",
            exposed=scenario.expect.exposed,
            planted=self._options.planted,
            again=again(self._options),
            more=bounds_of(scenario),
        )

    async def _start(self, stack: contextlib.AsyncExitStack) -> Target:
        options, scenario = self._options, self._scenario
        own = options.config is None
        place = options.config or write_config(scenario.system, options.folder)
        config = load(place)
        stubs = own or options.stubs
        self._fronts = await opened(
            stack,
            config,
            self._journal,
            seed=scenario.seed,
            stubs=stubs,
            sure=options.sure,
        )
        urls = {name: front.url for name, front in self._fronts.items()}
        return await stack.enter_async_context(
            started(
                place,
                options.folder,
                reroutes={} if stubs else urls,
                stubbed=urls if stubs else {},
                stub_hosts=stubs,
                planted=options.planted,
            )
        )

    def _pass_on(self, event: Event) -> None:
        value = dict(event.value)
        for key in ("deadline", "not_before"):
            if isinstance(at := value.get(key), int | float) and at > self._origin:
                value[key] = at - self._origin
        moved = msgspec.structs.replace(event, t=round(event.t - self._origin, 6), value=value)
        self._journal.take(moved)

    async def _wait_until_ready(self, target: Target) -> DebugState:
        loop = asyncio.get_running_loop()
        end = loop.time() + READY_SECONDS
        state = await target.state()
        while not all(one.ready for one in state.deployments):
            if loop.time() > end:
                raise ConfigError("the gateway isn't ready; nothing was injected")
            await asyncio.sleep(LOOK)
            state = await target.state()
        return state

    def _tell_of_targets(self, state: DebugState) -> None:
        tell = self._options.tell
        tell(f"the gateway is process {state.pid}, started at tick {state.started}")
        for one in state.deployments:
            for pid, begun in one.hosts:
                tell(f"{one.name}: model host {pid}, started at tick {begun}")
            for pid, begun in one.spares:
                tell(f"{one.name}: spare host {pid}, started at tick {begun}")
        for name, front in self._fronts.items():
            tell(f"{name}: its provider's place is port {front.port}")
        for fault in self._scenario.faults:
            tell(f"at {fault.at:g} s: {fault.target} {fault.do}, {fault.whom}, {fault.times} times")

    # --- the run ---

    async def _phases(self, target: Target, state: DebugState) -> None:
        scenario, journal = self._scenario, self._journal
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
        hand = Hand(state.pid, hosts_of(target), self._guardian, self._chance)
        injector = Injector(
            scenario,
            target=target,
            hand=hand,
            guardian=self._guardian,
            fronts=self._fronts,
            crowd=crowd,
            journal=journal,
        )
        for front in self._fronts.values():
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
        await self._drain(target, strain)

    async def _know_the_answers(self, crowd: Crowd) -> None:
        """Real models: asks each prompt twice; what they answer alike they must answer always."""
        if self._options.config is None or self._options.stubs:
            return
        known: list[tuple[str, str | None]] = []
        for number, text in enumerate(PROMPTS):
            once = await crowd.ask_for(f"known-{number}-a", text)
            again = await crowd.ask_for(f"known-{number}-b", text)
            known.append((text, once if once == again and once else None))
        crowd.prompts = Prompts(texts=known)

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

    async def _drain(self, target: Target, strain: Strain) -> None:
        self._journal.record(Kind.STRAIN, share=round(strain.share, 3))
        self._phase("drain")
        if target.ended_with is None:
            await self._measure(target)
            hosts = [host for one in (await target.state()).deployments for host in one.hosts]
            stopped = sum(state_of(pid) == STOPPED for pid, _ in hosts)
            gauge(self._journal, "residue: stopped processes", stopped, 0)
            await target.end()
        gauge(
            self._journal,
            "residue: toxics",
            sum(len(f.toxics.active) for f in self._fronts.values()),
            0,
        )
        if target.ended_with is not None:
            gauge(self._journal, "exit code of the gateway", abs(target.ended_with), 0)
            gauge(self._journal, "model hosts left", target.hosts_left, 0)
        self._phase("check")

    async def _measure(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + QUIET_SECONDS
        state = await target.state()
        while loop.time() < end and not is_quiet(state, self._fronts):
            await asyncio.sleep(LOOK)
            state = await target.state()
        measure(self._journal, state, self._fronts)

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
