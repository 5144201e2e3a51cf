"""The permits of one deployment: which of its keys the next attempt goes out with, and when.

Waiting happens in the engine's priority queue: the engine asks `reserve`, which takes a permit now
or takes nothing, and `ready_at`, which says when to ask again. Only the head of the queue is asked
for, so no large request starves behind small ones. Keys are taken in turn; one that rests, has no
room or is too small for the request is passed over, and the others serve on. Where deployments have
a key in common they stand in its line (`line.py`).
"""

import math
from collections.abc import Callable, Sequence

from orchestrator.errors import (
    OrchestratorError,
    UpstreamAuthenticationError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
)
from orchestrator.policies.limits.key import LONGEST_PAUSE, KeyLimiter, KeyState, Permit
from orchestrator.policies.limits.line import Line
from orchestrator.policies.limits.settings import RateLimits

STATE_LEVELS: dict[KeyState, float] = {
    "ready": 0.0,
    "paused": 1.0,
    "exhausted": 2.0,
    "revoked": 3.0,
}


class RateLimiter:
    """The permits of one deployment, over all its keys.

    Args:
        limits: Of each key.
        keys: The limits of each key, where there are several or they differ.
    """

    def __init__(self, limits: RateLimits, keys: Sequence[RateLimits] = ()) -> None:
        self.keys: Sequence[KeyLimiter] = [KeyLimiter(own) for own in keys or (limits,)]
        """The keys, in their order."""
        self._lines: Sequence[Line] = ()
        self.shares = False
        """Whether another deployment may stand in its way."""
        self.level = 0
        """Of the request for which it is asked next, by its class and what waiting has added;
        written by whoever asks, where others may stand in its way."""
        self.on_turn: Callable[[], None] = _nobody_waits
        """Called when it may be its turn at a key that it shares."""
        self._out = 0
        self.learns = False
        """Whether anybody wants to know what the provider says of its limits."""
        self.look_for_lines()
        self._next = 0

    def __repr__(self) -> str:
        return f"<RateLimiter of {len(self.keys)} keys, {self.outstanding} permits out>"

    def use(self, number: int, key: KeyLimiter) -> None:
        """Another deployment has that key, too: its limiter is this one's (number from 0)."""
        self.keys = [key if place == number else own for place, own in enumerate(self.keys)]

    def look_for_lines(self) -> None:
        """Who has its keys in common has changed."""
        waited = self.shares
        self._lines = [key.line for key in self.keys if key.line is not None]
        self.shares = bool(self._lines)
        self.learns = any(key.learns for key in self.keys)
        if waited:
            self.on_turn()

    @property
    def outstanding(self) -> int:
        """Permits that haven't ended; 0 at rest."""
        return self._out if self.shares else sum(key.outstanding for key in self.keys)

    def check(self, prompt: int, answer: int) -> None:
        """Refuses what no waiting can make possible.

        Args:
            prompt: Tokens of the prompt, estimated.
            answer: Tokens of the longest answer.

        Raises:
            RequestTooLargeError: The request is above a limit of every key.
        """
        refusal: OrchestratorError | None = None
        for key in self.keys:
            refusal = key.too_large(prompt, answer)
            if refusal is None:
                return
        if refusal is not None:
            raise refusal

    def reserve(self, prompt: int, answer: int, now: float) -> Permit | None:
        """Takes a permit for one attempt now, or takes nothing and returns None.

        Args:
            prompt: Tokens of the prompt, estimated.
            answer: Tokens of the longest answer.
            now: Loop time, seconds.
        """
        if len(self.keys) == 1 and not self.shares:
            return self.keys[0].reserve(prompt, answer, now)
        for _ in self.keys:
            number = self._next
            key = self.keys[number]
            self._next = (number + 1) % len(self.keys)
            if key.line is not None and not key.line.lets(self, self.level):
                continue
            permit = key.reserve(prompt, answer, now)
            if permit is not None:
                permit.key = number
                if self.shares:
                    self._has_taken(permit)
                return permit
        if self.shares:
            self._stand(prompt, answer)
        return None

    def withdraw(self) -> None:
        """Nobody waits here for a permit: others needn't wait behind."""
        for line in self._lines:
            line.leave(self)

    def ready_at(self, prompt: int, answer: int, now: float) -> float:
        """Loop time, seconds, at which `reserve` could succeed if nothing else changes.

        Infinite if only the end of an attempt can change it.
        """
        return min(
            key.ready_at(prompt, answer, now)
            if key.line is None or key.line.lets(self, self.level)
            else math.inf
            for key in self.keys
        )

    def _stand(self, prompt: int, answer: int) -> None:
        for key in self.keys:
            if key.line is None:
                continue
            if key.too_large(prompt, answer) is None:
                key.line.join(self, self.on_turn, self.level)
            else:  # others needn't wait behind what this key can never serve
                key.line.leave(self)

    def _has_taken(self, permit: Permit) -> None:
        self._out += 1
        permit.on_end = self._has_ended
        self.withdraw()

    def _has_ended(self) -> None:
        self._out -= 1

    def pause(self, until: float) -> None:
        """Starts nothing until then, with any key (loop time, seconds)."""
        for key in self.keys:
            key.rest(until)

    def heed(self, retry_after: float, now: float) -> None:
        """Pauses for as long as an answer asked for, within reason.

        Args:
            retry_after: Seconds, as the provider said them.
            now: Loop time, seconds.
        """
        self.pause(now + min(retry_after, LONGEST_PAUSE))

    @property
    def paused_until(self) -> float:
        """Loop time, seconds, until which nothing starts with any key."""
        if len(self.keys) == 1:
            return self.keys[0].rests_until
        return min(key.rests_until for key in self.keys)

    def paused_for(self, now: float) -> float:
        """Seconds until the first key may be used; 0 if one may be now."""
        return max(0.0, self.paused_until - now)

    def refusal(self, patience: float, now: float) -> OrchestratorError | None:
        """Looks without taking anything: an error if every key rests longer than that, or None.

        Args:
            patience: Seconds that the request can wait.
            now: Loop time, seconds.
        """
        wait = self.paused_for(now)
        if wait <= 0 or wait < patience:
            return None
        state: KeyState = min(self.keys, key=lambda key: key.rests_until).state
        match state:
            case "exhausted":
                return UpstreamQuotaExceededError(
                    f"the provider said that the account is out of credit; it is asked again in "
                    f"{wait:.0f} s",
                    retry_after=wait,
                )
            case "revoked":
                return UpstreamAuthenticationError(
                    f"the provider refused the key; it is asked again in {wait:.0f} s",
                    retry_after=wait,
                )
            case _:
                return UpstreamRateLimitedError(
                    f"the provider asked for a pause; it ends in {wait:.0f} s", retry_after=wait
                )

    def state(self, number: int, now: float) -> KeyState:
        """How a key stands (number from 0, loop time in seconds)."""
        key = self.keys[number]
        return key.state if now < key.rests_until else "ready"

    def describe(self, now: float) -> str | None:
        """What keeps some of several keys, or the only one, from being used; None if nothing."""
        resting: list[tuple[int, KeyState, float]] = [
            (number, key.state, key.rests_until - now)
            for number, key in enumerate(self.keys, 1)
            if now < key.rests_until
        ]
        if not resting:
            return None
        if len(self.keys) == 1:
            _, state, wait = resting[0]
            return f"{_TEXTS[state]} for {wait:.0f} s more"
        return "; ".join(
            f"key {number} of {len(self.keys)} is {state} for {wait:.0f} s more"
            for number, state, wait in resting
        )

    def may_start(self, now: float) -> bool:
        """Whether some key doesn't rest."""
        return any(now >= key.rests_until for key in self.keys)


def _nobody_waits() -> None:
    pass


_TEXTS: dict[KeyState, str] = {
    "ready": "ready",
    "paused": "paused by the provider's rate limit",
    "exhausted": "out of credit at the provider, which is not asked",
    "revoked": "refused by the provider as its key is, which is not used",
}
