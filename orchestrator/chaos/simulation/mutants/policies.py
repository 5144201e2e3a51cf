"""Bugs of the queue, the permits, the breaker and the retry budget."""

from collections.abc import Callable, Sequence

from pybreaker import CircuitBreaker, CircuitBreakerState
from typing_extensions import override

from orchestrator.errors import OrchestratorError
from orchestrator.inflight import Shed, Ticket
from orchestrator.policies.breaker import Breaker
from orchestrator.policies.concurrency import Concurrency
from orchestrator.policies.limits.key import KeyLimiter, KeyState, Permit
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.policies.limits.line import Line
from orchestrator.policies.limits.mirror import Mirror
from orchestrator.policies.limits.pace import Throttle
from orchestrator.policies.limits.settings import Account, RateLimits
from orchestrator.policies.limits.sharing import SharedKeys
from orchestrator.policies.queue import PriorityQueue
from orchestrator.policies.retry import RetryBudget
from orchestrator.request import PriorityRequest
from orchestrator.standing import Allowance
from orchestrator.turns import TOP, Turns


class LetsAllPass(RateLimiter):
    """A permit that permits everything."""

    @override
    def reserve(self, prompt: int, answer: int, now: float) -> Permit | None:
        self.keys[0].outstanding += 1
        return Permit(self.keys[0], prompt, answer, now)


class IgnoresPauses(RateLimiter):
    """A key goes on however long its provider asked it to rest."""

    @override
    def reserve(self, prompt: int, answer: int, now: float) -> Permit | None:
        for key in self.keys:
            key.rests_until = 0.0
        return super().reserve(prompt, answer, now)


class SendsTheNextKey(RateLimiter):
    """The permit of one key goes out with another."""

    @override
    def reserve(self, prompt: int, answer: int, now: float) -> Permit | None:
        permit = super().reserve(prompt, answer, now)
        if permit is None:
            return None
        other = self.keys[(permit.key + 1) % len(self.keys)]
        self.keys[permit.key].outstanding -= 1
        other.outstanding += 1
        wrong = Permit(other, prompt, answer, now)
        wrong.key = (permit.key + 1) % len(self.keys)
        return wrong


class StaysInLine(RateLimiter):
    """Whoever waits no more for a key that others have, too, stands in their way."""

    @override
    def withdraw(self) -> None:
        pass


class JumpsTheLine(Line):
    """Whoever comes for a key takes what is there, whoever waits for it."""

    @override
    def lets(self, who: object, level: int) -> bool:
        return True


class KnowsNoUrgency(Line):
    """Who waits for a key is served as it came, however urgent anybody is."""

    @override
    def lets(self, who: object, level: int) -> bool:
        return super().lets(who, 0)

    @override
    def join(self, who: object, wake: Callable[[], None], level: int) -> None:
        super().join(who, wake, 0)


class SharesNothing(SharedKeys):
    """Every deployment has all of its key's limit, whoever else sends it."""

    @override
    def join(self, limiter: RateLimiter, uses: Sequence[tuple[Account | None, RateLimits]]) -> None:
        pass


class RestsForTheSooner(KeyLimiter):
    """Of two times until which a key rests the earlier one counts."""

    @override
    def rest(self, until: float, state: KeyState = "paused") -> None:
        now = self.rests_until
        self.rests_until, self.state = (min(now, until) if now else until), state


class HearsAndForgets(Mirror):
    """What a provider says is left is noted and not kept."""

    @override
    def has_room(self, amount: float, now: float) -> bool:
        return True


class ForgetsWhatIsOnItsWay(Mirror):
    """What was sent and isn't answered yet is taken to be in the number that an answer tells."""

    def __init__(self, told: Allowance, unheard: float, now: float) -> None:
        super().__init__(told, 0.0 * unheard, now)

    @override
    def hear(self, told: Allowance, unheard: float, now: float) -> None:
        self._believe(told, now)
        self._left = min(told.remaining, self.limit)


class SlowsInName(Throttle):
    """A key that was refused is slowed down, and nobody keeps to it."""

    @override
    def ready_in(self) -> float:
        return 0.0


class StaysSlow(Throttle):
    """A key that was slowed down stays so for ever."""

    @override
    def recover(self, now: float) -> bool:
        return False


class NeverRefuses(PriorityQueue):
    """A queue without a bound."""

    @override
    def _make_room(self, ticket: Ticket) -> Shed | None:
        return None


class KeepsTheGone(PriorityQueue):
    """Who went away is dispatched all the same."""

    @override
    def discard(self, ticket: Ticket) -> None:
        pass


class LosesThePlace(PriorityQueue):
    """A retry goes to the end of the queue."""

    @override
    def push_back(self, ticket: Ticket, *, not_before: float) -> None:
        ticket.sequence += 1_000_000
        super().push_back(ticket, not_before=not_before)


class IgnoresPriority(Turns):
    """First come, first served, whoever it is."""

    @override
    def _level(self, ticket: Ticket, now: float) -> int:
        return TOP


class AgesNobody(Turns):
    """Who waits stays in its class for ever."""

    @override
    def _rise(self) -> None:
        self._due.clear()

    @override
    def _level(self, ticket: Ticket, now: float) -> int:
        return ticket.request.priority


class KeepsOnServing(Turns):
    """A caller is served until it has nothing left."""

    @override
    def serve(self, ticket: Ticket) -> None:
        self.remove(ticket)


class ShedsTheHighest(Turns):
    """Whoever is most urgent makes room."""

    @override
    def to_shed(self, request: PriorityRequest, now: float) -> Ticket | None:
        self._line_up()
        longest = [crowd.longest for crowd in reversed(self._crowds)]
        found = [line.youngest_untried() for line in longest if line is not None]
        return next((ticket for ticket in found if ticket is not None), None)


class ShedsTheTried(Turns):
    """Whoever was tried already makes room as well."""

    @override
    def to_shed(self, request: PriorityRequest, now: float) -> Ticket | None:
        self._line_up()
        lines = [line for lines in self._lines[: request.priority] for line in lines.values()]
        tried = (entry[1] for line in lines for entry in line.returned if entry[1].queued)
        return next(tried, None) or super().to_shed(request, now)


class ShedsInName(PriorityQueue):
    """Whoever was shed is told so, and keeps its turn."""

    @override
    def _make_room(self, ticket: Ticket) -> Shed | None:
        shed = super()._make_room(ticket)
        if shed is not None:
            self._turns.add(shed.ticket)
        return shed


class ForgetsThePatient(PriorityQueue):
    """Whoever took an extra place never gets a turn."""

    @override
    def push(self, ticket: Ticket) -> Shed | None:
        if not ticket.patient or self._length < self._capacity:
            return super().push(ticket)
        ticket.queued = ticket.backing_off = True
        self._length += 1
        self._backing_off += 1
        return None


class AllowsAny(Concurrency):
    """The limit is counted and not kept."""

    @override
    def allows(self, running: int) -> bool:
        return True


class FallsToNothing(Concurrency):
    """The limit falls below the lowest one."""

    @override
    def was_too_much(self, *, began_at: float, now: float) -> None:
        self._limit *= 0.5


class TiesOnTheHeap(PriorityQueue):
    """Two retries due at one time are compared by themselves, which fails."""

    @override
    def push_back(self, ticket: Ticket, *, not_before: float) -> None:
        due = round(not_before, 1)
        if any(entry[0] == due for entry in self._delayed):
            raise TypeError("'<' not supported between instances of 'Ticket' and 'Ticket'")
        super().push_back(ticket, not_before=due)


class NoBudget(RetryBudget):
    """Every retry is allowed."""

    @override
    def spend(self, now: float, cost: int = 1) -> bool:
        return True


class Floods(Breaker):
    """Half-open lets everyone in."""

    @override
    def admit(self, now: float) -> int:
        self._probing = 0
        return super().admit(now)


class OpensForAsLong(Breaker):
    """A provider that fails its probes is asked as often as before."""

    @override
    def state_change(
        self,
        cb: CircuitBreaker,
        old_state: CircuitBreakerState | None,
        new_state: CircuitBreakerState,
    ) -> None:
        super().state_change(cb, old_state, new_state)
        self._open_for = self._first_open_for


class KeepsTheProbe(Breaker):
    """A probe without a verdict never gives its place back."""

    @override
    def no_verdict(self, era: int) -> None:
        pass


class CountsOldVerdicts(Breaker):
    """A result of an older era moves it."""

    @override
    def failed(self, era: int, error: OrchestratorError) -> None:
        super().failed(self._era, error)
