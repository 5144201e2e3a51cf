"""Draws a plan from a seed: first the shape of the run, then what happens in it.

Each seed has a configuration of its own, in which most things are off: with everything on all the
time, faults hide each other (a pool that crashes all day never fills its queue). The figures are
those of reference/simulation.md.
"""

import random
from collections.abc import Collection, Sequence

import msgspec

from orchestrator.chaos.simulation.plan import (
    Action,
    Caller,
    Dice,
    Injection,
    Mode,
    Plan,
    Quota,
    RouteShape,
    Shape,
    Trouble,
    Weather,
)
from orchestrator.chaos.simulation.quota import TRUE_TELLINGS
from orchestrator.points import Point

GRID = 0.01
"""Seconds; half of the seeds run on it, shuffled."""
ATTEMPTS_DRAWN = 6
POINTS = (
    Point.SUBMIT_CHECKED,
    Point.SUBMIT_REGISTERED,
    Point.DISPATCH_RECORDED,
    Point.DISPATCH_TOLD,
    Point.ATTEMPT_PERMIT,
    Point.ATTEMPT_ADMITTED,
    Point.TOKEN_FIRST,
    Point.TERMINAL_BEFORE,
    Point.WORKER_IDLE,
    Point.RETRY_QUEUED,
    Point.WORKER_ENDED,
    Point.POISON_PUBLISHED,
    Point.ENGINE_SERVES,
)
TEARS = (Trouble.CUT, Trouble.CUT, Trouble.CLEAN_CUT, Trouble.CRASH_MID, Trouble.HANG_MID)
MAX_NTH = 40
MAX_DELAY = 0.004
MAX_STRETCH = 0.006
POISON_TIME = 3.0


def draw(seed: int, mode: Mode = "safety") -> Plan:
    """The plan of a seed.

    Args:
        seed: Any whole number; even ones run on the grid, shuffled.
        mode: `liveness` leaves out what a deployment can't come back from.
    """
    chance = random.Random(seed)
    count = chance.choice((60, 120, 200))
    shapes = [_shape(chance, name, mode) for name in ("a", "b")[: chance.choice((1, 2))]]
    routing = random.Random(f"routing {seed}")
    if len(shapes) == 1 and _falls(routing, 0.6):
        shapes.append(_shape(routing, "b", mode))
    names = [shape.name for shape in shapes]
    queueing = random.Random(f"queueing {seed}")
    shapes = [_with_queue(queueing, shape) for shape in shapes]
    shapes = [_with_seams(routing, shape) for shape in shapes]
    keys = random.Random(f"keys {seed}")
    shapes = [_with_keys(keys, shape) for shape in shapes]
    limits = random.Random(f"limits {seed}")
    if _falls(limits, 0.5):
        shapes = [_with_quota(limits, shape) for shape in shapes]
    shapes = _shared(limits, shapes)
    routes = {"both": tuple(names)} if len(names) > 1 else {}
    on_grid = seed % 2 == 0
    return Plan(
        seed=seed,
        mode=mode,
        shuffle=on_grid,
        grid=GRID if on_grid else 0.0,
        shapes=tuple(shapes),
        routes=routes,
        route_shapes={route: _route(routing) for route in routes},
        callers=_routed(
            routing,
            _owned(queueing, _callers(chance, count, [*routes, *names], on_grid=on_grid)),
            routes,
        ),
        injections=_injections(chance, names, mode),
        weather=tuple(_storm(limits, shape) for shape in shapes if _has_storms(limits, shape)),
    )


def _with_seams(chance: random.Random, shape: Shape) -> Shape:
    if shape.local:
        return msgspec.structs.replace(shape, resumable=_falls(chance, 0.8))
    return msgspec.structs.replace(shape, prefill=_falls(chance, 0.6))


def _route(chance: random.Random) -> RouteShape:
    return RouteShape(
        strategy=chance.choice(("failover", "weighted", "least_busy", "latency")),
        midstream=chance.choice(("resume", "resume", "continue", "error")),
        max_attempts=chance.choice((None, None, 1, 3)),
        hedge_after=chance.choice((None, GRID, GRID, 5 * GRID)),
        hedge_share=chance.choice((0.05, 0.5, 1.0)),
    )


def _routed(
    chance: random.Random, callers: tuple[Caller, ...], routes: Collection[str]
) -> tuple[Caller, ...]:
    """In half of the runs most callers ask for a route, and answers break after they have begun."""
    torn, steered = chance.choice((0.0, 0.1, 0.4)), chance.choice((0.0, 0.8))
    route = next(iter(routes), None)
    return tuple(
        msgspec.structs.replace(
            caller,
            route=route if route is not None and _falls(chance, steered) else caller.route,
            dice=(_tear(chance, caller), *caller.dice[1:]) if _falls(chance, torn) else caller.dice,
        )
        for caller in callers
    )


def _tear(chance: random.Random, caller: Caller) -> Dice:
    return Dice(trouble=chance.choice(TEARS), after=chance.randint(1, caller.tokens))


def _shape(chance: random.Random, name: str, mode: Mode) -> Shape:
    local = _falls(chance, 0.5)
    small_budget = mode == "safety" and _falls(chance, 0.3)
    bad_starts = _falls(chance, 0.2)
    return Shape(
        name=name,
        local=local,
        shared_host=local and _falls(chance, 0.6),
        slots=chance.choice((1, 2, 4, 8)),
        queue_capacity=chance.choice((4, 16, 64)),
        requests_per_minute=chance.choice((None, 60.0, 300.0, 900.0, 3600.0)),
        tokens_per_minute=chance.choice((None, None, None, 600.0, 6000.0)),
        failure_threshold=chance.choice((2, 5, 20)),
        probes=chance.choice((1, 1, 2)),
        max_attempts=chance.choice((1, 3, 3, 5)),
        max_restarts=chance.choice((1, 3, 5)) if small_budget else 40,
        stays_down=mode == "safety" and _falls(chance, 0.3),
        start_seconds=chance.choice((0.0, 0.01, 0.2)),
        bad_starts=tuple(sorted(chance.sample(range(12), 2))) if bad_starts else (),
        token_seconds=chance.choice((0.005, 0.02, 0.05)),
    )


def _with_queue(chance: random.Random, shape: Shape) -> Shape:
    return msgspec.structs.replace(
        shape,
        aging=chance.choice((None, 0.2, 0.5, 2.0)),
        on_full=chance.choice(("failover", "failover", "reject", "wait")),
        waiting=chance.choice((2, 16)),
        adapts=_falls(chance, 0.3),
    )


def _with_keys(chance: random.Random, shape: Shape) -> Shape:
    keys = chance.choice((1, 1, 2, 3))
    bad = chance.choice((0, 0, keys - 1))
    return msgspec.structs.replace(
        shape, keys=keys, revoked=tuple(sorted(chance.sample(range(keys), bad)))
    )


def _with_quota(chance: random.Random, shape: Shape) -> Shape:
    quota = Quota(
        per_minute=chance.choice((12.0, 12.0, 30.0, 60.0, 600.0)),
        telling=chance.choice((*TRUE_TELLINGS, *TRUE_TELLINGS, "nothing", "more", "less")),
        hint=chance.choice(("seconds", "fraction", "milliseconds", "date", "past", "none")),
    )
    known = shape.requests_per_minute if _falls(chance, 0.6) else None
    if shape.local:
        return shape
    return msgspec.structs.replace(shape, quota=quota, requests_per_minute=known)


def _shared(chance: random.Random, shapes: list[Shape]) -> list[Shape]:
    """In some runs both deployments send the same keys."""
    shares = _falls(chance, 0.4)
    first = shapes[0]
    if not shares or len(shapes) == 1 or any(shape.local for shape in shapes):
        return shapes
    return [
        msgspec.structs.replace(
            shape,
            account="shared",
            quota=first.quota,
            keys=first.keys,
            revoked=first.revoked,
            requests_per_minute=first.requests_per_minute,
            tokens_per_minute=first.tokens_per_minute,
        )
        for shape in shapes
    ]


def _has_storms(chance: random.Random, shape: Shape) -> bool:
    return shape.quota is not None and _falls(chance, 0.4)


def _storm(chance: random.Random, shape: Shape) -> Weather:
    begin = chance.uniform(0.0, POISON_TIME)
    return Weather(
        deployment=shape.name,
        begin=begin,
        end=begin + chance.choice((0.2, 1.0)),
        dice=Dice(trouble=Trouble.RATE_LIMITED, seconds=chance.choice((0.0, 0.3, 2.0))),
        share=chance.choice((0.3, 1.0)),
    )


def _owned(chance: random.Random, callers: tuple[Caller, ...]) -> tuple[Caller, ...]:
    """Some runs have callers that ask for very different amounts, and more of the low classes."""
    owners = chance.choice(((), ("ann", "bob"), ("ann", "bob", "carl")))
    mixed = _falls(chance, 0.5)
    if not owners and not mixed:
        return callers
    shares = (12, 2, 1)[: len(owners)]
    return tuple(
        msgspec.structs.replace(
            caller,
            owner=chance.choices(owners, shares)[0] if owners else "",
            priority=chance.randint(0, 3) if mixed else caller.priority,
        )
        for caller in callers
    )


def _callers(
    chance: random.Random, count: int, routes: Sequence[str], *, on_grid: bool
) -> tuple[Caller, ...]:
    weights = _weights(chance)
    rate = chance.choice((10.0, 30.0, 80.0))
    timeouts = chance.choice(((0.8,), (2.0,), (8.0,), (0.8, 8.0)))
    cancels, readers = chance.choice((0.0, 0.05, 0.2)), chance.choice((0.0, 0.05))
    longest = chance.choice((3, 12))
    callers: list[Caller] = []
    at = 0.0
    for number in range(count):
        at += chance.expovariate(rate)
        tokens = chance.randint(1, longest)
        canceled, lazy = _falls(chance, cancels), _falls(chance, readers)
        callers.append(
            Caller(
                name=f"r{number}",
                at=round(at / GRID) * GRID if on_grid else at,
                route=chance.choice(routes),
                tokens=tokens,
                timeout=chance.choice(timeouts),
                priority=chance.choices((0, 1, 2, 3), (10, 70, 15, 5))[0],
                held=not lazy and _falls(chance, 0.3),
                idempotent=not _falls(chance, 0.05),
                pace=chance.choice(("slow", "never")) if lazy else "eager",
                buffer_tokens=4 if lazy else None,
                cancel_after=chance.choice((0, 0, 1, 2)) if canceled else None,
                cancel_delay=chance.choice((0.0, 0.0, GRID, 3 * GRID, 0.5)),
                dice=tuple(_dice(chance, weights, tokens) for _ in range(ATTEMPTS_DRAWN)),
            )
        )
    return tuple(callers)


def _weights(chance: random.Random) -> dict[Trouble, float]:
    """Most kinds are off for the whole run; those that are on have a weight."""
    weights = {Trouble.NONE: chance.choice((60.0, 150.0, 400.0))}
    for trouble in Trouble:
        weight = chance.choice((2.0, 5.0, 15.0, 40.0))
        if trouble is not Trouble.NONE and _falls(chance, 0.4):
            weights[trouble] = weight
    return weights


def _dice(chance: random.Random, weights: dict[Trouble, float], tokens: int) -> Dice:
    trouble = chance.choices(list(weights), list(weights.values()))[0]
    if trouble is Trouble.NONE:
        return Dice()
    return Dice(trouble=trouble, after=chance.randint(0, tokens), seconds=_seconds(chance, trouble))


def _seconds(chance: random.Random, trouble: Trouble) -> float:
    match trouble:
        case Trouble.RATE_LIMITED:
            return chance.choice((0.0, 0.1, 0.5, 3.0))
        case Trouble.SLOW:
            return chance.choice((0.1, 0.4, 0.8))
        case Trouble.ZOMBIE:
            return chance.choice((0.05, 0.3, 1.0, 2.0))
        case _:
            return 0.0


def _injections(chance: random.Random, names: Sequence[str], mode: Mode) -> tuple[Injection, ...]:
    found: list[Injection] = []
    if _falls(chance, 0.25):
        found.append(Injection(do=Action.POISON, deployment=chance.choice(names), at=POISON_TIME))
    # on the grid such a death meets whatever else happens at that instant
    found.extend(
        Injection(
            do=Action.KILL_HOST,
            deployment=chance.choice(names),
            at=chance.randint(0, round(POISON_TIME / GRID)) * GRID,
        )
        for _ in range(chance.choice((0, 0, 4, 12)))
    )
    counts = {
        Action.POISON: chance.choice((0, 1)),
        Action.STRETCH: chance.choice((0, 0, 2, 5)),
        Action.CANCEL: chance.choice((0, 3, 10)),
        Action.KILL_HOST: chance.choice((0, 0, 2, 5)),
        Action.KILL_SUPERVISOR: int(mode == "safety" and _falls(chance, 0.15)),
    }
    for action, count in counts.items():
        found.extend(_at_point(chance, action, names) for _ in range(count))
    return tuple(found)


def _falls(chance: random.Random, share: float) -> bool:
    return chance.random() < share


def _at_point(chance: random.Random, action: Action, names: Sequence[str]) -> Injection:
    point = chance.choice(POINTS)
    rare = point in {Point.POISON_PUBLISHED, Point.ENGINE_SERVES, Point.WORKER_ENDED}
    deployment = chance.choice(names)
    nth = chance.randint(0, 2 if rare else MAX_NTH)
    if action is Action.CANCEL and nth % 2 == 0:
        point = Point.WORKER_IDLE  # the outcome is on its way to the engine, and nobody waits now
    return Injection(
        do=action,
        deployment=deployment,
        point=point,
        nth=nth,
        delay=chance.choice((0.0, 0.0, chance.uniform(0, MAX_DELAY)))
        if action is not Action.STRETCH
        else chance.uniform(0, MAX_STRETCH),
    )
