"""The journal of a run: one append-only list of requests, faults and measurements.

The verdict is computed from these events alone. The order of the list is the order of what
happened; times are rounded to a microsecond, so a run and its file have the same hash and the same
verdict. Values are text, finite numbers and truth values; no prompt, no key, no wall clock.

What each kind says (fields besides `value`; then the members of `value`, those in brackets may be
left out). `deployment` may be left out everywhere in a run with one nameless deployment.

    run             -; seed, [grid], [anything for people]; grid if time is simulated: seconds onto
                    whose multiples timers are put off
    stretched       -; seconds: simulated time is about to pass within one step, as it does on a
                    slow machine
    deployment      -; deployment, slots, queue_capacity, [permits_burst, permits_per_second],
                    [max_restarts, restart_window], [retry_share, retry_floor, retry_window],
                    [probes], [open_for, max_open_for], [aging], [waiting],
                    [learns, told_per_second], [account]: one per deployment, before all others; a
                    limit that is left out isn't judged; aging is seconds per class, waiting are
                    places beyond the capacity; open_for is in seconds; learns if what a provider
                    says of its limits counts, and told_per_second is the most requests that it may
                    say; deployments of one account have the limits of their keys in common
    engine_start    -; deployment, generation: an engine begins to accept
    poison          -; deployment, cause: class and text of the root cause
    supervisor_dead -; deployment: nobody watches it any more
    worker_start    worker; deployment: a new worker begins to start its runner
    worker_dead     worker; deployment, deliberate, [fault], [cause]: it ended; deliberate if it was
                    asked to; fault is a number that all share who died of the same host,
                    cause is class and text of it
    kill            worker; deployment: a lease expired and the worker is written off for it

    submit          request; [tokens], [reads], [must_succeed], [route, attempts, hedge_share]: the
                    caller asks; tokens is the length of the whole answer; reads is `at once`, or
                    `slowly` or `never` of one that may be ended for it; must_succeed if nothing is
                    broken any more; attempts is the route's bound, hedge_share its hedges per
                    request
    shed            request; deployment, by: it gave its place up for another one, whose acceptance
                    follows at once
    accept          request; deployment, priority, deadline, depth, [caller, hedge]: a deployment
                    took it in; again at the next one after a failover; depth is the queue's
                    length, itself included
    reject          request; deployment, code, depth: a deployment refused it
    dequeue         request; deployment: it left the queue, to be dispatched or because it ended
    dispatch        request, worker, epoch; deployment, [limit], [hedge]: the engine recorded the
                    assignment; limit is how many may run at once, where that adapts; hedge if it
                    is beside another one that has not failed
    attempt_start   request, worker, epoch, [attempt]; deployment, [resume]: the worker began it;
                    resume if it continues exactly what was read
    admit           request, worker, epoch; deployment, state: the breaker, in that state, let it
                    through
    provider_start  request, worker, epoch; deployment, [zombie], [key]: it reached the provider or
                    model (a refused connection or circuit did not); zombie if it can't be canceled;
                    key is the number of the one that it was sent with
    step            worker; budget: a lease was armed or made progress; seconds until it expires
    token           request, epoch; -: the channel took a chunk
    provider_end    request, worker, epoch; deployment: the stream at the provider is closed
    breaker         -; deployment, state: it moved there (closed, open, half-open)
    attempt_end     request, worker, epoch; deployment, verdict (none, success, failure): an
                    admitted attempt is over; its move of the breaker, if any, stands before
    retry           request; deployment, not_before, depth: it went back into the queue
    late            [request, worker, epoch]; -: something old came and changed nothing
    read            request; index: the caller was given the token with that number, from 0
    cancel          request; -: the caller cancels or goes away
    terminal        request, [epoch]; outcome (done, error, canceled); of an error also code, scope,
                    cause, attempts: the ending was decided; epoch if an attempt decided it
    end_read        request; outcome: the caller was given the ending

    fault_landed    [request], [worker]; [text], [deployment]: an injected fault took effect there;
                    an error that comes of it must tell this text; one with neither request nor
                    worker concerns the whole deployment
    key_paused      -; deployment, key, seconds: the provider asked for a pause of that key
    key_told        -; deployment, key: the provider told truly what is left of that key's limit
    key_limited     request, worker, epoch; deployment, key, used_up: the provider refused it for
                    that key's rate; used_up if nothing was left of its limit
    queue_depth     -; deployment, depth: a measurement at any time
    ready           -; deployment, ready, [live], [within]: what the health page says at that time;
                    within is false if all the while no slot was live
    reload          -; number: other deployments take the place of all those before
    gauge           -; name, value, [expected]: a measurement; with `expected` one taken at rest

Of a live run alone; what its clients and its injector write stands in the same file.

    phase           -; name: baseline, fault, heal, recovery, drain or check begins
    fault_planned   -; fault, what, target, at: a fault of the scenario, before it strikes
    fault_healed    -; fault: it was undone, or is over by itself
    probe           -; ready, status, late: the health page was asked; seconds of our own lateness
    retired         -; deployment: the health page tells of it no more
    strain          -; share: of the time in which the run and its gateway wanted a core, that in
                    which they had to wait for one
    aborted         -; reason: the run was broken off before its end
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType

import msgspec

Scalar = str | int | float | bool | None
TIME_DIGITS = 6
NOTHING: Mapping[str, Scalar] = MappingProxyType({})


class JournalError(Exception):
    """The journal itself is wrong: a line can't be read or an event lacks what its kind needs."""


class Kind(StrEnum):
    """What happened; the module's docstring is the table."""

    RUN = "run"
    STRETCHED = "stretched"
    DEPLOYMENT = "deployment"
    ENGINE_START = "engine_start"
    POISON = "poison"
    SUPERVISOR_DEAD = "supervisor_dead"
    WORKER_START = "worker_start"
    WORKER_DEAD = "worker_dead"
    KILL = "kill"
    SUBMIT = "submit"
    SHED = "shed"
    ACCEPT = "accept"
    REJECT = "reject"
    DEQUEUE = "dequeue"
    DISPATCH = "dispatch"
    ATTEMPT_START = "attempt_start"
    ADMIT = "admit"
    PROVIDER_START = "provider_start"
    STEP = "step"
    TOKEN = "token"
    PROVIDER_END = "provider_end"
    BREAKER = "breaker"
    ATTEMPT_END = "attempt_end"
    RETRY = "retry"
    LATE = "late"
    READ = "read"
    CANCEL = "cancel"
    TERMINAL = "terminal"
    END_READ = "end_read"
    FAULT_LANDED = "fault_landed"
    KEY_PAUSED = "key_paused"
    KEY_TOLD = "key_told"
    KEY_LIMITED = "key_limited"
    QUEUE_DEPTH = "queue_depth"
    RELOAD = "reload"
    STRAIN = "strain"
    RETIRED = "retired"
    READY = "ready"
    GAUGE = "gauge"
    PHASE = "phase"
    FAULT_PLANNED = "fault_planned"
    FAULT_HEALED = "fault_healed"
    PROBE = "probe"
    ABORTED = "aborted"


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One line of the journal."""

    t: float
    """Seconds since the start of the run, rounded to a microsecond."""
    kind: Kind
    request: str | None = None
    attempt: int | None = None
    worker: str | None = None
    epoch: int | None = None
    value: dict[str, Scalar] = msgspec.field(default_factory=dict[str, Scalar])

    @property
    def deployment(self) -> str:
        """The deployment that it happened in; empty in a run that names none."""
        value = self.value.get("deployment", "")  # read for nearly every event of every check
        return value if isinstance(value, str) else self.text("deployment")

    def text(self, key: str, default: str | None = None) -> str:
        """A member of the value that is text.

        Raises:
            JournalError: It is missing and there is no default, or it is something else.
        """
        value = self.value.get(key, default)
        if not isinstance(value, str):
            raise self._lacks(key, "text")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A member of the value that is a number.

        Raises:
            JournalError: It is missing and there is no default, or it is something else.
        """
        value = self.value.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._lacks(key, "a number")
        return value

    def flag(self, key: str) -> bool:
        """A member of the value that is true or false; false if it is missing."""
        return self.value.get(key) is True

    def _lacks(self, key: str, what: str) -> JournalError:
        found = self.value.get(key)
        return JournalError(f"{self.kind} at {self.t} s: {key} must be {what}, not {found!r}")


class Journal:
    """Collects the events of one run.

    Args:
        clock: Seconds; the loop's time in a simulation.
        sink: Takes every event instead of this journal, which then keeps none.
    """

    def __init__(
        self, clock: Callable[[], float], *, sink: Callable[[Event], None] | None = None
    ) -> None:
        self._clock = clock
        self._events: list[Event] = []
        self.take: Callable[[Event], None] = self._events.append if sink is None else sink
        """Appends an event that was made elsewhere."""

    def __repr__(self) -> str:
        return f"<Journal, {len(self._events)} events>"

    @property
    def events(self) -> Sequence[Event]:
        """All events so far, oldest first."""
        return self._events

    def record(
        self,
        kind: Kind,
        *,
        request: str | None = None,
        attempt: int | None = None,
        worker: str | None = None,
        epoch: int | None = None,
        more: Mapping[str, Scalar] = NOTHING,
        **value: Scalar,
    ) -> None:
        """Appends what happens now; `more` are further members of the value."""
        value.update(more)
        now = round(self._clock(), TIME_DIGITS)
        self.take(Event(now, kind, request, attempt, worker, epoch, value))

    def hash(self) -> str:
        """The run's trace as one short text; equal runs have equal ones."""
        return trace_hash(self._events)


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Event)


def trace_hash(events: Iterable[Event]) -> str:
    """The hash of a journal's lines, 32 hexadecimal digits."""
    return blake2b(_encoder.encode_lines(list(events)), digest_size=16).hexdigest()


def line_of(event: Event) -> bytes:
    """An event as its line."""
    return _encoder.encode(event) + b"\n"


def write_journal(path: Path, events: Iterable[Event]) -> None:
    """Appends events to a file, one JSON object a line."""
    with path.open("ab") as file:
        file.write(_encoder.encode_lines(list(events)))


def read_journal(path: Path) -> list[Event]:
    """Reads a file back; a torn last line, of a writer that was killed, is left out.

    Raises:
        JournalError: A whole line isn't an event.
    """
    events: list[Event] = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        try:
            events.append(_decoder.decode(line))
        except msgspec.DecodeError as error:
            if not line.endswith(b"\n"):
                break
            raise JournalError(f"{path}, line {number}: {error}") from error
    return events
