"""The invariants of a live run, from its journal: what its callers saw and what passed within.

Two processes wrote it. What one of them wrote is in order; between them a moment may pass, so where
times of both are compared, as much is granted as the health page was late itself. What passes
within a lease isn't written, so I9 isn't judged here.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from orchestrator.chaos.invariants import answers, breaker, capacity, queueing, reloads, supervision
from orchestrator.chaos.invariants.history import Check, History, Violation, first
from orchestrator.chaos.journal import Event, Kind

CANCEL_FREES = 0.25
DEATH_IS_SEEN = 0.1
SEEN_BEFORE = 1.0
"""Seconds by which the gateway may know of a death before the run sees it."""
RETRY_SLACK = 0.1
"""Seconds; a retry's time is on the loop's clock, which stands still within a turn."""
BY_CALLERS = frozenset(
    {Kind.SUBMIT, Kind.READ, Kind.END_READ, Kind.CANCEL, Kind.READY, Kind.QUEUE_DEPTH}
)
SILENCES = ("WorkerHungError", "LoopBlockedError")
"""What a worker or an engine ends of that got no core for longer than its lease."""
LATE = frozenset({"deadline_exceeded", "upstream_timeout", "worker_hung"})
"""Codes of errors that a request ends with which took too long."""
ENDS = ("exit code of the gateway", "model hosts left")
RESIDUE = "residue: "


def within(history: History) -> History:
    """What the gateway itself wrote, in the words of the simulation's checks."""
    events: list[Event] = []
    for event in history.events:
        if event.kind in BY_CALLERS or event.kind is Kind.PROVIDER_START:
            continue
        events.append(event)
        if event.kind is Kind.ADMIT:  # who was let through is about to reach the provider
            events.append(msgspec.structs.replace(event, kind=Kind.PROVIDER_START))
        elif event.kind is Kind.RETRY:
            value = event.value | {"not_before": event.number("not_before") + RETRY_SLACK}
            events[-1] = msgspec.structs.replace(event, value=value)
    return History(events)


def at_callers(history: History) -> History:
    """Everything but what the providers' places wrote, and callers who gave up by themselves."""
    return History(
        event
        for event in history.events
        if event.kind is not Kind.PROVIDER_START
        and not (event.kind is Kind.END_READ and event.text("outcome") == "indeterminate")
    )


def at_providers(history: History) -> History:
    """What reached the providers' places."""
    return History(
        event
        for event in history.events
        if event.kind in (Kind.PROVIDER_START, Kind.DEPLOYMENT, Kind.RUN)
    )


def slack(history: History) -> float:
    """Seconds by which the health page was late at the worst, which is as much as all may be."""
    return max(
        (e.number("late", 0.0) + e.number("took", 0.0) for e in history.of(Kind.PROBE)), default=0.0
    )


def _on(view: Callable[[History], History], check: Check) -> Check:
    return lambda history: check(view(history))


def i2_whole_and_in_order(history: History) -> list[Violation]:
    """Tokens come in order, and an answer whose text is known is that text."""
    return answers.i2_tokens_in_order(at_callers(history)) + [
        Violation("I2", event.request, "was done with another text than before")
        for event in history.of(Kind.END_READ)
        if event.value.get("whole") is False
    ]


def i3_by_its_deadline(history: History) -> list[Violation]:
    """Every accepted request ends by its deadline."""
    granted = answers.LATENESS + slack(history)
    found: list[Violation] = []
    for request, events in history.requests.items():
        accept, terminal = first(events, Kind.ACCEPT), first(events, Kind.TERMINAL)
        if accept is None or terminal is None:
            continue  # one that never ends is I1's
        late = terminal.t - accept.number("deadline")
        if late > granted:
            text = f"ended {late:.3f} s after its deadline"
            found.append(Violation("I3", request, text, by_time=True))
    return found


def i4_at_rest(history: History) -> list[Violation]:
    """At rest every gauge is back where it began."""
    return [_off("I4", event) for event in history.of(Kind.GAUGE) if _is_off(event, ends=False)]


def i20_it_ends_well(history: History) -> list[Violation]:
    """Asked to end, it exits with 0 and leaves no process."""
    return [_off("I20", event) for event in history.of(Kind.GAUGE) if _is_off(event, ends=True)]


def residue(history: History) -> list[str]:
    """What the run left on the machine."""
    return [
        f"{event.number('value'):g} {event.text('name').removeprefix(RESIDUE)}"
        for event in history.of(Kind.GAUGE)
        if event.text("name").startswith(RESIDUE) and event.number("value")
    ]


def _is_off(event: Event, *, ends: bool) -> bool:
    name = event.text("name")
    if name.startswith(RESIDUE) or (name in ENDS) is not ends or "expected" not in event.value:
        return False
    return event.number("value") != event.number("expected")


def _off(check: str, event: Event) -> Violation:
    value, expected = event.number("value"), event.number("expected")
    return Violation(check, None, f"{event.text('name')} was {value:g}, not {expected:g}")


def i8_cancel_ends_at_once(history: History) -> list[Violation]:
    """A request whose caller goes away ends at once."""
    granted = CANCEL_FREES + slack(history)
    found: list[Violation] = []
    for cancel in history.of(Kind.CANCEL):
        events = history.requests[cancel.request or ""]
        terminal = first(events, Kind.TERMINAL)
        if first(events, Kind.ACCEPT) is None or first(events, Kind.END_READ) is not None:
            continue
        if terminal is None or terminal.t > cancel.t + granted:
            told = "never" if terminal is None else f"{terminal.t - cancel.t:.3f} s later"
            text = f"left at {cancel.t} s, ended {told}"
            found.append(Violation("I8", cancel.request, text, by_time=terminal is not None))
    return found


def i12_the_cause_is_told(history: History) -> list[Violation]:
    """The caller is told the code that the gateway decided, and a text with it."""
    found: list[Violation] = []
    for end in history.of(Kind.END_READ):
        if end.text("outcome") != "error":
            continue
        terminal = first(history.requests[end.request or ""], Kind.TERMINAL)
        if not end.text("code", "") or not end.text("cause", "").strip():
            found.append(Violation("I12", end.request, "failed without code or cause"))
        elif terminal is not None and terminal.text("code", "") != end.text("code"):
            told, decided = end.text("code"), terminal.text("code", "nothing")
            found.append(Violation("I12", end.request, f"was told {told}, it was {decided}"))
    return found


def i12b_nothing_breaks_by_itself(history: History) -> list[Violation]:
    """Workers and engines end only in a run that breaks workers or the gateway."""
    planned = [event.text("what", "") for event in history.of(Kind.FAULT_PLANNED)]
    if any(what.startswith(("worker", "gateway")) for what in planned):
        return []
    ends = (*history.of(Kind.POISON), *history.of(Kind.WORKER_DEAD))
    return [
        Violation(
            "I12b",
            None,
            f"{end.kind} at {end.t} s: {end.text('cause', '?')}, unplanned",
            by_time=end.text("cause", "").startswith(SILENCES),
        )
        for end in ends
        if not end.flag("deliberate") and not _draining(history, end)
    ]


def _draining(history: History, event: Event) -> bool:
    drains = [e.t for e in history.of(Kind.PHASE) if e.text("name") == "drain"]
    return bool(drains) and event.t >= drains[0]


def i14_health_tells_the_truth(history: History) -> list[Violation]:
    """A death is seen at once, the page says what is true, and load makes nothing unready."""
    found = _unready_of_load(history)
    found += [
        Violation("I14", None, f"{event.deployment} at {event.t:.3f} s: ready without a live slot")
        for event in history.of(Kind.READY)
        if event.value.get("within") is False and event.flag("ready")
    ]
    for landed in history.of(Kind.FAULT_LANDED):
        if landed.value.get("evidence") != "the process ended":
            continue
        seen = [
            event.t
            for event in history.of(Kind.WORKER_DEAD)
            if event.deployment == landed.deployment and event.t > landed.t - SEEN_BEFORE
        ]
        if not seen or seen[0] > landed.t + DEATH_IS_SEEN + slack(history):
            text = f"the death of {landed.deployment} at {landed.t} s was seen too late"
            found.append(Violation("I14", None, text, by_time=bool(seen)))
    return found


def _unready_of_load(history: History) -> list[Violation]:
    broken = [
        event.t + event.number("at")
        for event in history.of(Kind.FAULT_PLANNED)
        if not event.text("what", "").startswith("client")
    ]
    drains = [event.t for event in history.of(Kind.PHASE) if event.text("name") == "drain"]
    end = min([*broken, *drains], default=float("inf"))
    return [
        Violation(
            "I14",
            None,
            f"{event.deployment} wasn't ready at {event.t} s, of load alone",
            by_time=True,
        )
        for event in history.of(Kind.READY)
        if not event.flag("ready") and event.t < end
    ]


def i22_all_is_well_after_the_heal(history: History) -> list[Violation]:
    """A request that comes when nothing is broken any more succeeds."""
    found: list[Violation] = []
    for submit in history.of(Kind.SUBMIT):
        if submit.request is None or not submit.flag("must_succeed"):
            continue
        end = first(history.requests[submit.request], Kind.END_READ)
        if end is None or end.text("outcome") not in ("done", "indeterminate"):
            told = "nothing" if end is None else end.text("code", "")
            text = f"came after the heal and got {told}"
            found.append(Violation("I22", submit.request, text, by_time=told in LATE))
    return found


LIVE_CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "I1": _on(at_callers, answers.i1_one_ending),
        "I2": i2_whole_and_in_order,
        "I3": i3_by_its_deadline,
        "I4": i4_at_rest,
        "I5": _on(within, breaker.i5_breaker_moves_legally),
        "I5b": _on(within, breaker.i5b_few_probes),
        "I6": _on(within, supervision.i6_poison_is_one_way),
        "I6b": _on(within, supervision.i6b_poison_leaves_nobody),
        "I7": _on(within, queueing.i7_queue_is_bounded),
        "I8": i8_cancel_ends_at_once,
        "I10": _on(within, capacity.i10_bounded_amplification),
        "I11": _on(at_callers, answers.i11_nothing_restarts_in_sight),
        "I12": i12_the_cause_is_told,
        "I12b": i12b_nothing_breaks_by_itself,
        "I13": _on(at_providers, capacity.i13_provider_sees_what_is_permitted),
        "I14": i14_health_tells_the_truth,
        "I16": _on(within, queueing.i16_priority_order),
        "I17": answers.i17_slow_reader_ends_alone,
        "I19": _on(within, supervision.i19_restart_intensity),
        "I20": i20_it_ends_well,
        "I31": reloads.i31_a_reload_ends_nobody,
        "I22": i22_all_is_well_after_the_heal,
    }
)
"""By the id of invariants.md."""
