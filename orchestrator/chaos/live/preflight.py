"""Before a live run: its gateway is started or found, its providers' places stand, all is ready."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.chaos.attendant.service import DebugState
from orchestrator.chaos.journal import Event, Journal, Kind, Scalar
from orchestrator.chaos.live.figures import describe
from orchestrator.chaos.live.options import Options, again
from orchestrator.chaos.live.own import write_config
from orchestrator.chaos.live.places import opened
from orchestrator.chaos.live.reach import must_be_within_reach
from orchestrator.chaos.live.target import Target, attached, started
from orchestrator.chaos.provenance import FROM, hash_of, provenance
from orchestrator.chaos.provider.front import Front
from orchestrator.chaos.scenario.sections import Fault
from orchestrator.chaos.verdict.steady import bounds_of
from orchestrator.config import load
from orchestrator.errors import ConfigError

LOOK = 0.05
READY_SECONDS = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a run stands on."""

    target: Target
    fronts: Mapping[str, Front]
    """The place of each provider, by deployment."""
    state: DebugState
    """As it is once all is ready."""
    serving: Mapping[str, str]
    """The deployment at which a request runs now, by the request's name."""


async def prepare(
    stack: contextlib.AsyncExitStack, options: Options, journal: Journal, origin: float
) -> Ground:
    """Starts or finds the gateway and waits until it is ready; the stack undoes it.

    Args:
        stack: Left at the run's end.
        options: What the run is told.
        journal: Told what the run is and what the gateway is like.
        origin: The journal's zero on the machine's clock.

    Raises:
        ConfigError: The run can't begin.
    """
    if options.attach:
        must_be_within_reach(options.scenario)
    _introduce(options, journal)
    if options.attach:
        place = options.state_dir or Path("chaos-state")
        fronts: Mapping[str, Front] = {}
        target = await attached(options.attach, place, sure=options.sure)
    else:
        target, fronts = await _start(stack, options, journal)
    serving: dict[str, str] = {}

    def take(event: Event) -> None:
        _note_where(event, serving)
        _pass_on(event, journal, origin)

    await target.inside.follow(take)
    stack.push_async_callback(target.inside.leave)
    state = await _wait_until_ready(target)
    for one in state.deployments:
        describe(journal, one)
    return Ground(target=target, fronts=fronts, state=state, serving=serving)


def tell_of_targets(options: Options, ground: Ground) -> None:
    """Tells all that would be broken."""
    tell, state = options.tell, ground.state
    tell(f"the gateway is process {state.pid}, started at tick {state.started}")
    for one in state.deployments:
        for pid, begun in one.hosts:
            tell(f"{one.name}: model host {pid}, started at tick {begun}")
        for pid, begun in one.spares:
            tell(f"{one.name}: spare host {pid}, started at tick {begun}")
    for name, front in ground.fronts.items():
        tell(f"{name}: its provider's place is port {front.port}")
    for fault in options.scenario.faults:
        tell(f"{_when(fault)}: {fault.target} {fault.do}, {fault.whom}, {fault.times} times")


def _when(fault: Fault) -> str:
    begin = f"at {fault.at:g} s"
    if fault.after_requests is not None:
        begin = f"after {fault.after_requests} requests"
    if fault.at_point is not None:
        return f"{begin}, at passage {fault.nth} of {fault.at_point}"
    if fault.target == "worker" and fault.after_tokens:
        return f"{begin}, after {fault.after_tokens} tokens of an answer"
    return begin


def _introduce(options: Options, journal: Journal) -> None:
    scenario = options.scenario
    journal.record(
        Kind.RUN,
        seed=scenario.seed,
        scenario=scenario.name,
        mode=scenario.mode,
        world="live",
        exposed=scenario.expect.exposed,
        planted=options.planted,
        again=again(options),
        more={**bounds_of(scenario), **_origin(options)},
    )


def _origin(options: Options) -> dict[str, Scalar]:
    origin = {f"{FROM}{name}": told for name, told in provenance().items()}
    if options.config is not None:
        origin[f"{FROM}config"] = hash_of(options.config)
    return {**origin}


async def _start(
    stack: contextlib.AsyncExitStack, options: Options, journal: Journal
) -> tuple[Target, Mapping[str, Front]]:
    scenario = options.scenario
    own = options.config is None
    place = options.config or write_config(scenario.system, options.folder)
    config = load(place)
    stubs = own or options.stubs
    fronts = await opened(
        stack,
        config,
        journal,
        seed=scenario.seed,
        stubs=stubs,
        sure=options.sure,
    )
    urls = {name: front.url for name, front in fronts.items()}
    target = await stack.enter_async_context(
        started(
            place,
            options.folder,
            reroutes={} if stubs else urls,
            stubbed=urls if stubs else {},
            stub_hosts=stubs,
            planted=options.planted,
        )
    )
    return target, fronts


def _note_where(event: Event, serving: dict[str, str]) -> None:
    if event.request is None:
        return
    if event.kind is Kind.ATTEMPT_START:
        serving[event.request] = str(event.value.get("deployment", ""))
    elif event.kind is Kind.ATTEMPT_END:
        serving.pop(event.request, None)


def _pass_on(event: Event, journal: Journal, origin: float) -> None:
    """Takes what the gateway wrote, on its own clock, into the run's journal."""
    value = dict(event.value)
    for key in ("deadline", "not_before"):
        if isinstance(at := value.get(key), int | float) and at > origin:
            value[key] = at - origin
    journal.take(msgspec.structs.replace(event, t=round(event.t - origin, 6), value=value))


async def _wait_until_ready(target: Target) -> DebugState:
    loop = asyncio.get_running_loop()
    end = loop.time() + READY_SECONDS
    state = await target.state()
    while not all(one.ready for one in state.deployments):
        if loop.time() > end:
            raise ConfigError("the gateway isn't ready; nothing was injected")
        await asyncio.sleep(LOOK)
        state = await target.state()
    return state
