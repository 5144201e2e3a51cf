"""What supervision promises: no one waits in a poisoned engine, none is killed for being busy.

Holds I6, I6b, I9, I18 and I19.
"""

from collections import deque

from orchestrator.chaos.invariants.history import GRACE, History, Violation, request_of, worker_of
from orchestrator.chaos.journal import Event, Kind

POISON_SETTLES = 0.1
"""Seconds after a poison by which every request of the deployment has moved on."""
HANG_IS_SEEN = 0.1
"""Seconds after a lease's end by which the hang must have had a consequence."""
UNHEALTHY = frozenset({"engine_unhealthy", "draining"})


def i6_poison_is_one_way(history: History) -> list[Violation]:
    """A generation is poisoned once, and what serves after it is a newer one; health agrees.

    Raises:
        JournalError: An event lacks its generation.
    """
    found: list[Violation] = []
    newest: dict[str, float] = {}
    poisoned: set[str] = set()
    for event in history.events:
        name = event.deployment
        match event.kind:
            case Kind.ENGINE_START:
                generation = event.number("generation")
                if generation <= newest.get(name, 0):
                    text = f"generation {generation:g} of {name} began again at {event.t} s"
                    found.append(Violation("I6", None, text))
                newest[name] = generation
                poisoned.discard(name)
            case Kind.POISON:
                if name in poisoned:
                    text = f"{name} was poisoned at {event.t} s, which it was before"
                    found.append(Violation("I6", None, text))
                poisoned.add(name)
            case Kind.READY if name in poisoned and event.flag("ready"):
                text = f"{name} said at {event.t} s that it is ready, and is poisoned"
                found.append(Violation("I6", None, text))
            case _:
                pass
    return found


def i18_nobody_serves_unwatched(history: History) -> list[Violation]:
    """Soon after its supervisor's death a deployment is poisoned, and it never serves again."""
    found: list[Violation] = []
    for death in history.of(Kind.SUPERVISOR_DEAD):
        name = death.deployment
        serving = _serves(history, name, death.t)
        poisons = [
            event
            for event in history.of(Kind.POISON)
            if event.deployment == name and death.t <= event.t <= _settled(history, death, event)
        ]
        if serving and not poisons:
            text = f"{name} lost its supervisor at {death.t} s and was not poisoned"
            found.append(Violation("I18", None, text))
        found += [
            Violation("I18", None, f"{name} served at {event.t} s without a supervisor")
            for event in history.of(Kind.ENGINE_START)
            if event.deployment == name and event.t > _settled(history, death, event)
        ]
    return found


def _settled(history: History, since: Event, event: Event) -> float:
    return since.t + history.lateness(POISON_SETTLES, since.t, event.t)


def _serves(history: History, name: str, at: float) -> bool:
    lives = [
        event
        for event in history.milestones
        if event.kind in (Kind.ENGINE_START, Kind.POISON)
        and event.deployment == name
        and event.t <= at
    ]
    return bool(lives) and lives[-1].kind is Kind.ENGINE_START


def i6b_poison_leaves_nobody(history: History) -> list[Violation]:
    """Soon after a poison every request has ended or moved on, and the generation takes no more.

    Raises:
        JournalError: An event lacks its request or code.
    """
    found: list[Violation] = []
    here: dict[str, str] = {}  # request -> deployment that holds it
    poisoned: set[str] = set()
    waiting: dict[str, Event] = {}  # request -> the poison that it must survive
    # one contender may fall to a poison without a word while the other goes on
    hedged = {event.request for event in history.of(Kind.ACCEPT) if event.flag("hedge")}
    for event in history.milestones:
        match event.kind:
            case Kind.ENGINE_START:
                poisoned.discard(event.deployment)
            case Kind.POISON:
                poisoned.add(event.deployment)
                for request, deployment in here.items():
                    if deployment == event.deployment and request not in hedged:
                        waiting.setdefault(request, event)
            case Kind.ACCEPT | Kind.TERMINAL:
                request = request_of(event)
                found += _moved_on(history, request, waiting.pop(request, None), event)
                here.pop(request, None)
                if event.kind is Kind.ACCEPT:
                    here[request] = event.deployment
                    found += _too_late(event, poisoned)
            case Kind.DISPATCH:
                found += _too_late(event, poisoned)
            case Kind.REJECT:
                code = event.text("code")
                if event.deployment in poisoned and code not in UNHEALTHY:
                    text = f"was refused with {code} at {event.t} s by a poisoned engine"
                    found.append(Violation("I6b", event.request, text))
            case _:
                pass
    return found + [
        Violation("I6b", request, f"still waited at the end, poisoned at {poison.t} s")
        for request, poison in waiting.items()
    ]


def _moved_on(
    history: History, request: str, poison: Event | None, event: Event
) -> list[Violation]:
    if poison is None:
        return []
    if event.t <= _settled(history, poison, event):
        return []
    text = f"waited until {event.t} s in an engine poisoned at {poison.t} s"
    return [Violation("I6b", request, text)]


def _too_late(event: Event, poisoned: set[str]) -> list[Violation]:
    if event.deployment not in poisoned:
        return []
    return [Violation("I6b", event.request, f"{event.kind} at {event.t} s by a poisoned engine")]


def i9_killed_for_no_progress(history: History) -> list[Violation]:
    """A worker is killed only when its step made no progress in time, and then it is killed.

    A stream that can't be canceled answers for itself: its worker may stay busy beyond the lease.

    Raises:
        JournalError: An event lacks its worker or budget.
    """
    found: list[Violation] = []
    steps: dict[str, Event] = {}
    streams: dict[str, Event] = {}
    for event in history.events:
        match event.kind:
            case Kind.STEP:
                found += _hang_was_seen(history, steps, streams, event)
                steps[worker_of(event)] = event
            case Kind.PROVIDER_START:
                streams[worker_of(event)] = event
            case Kind.KILL:
                found += _killed_rightly(steps.get(worker_of(event)), event)
                found += _hang_was_seen(history, steps, streams, event)
                streams.pop(worker_of(event), None)
            case Kind.PROVIDER_END | Kind.WORKER_DEAD:
                found += _hang_was_seen(history, steps, streams, event)
                streams.pop(worker_of(event), None)
            case _:
                pass
    return found


def _killed_rightly(step: Event | None, kill: Event) -> list[Violation]:
    if step is None:
        return [Violation("I9", kill.request, f"{kill.worker} was killed with no step running")]
    idle, budget = kill.t - step.t, step.number("budget")
    if idle >= budget - GRACE:
        return []
    text = f"{kill.worker} was killed at {kill.t} s, {idle:.6f} s after progress, of {budget} s"
    return [Violation("I9", kill.request, text)]


def _hang_was_seen(
    history: History, steps: dict[str, Event], streams: dict[str, Event], event: Event
) -> list[Violation]:
    worker = worker_of(event)
    step, stream = steps.get(worker), streams.get(worker)
    if step is None or stream is None or stream.flag("zombie") or step.t < stream.t:
        return []
    late = history.lateness(HANG_IS_SEEN, step.t, event.t)
    if event.t <= step.t + step.number("budget") + late:
        return []
    text = f"{worker} made no progress from {step.t} to {event.t} s and nobody noticed"
    return [Violation("I9", stream.request, text)]


def i19_restart_intensity(history: History) -> list[Violation]:
    """More deaths than the budget allows are followed by poison, never by another restart.

    The death of a host ends all its workers and counts once.

    Raises:
        JournalError: A deployment has no settings, or a death no worker.
    """
    found: list[Violation] = []
    deaths: dict[str, deque[float]] = {}
    shared: set[tuple[str, float]] = set()
    over: dict[str, Event] = {}  # deployment -> the death that was one too many
    poisoned: set[str] = set()
    for event in history.milestones:
        name = event.deployment
        match event.kind:
            case Kind.WORKER_DEAD if not event.flag("deliberate") and name not in poisoned:
                if "fault" in event.value:
                    fault = (name, event.number("fault"))
                    if fault in shared:
                        continue
                    shared.add(fault)
                if _one_too_many(history, deaths.setdefault(name, deque()), event):
                    over.setdefault(name, event)
            case Kind.WORKER_START if name in over:
                text = f"{worker_of(event)} started at {event.t} s over the restart budget"
                found.append(Violation("I19", None, text))
            case Kind.POISON:
                poisoned.add(name)
                deaths.pop(name, None)
                death = over.pop(name, None)
                if death is not None and event.t > _settled(history, death, event):
                    text = f"{name} was poisoned at {event.t} s, over budget since {death.t} s"
                    found.append(Violation("I19", None, text))
            case Kind.ENGINE_START:
                poisoned.discard(name)
            case _:
                pass
    return found + [
        Violation("I19", None, f"{name} was over its restart budget at {death.t} s, not poisoned")
        for name, death in over.items()
    ]


def _one_too_many(history: History, times: deque[float], death: Event) -> bool:
    settings = history.settings(death.deployment)
    if "max_restarts" not in settings.value:
        return False
    times.append(death.t)
    while times[0] < death.t - settings.number("restart_window") + GRACE:
        times.popleft()
    return len(times) > settings.number("max_restarts")
