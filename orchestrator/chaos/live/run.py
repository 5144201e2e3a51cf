"""One live run, phase by phase: baseline, faults, heal, recovery, drain, check.

Nothing is injected before the steady state held; whatever was injected is undone on every way out,
here if this process lives, by the guardian and the kernel if it doesn't.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.chaos.attendant.orders import reroutable
from orchestrator.chaos.attendant.service import DebugState
from orchestrator.chaos.journal import Event, Journal, Kind, line_of, read_journal
from orchestrator.chaos.live.crowd import Crowd, Prompts
from orchestrator.chaos.live.guardian import Guardian
from orchestrator.chaos.live.hand import STOPPED, Hand, hosts_of
from orchestrator.chaos.live.injector import Injector
from orchestrator.chaos.live.own import write_config
from orchestrator.chaos.live.reach import must_be_within_reach
from orchestrator.chaos.live.target import LOOPBACK, Target, attached, started
from orchestrator.chaos.live.watch import Watch
from orchestrator.chaos.processes import state_of
from orchestrator.chaos.provider.front import Front
from orchestrator.chaos.provider.proxy import Proxy
from orchestrator.chaos.provider.stub import Stub
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.verdict.steady import bounds_of, steady_state
from orchestrator.config import Config, load
from orchestrator.errors import ConfigError

JOURNAL = "journal.ndjson"
LOOK = 0.05
QUIET_SECONDS = 3.0
READY_SECONDS = 180.0
WARM_UPS = 20
FAILED = ("error", "cut")
BURST_SHARE = 60.0
PROMPTS = ("Count from one to twenty.", "Name the days of the week.", "What is the sea?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a live run is told."""

    scenario: Scenario
    folder: Path
    """Where journal and log go; made if it isn't there."""
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
        self._fronts: dict[str, Front] = {}
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
            self._describe(state)
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
            more=bounds_of(scenario),
        )

    async def _start(self, stack: contextlib.AsyncExitStack) -> Target:
        options, scenario = self._options, self._scenario
        own = options.config is None
        place = options.config or write_config(scenario.system, options.folder)
        config = load(place)
        stubs = own or options.stubs
        await self._open_fronts(stack, config, stubs=stubs)
        urls = {
            name: front.url
            for name, front in self._fronts.items()
            if isinstance(front, Stub | Proxy)
        }
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

    async def _open_fronts(
        self, stack: contextlib.AsyncExitStack, config: Config, *, stubs: bool
    ) -> None:
        for name, upstream in reroutable(config).items():
            started_here = self._noting_starts(name)
            if stubs:
                front: Front = Stub(seed=self._scenario.seed, on_start=started_here)
            else:
                self._must_be_meant(name, upstream)
                front = Proxy(upstream, seed=self._scenario.seed, on_start=started_here)
            self._fronts[name] = await stack.enter_async_context(front)

    def _must_be_meant(self, name: str, upstream: str) -> None:
        host = upstream.rsplit("//", maxsplit=1)[-1].split("/", maxsplit=1)[0].rsplit(":", 1)[0]
        if host not in LOOPBACK and not self._options.sure:
            raise ConfigError(
                f"deployment {name} asks {upstream}, which isn't this machine and may cost money:"
                " --yes if you mean it, --stubs to put a stub in its place"
            )

    def _noting_starts(self, deployment: str) -> Callable[[str | None], None]:
        def note(request: str | None) -> None:
            self._journal.record(Kind.PROVIDER_START, request=request, deployment=deployment)

        return note

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

    def _describe(self, state: DebugState) -> None:
        for one in state.deployments:
            limits: dict[str, float] = {}
            if one.requests_per_minute is not None:
                limits["permits_burst"] = max(1.0, one.requests_per_minute / BURST_SHARE)
                limits["permits_per_second"] = one.requests_per_minute / 60.0
            self._journal.record(
                Kind.DEPLOYMENT,
                deployment=one.name,
                slots=one.slots,
                queue_capacity=one.queue_capacity,
                max_restarts=one.max_restarts,
                restart_window=one.within,
                probes=one.probes,
                stall=one.stall,
                more=limits,
            )
            self._journal.record(Kind.ENGINE_START, deployment=one.name, generation=one.generation)

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
            scenario, target=target, hand=hand, fronts=self._fronts, crowd=crowd, journal=journal
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
        await self._drain(target)

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
            if _is_whole(await target.state()):
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

    async def _drain(self, target: Target) -> None:
        self._phase("drain")
        if target.ended_with is None:
            await self._measure(target)
            hosts = [host for one in (await target.state()).deployments for host in one.hosts]
            stopped = sum(state_of(pid) == STOPPED for pid, _ in hosts)
            self._gauge("residue: stopped processes", stopped, 0)
            await target.end()
        self._gauge("residue: toxics", sum(len(f.toxics.active) for f in self._fronts.values()), 0)
        if target.ended_with is not None:
            self._gauge("exit code of the gateway", abs(target.ended_with), 0)
            self._gauge("model hosts left", target.hosts_left, 0)
        self._phase("check")

    async def _measure(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + QUIET_SECONDS
        state = await target.state()
        while loop.time() < end and not _is_quiet(state, self._fronts):
            await asyncio.sleep(LOOK)
            state = await target.state()
        for one in state.deployments:
            self._gauge(f"queue of {one.name}", one.queued, 0)
            self._gauge(f"inflight of {one.name}", one.inflight, 0)
            self._gauge(f"permits of {one.name}", one.permits, 0)
            if one.state == "serving":
                self._gauge(f"live slots of {one.name}", one.live_slots, one.slots)
        for name, front in self._fronts.items():
            self._gauge(f"streams of {name}", front.open_streams, 0)

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

    def _gauge(self, name: str, value: int, expected: int) -> None:
        self._journal.record(Kind.GAUGE, name=name, value=value, expected=expected)


def _is_whole(state: DebugState) -> bool:
    return all(one.ready and one.live_slots == one.slots for one in state.deployments)


def _is_quiet(state: DebugState, fronts: Mapping[str, Front]) -> bool:
    return not any(
        one.queued or one.inflight or one.permits or one.live_slots != one.slots
        for one in state.deployments
        if one.state == "serving"
    ) and not any(front.open_streams for front in fronts.values())
