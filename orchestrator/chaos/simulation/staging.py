"""A scenario as a simulated run: the same file, the same faults, in virtual time.

What the simulated world has no word for becomes what it leads to: a host without memory dies, a
blocked loop is poison, a spoilt byte is a cut, without file descriptors no connection is made.
"""

import random

import msgspec

from orchestrator.chaos.provider.toxics import Harm
from orchestrator.chaos.scenario.sections import ANY, Fault, Load, Scenario, System
from orchestrator.chaos.simulation.plan import (
    TOKEN_SECONDS,
    Action,
    Caller,
    Dice,
    Injection,
    Plan,
    Shape,
    Trouble,
    Weather,
)
from orchestrator.chaos.simulation.swarm import GRID
from orchestrator.points import Point

LOCAL, SECOND, PROVIDER, ROUTE = "local", "second", "provider", "chat"
NAMES = {
    "local": (LOCAL,),
    "provider": (PROVIDER,),
    "failover": (PROVIDER, LOCAL),
    "pair": (LOCAL, SECOND),
}
NO_FILES = "fd_exhaust"
PRIORITIES = ("background", "normal", "high", "critical")
POISONING_BLOCK = 1.0
"""Seconds; see `actors.monitor`."""
DUTY_SECONDS = 0.1
WEDGED_SECONDS = 1000.0
DRAIN_SECONDS = 5.0
RATE_LIMITED, CLIENT_ERROR, SERVER_ERROR = 429, 400, 500
MILD = 0.5
"""Of a stall, so that what is only slow trips nothing."""


def stage(scenario: Scenario, seed: int) -> Plan:
    """The plan of a scenario.

    Args:
        scenario: What happens.
        seed: When exactly, and to whom; even ones run on the grid, shuffled.
    """
    chance = random.Random(f"{scenario.seed}/{seed}")
    names = NAMES[scenario.system.kind]
    callers = _callers(scenario, chance)
    starts = [_begin(fault, callers) for fault in scenario.faults]
    for fault, begin in zip(scenario.faults, starts, strict=True):
        if fault.target == "client":
            callers = _with_client_fault(callers, fault, begin, scenario, chance)
    on_grid = seed % 2 == 0
    return Plan(
        seed=seed,
        mode=scenario.mode,
        shuffle=on_grid,
        grid=GRID if on_grid else 0.0,
        shapes=tuple(_shape(name, scenario.system) for name in names),
        routes={ROUTE: names},
        callers=tuple(sorted(callers, key=lambda caller: caller.at)),
        injections=tuple(
            injection
            for fault, begin in zip(scenario.faults, starts, strict=True)
            for injection in _injections(fault, begin, names, chance)
        ),
        weather=tuple(
            Weather(
                deployment=PROVIDER,
                begin=at,
                end=at + fault.for_,
                dice=_dice(fault, scenario.system),
                share=fault.toxicity,
            )
            for fault, begin in zip(scenario.faults, starts, strict=True)
            if fault.target == "provider" or fault.do == NO_FILES
            for at in _times(fault, begin, fault.for_)
        ),
    )


def _shape(name: str, system: System) -> Shape:
    return Shape(
        name=name,
        local=name != PROVIDER,
        shared_host=name != PROVIDER,
        slots=system.slots,
        queue_capacity=system.queue,
        requests_per_minute=system.permits if name == PROVIDER else None,
        failure_threshold=system.failures,
        open_for=system.open_for,
        max_attempts=system.attempts,
        max_restarts=system.restart.max,
        within=system.restart.per,
        stall=system.stall,
    )


def _callers(scenario: Scenario, chance: random.Random) -> list[Caller]:
    load, callers, at = scenario.load, list[Caller](), 0.0
    while at < load.for_:
        callers.append(_caller(f"r{len(callers)}", at, scenario, chance))
        gap = 1.0 / load.rate
        at += chance.expovariate(load.rate) if load.shape == "poisson" else gap
    return callers


def _caller(name: str, at: float, scenario: Scenario, chance: random.Random) -> Caller:
    load, system = scenario.load, scenario.system
    return Caller(
        name=name,
        at=round(at / GRID) * GRID,
        route=ROUTE,
        tokens=chance.randint(*load.tokens),
        timeout=chance.choice(load.deadlines) if load.deadlines else system.deadline,
        priority=_priority(load, chance),
    )


def _priority(load: Load, chance: random.Random) -> int:
    weights = load.priorities.model_dump()
    return chance.choices(range(len(PRIORITIES)), [weights[name] for name in PRIORITIES])[0]


def _begin(fault: Fault, callers: list[Caller]) -> float:
    if fault.after_requests is None:
        return fault.at
    return callers[min(fault.after_requests, len(callers)) - 1].at


def _with_client_fault(
    callers: list[Caller], fault: Fault, begin: float, scenario: Scenario, chance: random.Random
) -> list[Caller]:
    if fault.do == "burst":
        return callers + [
            _caller(f"x{begin:g}-{number}", begin, scenario, chance) for number in range(fault.n)
        ]
    return [
        _misbehaving(caller, fault)
        if begin <= caller.at < begin + fault.for_ and chance.random() < fault.toxicity
        else caller
        for caller in callers
    ]


def _misbehaving(caller: Caller, fault: Fault) -> Caller:
    match fault.do:
        case "slow_reader":
            return msgspec.structs.replace(caller, pace="slow", buffer_tokens=4)
        case "never_reads":
            return msgspec.structs.replace(caller, pace="never", buffer_tokens=4)
        case _:
            return msgspec.structs.replace(caller, cancel_after=fault.after_tokens)


def _injections(
    fault: Fault, begin: float, names: tuple[str, ...], chance: random.Random
) -> list[Injection]:
    if fault.target not in ("worker", "gateway") or fault.do == NO_FILES:
        return []
    if fault.do == "reload":
        return [
            _injection(Action.RELOAD, names[0], at + chance.choice((0.0, GRID)), 0.0)
            for at in _times(fault, begin, 0.0)
        ]
    whom = [
        name
        for name in names
        if fault.whom in (ANY, name) and (fault.target == "gateway" or name != PROVIDER)
    ]
    return [
        _moved(injection, fault, at)
        for name in whom
        for at in _times(fault, begin, 0.0)
        for injection in _strikes(fault, name, at + chance.choice((0.0, GRID)))
    ]


def _moved(injection: Injection, fault: Fault, begin: float) -> Injection:
    """The injection at its passage, if it isn't at a time."""
    point, delay = fault.at_point, (injection.at or begin) - begin
    if point is None:
        if fault.target != "worker" or not fault.after_tokens:
            return injection
        point, delay = Point.TOKEN_FIRST, delay + (fault.after_tokens - 0.5) * TOKEN_SECONDS
    return msgspec.structs.replace(
        injection, at=None, point=point, nth=fault.nth - 1, since=begin, delay=delay
    )


def _times(fault: Fault, begin: float, lasts: float) -> list[float]:
    """When it strikes; the wait for the next time begins when it is over."""
    return [begin + number * (lasts + (fault.every or 0.0)) for number in range(fault.times)]


def _strikes(fault: Fault, name: str, at: float) -> list[Injection]:
    match fault.do:
        case "stop" | "swizzle":
            return [_injection(Action.STOP_HOST, name, at, fault.for_)]
        case "wedge":
            return [_injection(Action.STOP_HOST, name, at, WEDGED_SECONDS)]
        case "slow":
            stopped = DUTY_SECONDS * (1.0 - fault.duty)
            count = int(fault.for_ / DUTY_SECONDS)
            return [
                _injection(Action.STOP_HOST, name, at + number * DUTY_SECONDS, stopped)
                for number in range(count)
            ]
        case "block" if fault.seconds <= POISONING_BLOCK:
            return []
        case "block" | "poison":
            return [_injection(Action.POISON, name, at, 0.0)]
        case "kill_supervisor":
            return [_injection(Action.KILL_SUPERVISOR, name, at, 0.0)]
        case "sigterm":
            return [_injection(Action.DRAIN, name, at, DRAIN_SECONDS)]
        case _:
            return [_injection(Action.KILL_HOST, name, at, 0.0)]


def _injection(do: Action, deployment: str, at: float, seconds: float) -> Injection:
    return Injection(do=do, deployment=deployment, at=at, seconds=seconds)


def _dice(fault: Fault, system: System) -> Dice:
    if fault.do == NO_FILES:
        return Dice(trouble=Trouble.REFUSED)
    after = fault.after_tokens
    match Harm(fault.do):
        case Harm.REFUSED if fault.where == "before_send":
            return Dice(trouble=Trouble.REFUSED)
        case Harm.STATUS:
            return _status(fault)
        case Harm.LATENCY | Harm.SLICER | Harm.BANDWIDTH | Harm.HUGE_EVENT | Harm.DUP_TOKENS:
            seconds = min(fault.seconds, MILD * system.stall)
            return Dice(trouble=Trouble.SLOW, seconds=seconds)
        case Harm.STALL:
            return Dice(trouble=Trouble.HANG_MID, after=after)
        case Harm.COMMENTS_ONLY | Harm.HEADER_THEN_HANG:
            return Dice(trouble=Trouble.HANG_FIRST)
        case Harm.CUT if fault.how == "clean_no_done":
            return Dice(trouble=Trouble.CLEAN_CUT, after=after)
        case _:
            return Dice(trouble=Trouble.CUT, after=after)


def _status(fault: Fault) -> Dice:
    if fault.code == RATE_LIMITED:
        return Dice(trouble=Trouble.RATE_LIMITED, seconds=fault.retry_after or 0.0)
    if CLIENT_ERROR <= fault.code < SERVER_ERROR:
        return Dice(trouble=Trouble.BAD_REQUEST)
    return Dice(trouble=Trouble.SERVER_ERROR)
