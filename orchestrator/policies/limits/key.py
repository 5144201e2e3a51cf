"""The limits of one key: what may start with it now, and until when nothing may.

Several things bound a start, and all must have room, or nothing is taken from any: a sliding window
for each limit that is configured, an even pace of requests, the number of attempts at the same
time, and what the provider itself says (`Mirror`, `Throttle`). Rules:

    1. A permit reserves an estimate of tokens; it is corrected by what was really used, at the
       time at which it was reserved, and given back whole when nothing was sent.
    2. After a refusal the key rests until the latest time that anything named: the hint of any
       answer, or the reset of a limit of which nothing is left. No single answer is believed
       beyond an hour. A refusal without a hint rests for longer each time it is repeated.
    3. Of many refusals of attempts that ran at the same time only the first slows the key down:
       those that began before that say nothing about the new rate.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Literal

from orchestrator.errors import (
    OrchestratorError,
    RequestTooLargeError,
    UpstreamAuthenticationError,
    UpstreamQuotaExceededError,
)
from orchestrator.policies.limits.line import Line
from orchestrator.policies.limits.mirror import Mirror
from orchestrator.policies.limits.pace import BURST_SHARE, Pace, Throttle
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.limits.window import SPAN_SECONDS, Window
from orchestrator.standing import Meter, Standing

KeyState = Literal["ready", "paused", "exhausted", "revoked"]

LONGEST_PAUSE = 3600.0
"""Seconds that one answer can pause a key for."""
EXHAUSTED_SECONDS = 600.0
"""How long a key without credit rests: nothing but a payment brings it back."""
FIRST_REST = 0.5
"""Seconds after the first refusal without a hint, doubled with each that follows."""
LONGEST_REST = {"paused": 60.0, "revoked": 300.0}
SHORTEST_MEASURE = 1.0
"""Seconds over which a rate is measured at the least."""

_METERS = tuple(Meter)


class Permit:
    """One attempt's permit; it ends exactly once, later calls do nothing."""

    __slots__ = ("_heard", "_limiter", "_open", "answer", "at", "key", "on_end", "prompt", "unsaid")

    def __init__(self, limiter: "KeyLimiter", prompt: int, answer: int, at: float) -> None:
        self._limiter = limiter
        self._open = True
        self._heard = False
        self.prompt = prompt
        """Tokens reserved for the prompt."""
        self.answer = answer
        """Tokens reserved for the answer."""
        self.at = at
        """Loop time, seconds, at which it was reserved."""
        self.key = 0
        """Which of its deployment's keys it is for, from 0."""
        self.unsaid = limiter.unsaid
        """What had been sent of which no answer was ever heard, when this was reserved."""
        self.on_end: Callable[[], None] | None = None
        """Called once, when it has ended."""

    def hear(self, standing: Standing) -> None:
        """The head of the answer told how the key stands."""
        if not self._heard:
            self._heard = True
            self._limiter.answered(self)
        self._limiter.hear(standing, self, asyncio.get_running_loop().time())

    def settle(self, prompt: int, answer: int) -> None:
        """The attempt is over and the provider has seen it; corrects the estimate."""
        if self._open:
            self._open = False
            if self._limiter.learns and not self._heard:
                self._limiter.ended_unheard(self)
            self._limiter.close(self, 0, prompt - self.prompt, answer - self.answer)
            if self.on_end is not None:
                self.on_end()

    def spend(self) -> None:
        """The attempt is over and nobody knows what it used: what was reserved counts."""
        self.settle(self.prompt, self.answer)

    def release(self) -> None:
        """Nothing was sent: gives everything back."""
        if self._open:
            self._open = False
            if self._limiter.learns and not self._heard:
                self._limiter.answered(self)
            self._limiter.close(self, -1, -self.prompt, -self.answer)
            if self.on_end is not None:
                self.on_end()

    def refused(self, error: OrchestratorError, now: float) -> None:
        """The attempt failed, and the provider blamed the key."""
        self._limiter.refused(error, self.at, now)

    def accepted(self, now: float) -> None:
        """The attempt was served, so the key is good at this rate."""
        self._limiter.accepted(self.at, now)


class KeyLimiter:
    """The permits of one key and model.

    Args:
        limits: Of the key.
    """

    def __init__(self, limits: RateLimits) -> None:
        self.line: Line | None = None
        """Where those wait who have it in common; None if one deployment has it alone."""
        self.outstanding = 0
        """Permits that haven't ended; 0 at rest."""
        self.state: KeyState = "ready"
        """Why it rests, if it does."""
        self.rests_until = 0.0
        """Loop time, seconds, until which nothing starts; 0 if it never rested."""
        self._windows = _windows(limits, {})
        self._mirrors: dict[Meter, Mirror] = {}
        self._concurrency = math.inf if limits.concurrency is None else limits.concurrency
        self._per_minute = limits.requests_per_minute
        self._pace = _pace(self._per_minute)
        self._throttle: Throttle | None = None
        self.learns = limits.learn
        """Whether what the provider says counts."""
        self.unsaid = (0, 0, 0, 0)
        """What has been sent of which no answer was ever heard, in all, by meter."""
        self._unheard = [0, 0, 0, 0]
        self._refusals = 0
        self._started, self._mark = 0, (0.0, 0)

    def __repr__(self) -> str:
        return f"<KeyLimiter {self.state}, {self.outstanding} out>"

    def change(self, limits: RateLimits) -> None:
        """From now on other limits; what has been sent counts on."""
        self._windows = _windows(limits, dict(self._windows))
        self._concurrency = math.inf if limits.concurrency is None else limits.concurrency
        if limits.requests_per_minute != self._per_minute:
            self._per_minute = limits.requests_per_minute
            self._pace = _pace(self._per_minute)
        self.learns = limits.learn

    @property
    def slowed_to(self) -> float | None:
        """Starts per minute that refusals have left it; None if it isn't slowed down."""
        return None if self._throttle is None else self._throttle.per_minute

    @property
    def rate(self) -> float:
        """Starts per minute that it has now, whoever said so; infinite if nobody did."""
        told = self._mirrors.get(Meter.REQUESTS)
        said = (self._per_minute, self.slowed_to, None if told is None else told.limit)
        return min((one for one in said if one is not None), default=math.inf)

    def too_large(self, prompt: int, answer: int) -> RequestTooLargeError | None:
        """Why no waiting can make such a request possible, or None if it can."""
        amounts = (1, prompt + answer, prompt, answer)
        for meter, window in self._windows:
            if amounts[meter] > window.limit:
                what = meter.name.lower().replace("_", " ")
                return RequestTooLargeError(
                    f"the request needs about {amounts[meter]} {what}, more than the "
                    f"{window.limit:g} per minute of its deployment; "
                    + ("shorten it" if meter is Meter.INPUT_TOKENS else "lower max_tokens"),
                    param="messages" if meter is Meter.INPUT_TOKENS else "max_tokens",
                )
        return None

    def reserve(self, prompt: int, answer: int, now: float) -> Permit | None:
        """Takes a permit for one attempt now, or takes nothing and returns None.

        Args:
            prompt: Tokens of the prompt, estimated.
            answer: Tokens of the longest answer.
            now: Loop time, seconds.
        """
        if now < self.rests_until or self.outstanding >= self._concurrency:
            return None
        if self._pace is not None and not self._pace.has_capacity(1):
            return None
        if self._throttle is not None and self._throttle.ready_in() > 0:
            return None
        amounts = (1, prompt + answer, prompt, answer)
        for meter, window in self._windows:
            if not window.has_room(amounts[meter], now):
                return None
        for meter, mirror in self._mirrors.items():
            if not mirror.has_room(amounts[meter], now):
                return None
        self._take(amounts, now)
        return Permit(self, prompt, answer, now)

    def ready_at(self, prompt: int, answer: int, now: float) -> float:
        """Loop time, seconds, at which `reserve` could succeed if nothing else changes.

        Infinite if only the end of an attempt can change it.
        """
        if self.outstanding >= self._concurrency:
            return math.inf
        amounts = (1, prompt + answer, prompt, answer)
        if any(amounts[meter] > window.limit for meter, window in self._windows):
            return math.inf
        at = max(now, self.rests_until)
        if self._pace is not None:
            at = max(at, now + self._pace.ready_in())
        if self._throttle is not None:
            at = max(at, now + self._throttle.ready_in())
        for meter, window in self._windows:
            at = max(at, window.ready_at(amounts[meter], now))
        for meter, mirror in self._mirrors.items():
            at = max(at, mirror.ready_at(amounts[meter], now))
        return at

    def rest(self, until: float, state: KeyState = "paused") -> None:
        """Starts nothing until then; of several times the latest counts (loop time, seconds)."""
        if until > self.rests_until:
            self.rests_until, self.state = until, state

    def restore(self) -> None:
        """Another key took this one's place: nothing that was said of the old one counts."""
        self.rests_until, self.state, self._refusals = 0.0, "ready", 0
        self._throttle = None
        self._mirrors.clear()

    def hear(self, standing: Standing, permit: Permit, now: float) -> None:
        """What the provider said was left when it counted that permit's request."""
        if not self.learns:
            return
        for meter, told in zip(_METERS, standing, strict=True):
            if told is None:
                continue
            mirror = self._mirrors.get(meter)
            if mirror is None:
                # a first word knows nothing of those that were given up since its request was sent;
                # the words that follow are held against what has been sent since the first
                unsaid = self.unsaid[meter] - permit.unsaid[meter]
                self._mirrors[meter] = Mirror(told, self._unheard[meter] + unsaid, now)
            else:
                mirror.hear(told, self._unheard[meter], now)

    def refused(self, error: OrchestratorError, began_at: float, now: float) -> None:
        """The provider blamed the key.

        Args:
            error: With what.
            began_at: Loop time, seconds, at which the attempt's permit was reserved.
            now: Loop time, seconds.
        """
        if isinstance(error, UpstreamQuotaExceededError):
            asked = min(error.retry_after or 0.0, LONGEST_PAUSE)
            self.rest(now + max(EXHAUSTED_SECONDS, asked), "exhausted")
        elif isinstance(error, UpstreamAuthenticationError):
            self.rest(now + self._rest_of("revoked"), "revoked")
        else:
            self._limited(error, began_at, now)

    def accepted(self, began_at: float, now: float) -> None:
        """The provider served an attempt that began then."""
        if self._refusals and began_at >= self.rests_until:
            self._refusals = 0
        throttle = self._throttle
        if throttle is not None and began_at >= throttle.changed_at and throttle.recover(now):
            self._throttle = None

    def ended_unheard(self, permit: Permit) -> None:
        """The attempt is over without an answer's head; the provider may have counted it."""
        self.answered(permit)
        requests, tokens, inputs, outputs = self.unsaid
        prompt, answer = permit.prompt, permit.answer
        self.unsaid = requests + 1, tokens + prompt + answer, inputs + prompt, outputs + answer

    def answered(self, permit: Permit) -> None:
        """The provider has counted that permit's request, or never will."""
        prompt, answer = permit.prompt, permit.answer
        for meter, amount in zip(_METERS, (1, prompt + answer, prompt, answer), strict=True):
            self._unheard[meter] -= amount

    def close(self, permit: Permit, requests: int, prompt: int, answer: int) -> None:
        """A permit's end, called by the permit itself with the corrections."""
        self.outstanding -= 1
        amounts = (requests, prompt + answer, prompt, answer)
        for meter, window in self._windows:
            if amounts[meter]:
                window.add(amounts[meter], permit.at)
        if requests:  # what else was corrected the provider knows, and tells with its next answer
            self._pace_by(requests)
            for meter, mirror in self._mirrors.items():
                mirror.give_back(-amounts[meter])
        if self.line is not None:
            self.line.wake()

    def _take(self, amounts: tuple[int, int, int, int], now: float) -> None:
        self.outstanding += 1
        if self._pace is not None or self._throttle is not None:
            self._pace_by(1)
        for meter, window in self._windows:
            window.add(amounts[meter], now)
        for meter, mirror in self._mirrors.items():
            mirror.take(amounts[meter], now)
        if self.learns:
            self._measure(amounts, now)

    def _pace_by(self, starts: int) -> None:
        if self._pace is not None:
            self._pace.count(starts)
        if self._throttle is not None:
            self._throttle.count(starts)

    def _limited(self, error: OrchestratorError, began_at: float, now: float) -> None:
        hint = error.retry_after
        wait = min(hint, LONGEST_PAUSE) if hint else self._rest_of("paused")
        self.rest(now + wait)
        for mirror in self._mirrors.values():
            self.rest(min(mirror.empty_until, now + LONGEST_PAUSE))
        if not self.learns:
            return
        if self._throttle is None:
            self._throttle = Throttle(self._base(now), now)
        elif began_at >= self._throttle.lowered_at:
            self._throttle.lower(now)

    def _rest_of(self, state: KeyState) -> float:
        seconds = min(FIRST_REST * 2.0 ** min(self._refusals, 16), LONGEST_REST[state])
        self._refusals += 1
        return seconds

    def _base(self, now: float) -> float:
        """Starts per minute that the key was given when it was refused."""
        if self._per_minute is not None:
            return self._per_minute
        if (mirror := self._mirrors.get(Meter.REQUESTS)) is not None:
            return mirror.limit
        at, started = self._mark
        return (self._started - started) * SPAN_SECONDS / max(now - at, SHORTEST_MEASURE)

    def _measure(self, amounts: tuple[int, int, int, int], now: float) -> None:
        for meter in _METERS:
            self._unheard[meter] += amounts[meter]
        if now - self._mark[0] > SPAN_SECONDS:
            self._mark = (now, self._started)
        self._started += 1


def _windows(
    limits: RateLimits, before: Mapping[Meter, Window]
) -> tuple[tuple[Meter, Window], ...]:
    given = (
        (Meter.REQUESTS, limits.requests_per_minute),
        (Meter.TOKENS, limits.tokens_per_minute),
        (Meter.INPUT_TOKENS, limits.input_tokens_per_minute),
        (Meter.OUTPUT_TOKENS, limits.output_tokens_per_minute),
    )
    windows: list[tuple[Meter, Window]] = []
    for meter, limit in given:
        if limit is not None:
            known = before.get(meter) if limit >= 1 else None  # below it cells are longer
            window = Window(limit) if known is None else known
            window.limit = max(limit, 1.0)
            windows.append((meter, window))
    return tuple(windows)


def _pace(per_minute: float | None) -> Pace | None:
    return None if per_minute is None else Pace(per_minute, max(1.0, per_minute * BURST_SHARE))
