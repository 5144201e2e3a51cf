"""What one caller is promised: one ending, in time, of one whole and ordered answer.

Holds I1, I2, I3, I11, I12, I15, I17 and I22.
"""

from orchestrator.chaos.invariants.history import History, Violation, first
from orchestrator.chaos.journal import Event, Kind

LATENESS = 0.25
"""Seconds after its deadline by which a request must have ended."""
SETTLED = frozenset(
    {
        Kind.ACCEPT,
        Kind.DISPATCH,
        Kind.ATTEMPT_START,
        Kind.PROVIDER_START,
        Kind.TOKEN,
        Kind.RETRY,
        Kind.TERMINAL,
    }
)
"""What can't happen to a request that has ended; its stream may still be closed and read."""
UNCAUSED = frozenset({"circuit_open", "draining"})
"""Errors above request scope that need no fault of this very request."""


def i1_one_ending(history: History) -> list[Violation]:
    """Every accepted request ends exactly once, and nothing follows; the reader sees that ending.

    Raises:
        JournalError: An ending has no outcome.
    """
    found: list[Violation] = []
    for request, events in history.requests.items():
        terminal = first(events, Kind.TERMINAL)
        if terminal is None:
            if first(events, Kind.ACCEPT) is not None:
                found.append(Violation("I1", request, "was accepted and never ended"))
            continue
        place = events.index(terminal)
        begun = {event.epoch for event in events[:place] if event.kind is Kind.ATTEMPT_START}
        found += [
            Violation("I1", request, f"{event.kind} at {event.t} s after its ending")
            for event in events[place + 1 :]
            if event.kind in SETTLED and not _crossed(history, event, terminal, begun)
        ]
        found += _reader_disagrees(request, events, terminal)
    return found


def _crossed(history: History, event: Event, terminal: Event, begun: set[int | None]) -> bool:
    """Whether an attempt that ran reached its provider while the word of the end was on its way."""
    return (
        event.kind is Kind.PROVIDER_START
        and event.epoch in begun
        and event.t <= terminal.t + history.on_its_way(terminal.t, event.t)
    )


def _reader_disagrees(request: str, events: list[Event], terminal: Event) -> list[Violation]:
    ends = [index for index, event in enumerate(events) if event.kind is Kind.END_READ]
    if not ends:
        return []
    found: list[Violation] = []
    if len(ends) > 1:
        found.append(Violation("I1", request, f"its reader was given {len(ends)} endings"))
    told, decided = events[ends[0]].text("outcome"), terminal.text("outcome")
    if told != decided:
        found.append(Violation("I1", request, f"ended as {decided}, its reader was told {told}"))
    if first(events[ends[0] :], Kind.READ) is not None:
        found.append(Violation("I1", request, "its reader was given a token after the ending"))
    return found


def i2_tokens_in_order(history: History) -> list[Violation]:
    """The reader is given tokens 0, 1, 2, ...; `done` means all of them.

    Raises:
        JournalError: A token has no index, or an ending no outcome.
    """
    found: list[Violation] = []
    for request, events in history.requests.items():
        read = [event.number("index") for event in events if event.kind is Kind.READ]
        wrong = next((place for place, index in enumerate(read) if index != place), None)
        if wrong is not None:
            text = f"token {read[wrong]:g} came in place {wrong}"
            found.append(Violation("I2", request, text))
        submit, end = first(events, Kind.SUBMIT), first(events, Kind.END_READ)
        if submit is None or end is None or "tokens" not in submit.value:
            continue
        whole = submit.number("tokens")
        if end.text("outcome") == "done" and len(read) != whole:
            text = f"was done after {len(read)} of {whole:g} tokens"
            found.append(Violation("I2", request, text))
    return found


def i3_by_its_deadline(history: History) -> list[Violation]:
    """Every accepted request ends by its deadline, queueing and retries included.

    Raises:
        JournalError: An acceptance has no deadline.
    """
    found: list[Violation] = []
    for request, events in history.requests.items():
        accept = first(events, Kind.ACCEPT)
        if accept is None:
            continue
        deadline, terminal = accept.number("deadline"), first(events, Kind.TERMINAL)
        if terminal is None:
            found.append(Violation("I3", request, f"never ended; its deadline was {deadline} s"))
        elif terminal.t > deadline + history.lateness(LATENESS, accept.t, terminal.t):
            text = f"ended at {terminal.t} s, its deadline was {deadline} s"
            found.append(Violation("I3", request, text))
    return found


def i11_nothing_restarts_in_sight(history: History) -> list[Violation]:
    """After the first token that was read no attempt starts, unless it resumes exactly."""
    found: list[Violation] = []
    for request, events in history.requests.items():
        seen = False
        for event in events:
            seen = seen or event.kind is Kind.READ
            if seen and event.kind is Kind.ATTEMPT_START and not event.flag("resume"):
                text = f"attempt {event.epoch} started at {event.t} s after a token was read"
                found.append(Violation("I11", request, text))
    return found


def i12_root_cause_survives(history: History) -> list[Violation]:
    """An error tells scope, class, attempts and the text of what really broke.

    Raises:
        JournalError: An ending with an error lacks code, scope, cause or attempts.
    """
    found: list[Violation] = []
    for request, events in history.requests.items():
        terminal = first(events, Kind.TERMINAL)
        if terminal is None or terminal.text("outcome") != "error":
            continue
        cause, code = terminal.text("cause"), terminal.text("code")
        told = terminal.number("attempts")
        made = sum(event.kind is Kind.ATTEMPT_START for event in events)
        if told != made:
            text = f"tells {told:g} attempts, there were {made}"
            found.append(Violation("I12", request, text))
        if code == "circuit_open" and _failed_before(history, request, terminal):
            text = f"tells only that the circuit is open, but it had failed: {cause!r}"
            found.append(Violation("I12", request, text))
        if not cause.strip():
            found.append(Violation("I12", request, f"ended with {code} and no cause"))
        elif terminal.text("scope") != "request" and code not in UNCAUSED:
            found += _cause_is_told(history, request, terminal)
    return found


def _failed_before(history: History, request: str, terminal: Event) -> bool:
    """Whether one of its own attempts had ended by a fault before the request did."""
    landed: set[int | None] = set()
    for event in history.requests[request]:
        if event is terminal:
            break
        if event.kind is Kind.FAULT_LANDED:
            landed.add(event.epoch)
        elif event.kind is Kind.ATTEMPT_END and event.epoch in landed:
            return True
    return False


def _cause_is_told(history: History, request: str, terminal: Event) -> list[Violation]:
    causes = _causes(history, request, terminal)
    cause, code = terminal.text("cause"), terminal.text("code")
    if not causes:
        return [Violation("I12", request, f"ended with {code} ({cause}), but nothing had broken")]
    if any(text in cause for text in causes):  # a hang has the empty text, which is in every cause
        return []
    return [Violation("I12", request, f"tells {cause!r}, but what broke was {causes}")]


def _causes(history: History, request: str, terminal: Event) -> list[str]:
    """Texts of what broke before the ending, on the request, its workers or its deployments."""
    workers: set[str | None] = set()
    deployments: set[str] = set()
    for event in history.requests[request]:
        if event.kind in (Kind.DISPATCH, Kind.ATTEMPT_START):
            workers.add(event.worker)
        elif event.kind in (Kind.ACCEPT, Kind.REJECT):
            deployments.add(event.deployment)
    faults = [
        event.text("text", "")
        for event in history.of(Kind.FAULT_LANDED)
        if event.t <= terminal.t
        and (
            event.request == request
            or (event.request is None and event.worker in workers)
            or (event.request is None and event.worker is None and event.deployment in deployments)
        )
    ]
    poisons = [
        event.text("cause")
        for event in history.of(Kind.POISON)
        if event.t <= terminal.t and event.deployment in deployments
    ]
    return faults + poisons


def i12b_nothing_breaks_by_itself(history: History) -> list[Violation]:
    """Workers and engines end of faults that landed; any other cause is a bug of our own.

    Raises:
        JournalError: A poison has no cause.
    """
    texts = [text for event in history.of(Kind.FAULT_LANDED) if (text := event.text("text", ""))]
    ends = [
        event
        for event in (*history.of(Kind.POISON), *history.of(Kind.WORKER_DEAD))
        if "cause" in event.value and not event.flag("deliberate")
    ]
    return [
        Violation("I12b", None, f"{end.kind} at {end.t} s of {end.text('cause')!r}, unplanned")
        for end in ends
        if not any(text in end.text("cause") for text in texts)
    ]


def i15_late_changes_nothing(history: History) -> list[Violation]:
    """An attempt that was replaced, taken back or outrun writes no token and no ending."""
    found: list[Violation] = []
    for request, events in history.requests.items():
        pens: dict[int | None, tuple[str, bool]] = {}  # who may write: where, and whether a hedge
        for event in events:
            if event.kind is Kind.DISPATCH:
                hedge = event.flag("hedge")
                pens = {epoch: at for epoch, at in pens.items() if hedge or at[1]}
                pens[event.epoch] = event.deployment, hedge
            elif event.kind is Kind.RETRY:
                pens = {epoch: at for epoch, at in pens.items() if at[0] != event.deployment}
            elif event.kind in (Kind.TOKEN, Kind.TERMINAL) and event.epoch is not None:
                if event.epoch not in pens:
                    text = f"{event.kind} of old attempt {event.epoch} at {event.t} s counted"
                    found.append(Violation("I15", request, text))
                # the first token decides between a hedge and what it was to hedge
                pens = {event.epoch: pens.get(event.epoch, (event.deployment, False))}
    return found


def i17_slow_reader_ends_alone(history: History) -> list[Violation]:
    """Only who reads slowly, or not at all, is ended for it.

    Raises:
        JournalError: An ending with an error lacks its code.
    """
    return [
        Violation("I17", request, "was ended for reading slowly, and had read at once")
        for request, events in history.requests.items()
        if (terminal := first(events, Kind.TERMINAL)) is not None
        and terminal.value.get("outcome") == "error"
        and terminal.text("code") == "slow_consumer"
        and (submit := first(events, Kind.SUBMIT)) is not None
        and submit.text("reads", "at once") == "at once"
    ]


def i22_all_is_well_after_the_heal(history: History) -> list[Violation]:
    """A request that comes when nothing is broken any more succeeds.

    Raises:
        JournalError: An ending lacks its outcome.
    """
    found: list[Violation] = []
    for submit in history.of(Kind.SUBMIT):
        if submit.request is None or not submit.flag("must_succeed"):
            continue
        terminal = first(history.requests[submit.request], Kind.TERMINAL)
        if terminal is None or terminal.text("outcome") != "done":
            told = "nothing" if terminal is None else terminal.value.get("cause", "a cancel")
            found.append(Violation("I22", submit.request, f"came after the heal and got {told}"))
    return found
