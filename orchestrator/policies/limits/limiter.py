"""The permits of one deployment: which of its keys the next attempt goes out with, and when.

Waiting happens in the engine's priority queue: the engine asks `reserve`, which takes a permit now
or takes nothing, and `ready_at`, which says when to ask again. Only the head of the queue is asked
for, so no large request starves behind small ones. Keys are taken in turn; one that rests, has no
room or is too small for the request is passed over, and the others serve on.
"""

from collections.abc import Sequence

from orchestrator.errors import (
    OrchestratorError,
    UpstreamAuthenticationError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
)
from orchestrator.policies.limits.key import LONGEST_PAUSE, KeyLimiter, KeyState, Permit
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
        each = keys or (limits,)
        self.keys = tuple(KeyLimiter(own, number) for number, own in enumerate(each))
        """The keys, in their order."""
        self.learns = any(key.learns for key in self.keys)
        """Whether anybody wants to know what the provider says of its limits."""
        self._next = 0

    def __repr__(self) -> str:
        return f"<RateLimiter of {len(self.keys)} keys, {self.outstanding} permits out>"

    @property
    def outstanding(self) -> int:
        """Permits that haven't ended; 0 at rest."""
        return sum(key.outstanding for key in self.keys)

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
        if len(self.keys) == 1:
            return self.keys[0].reserve(prompt, answer, now)
        for _ in self.keys:
            key = self.keys[self._next]
            self._next = (self._next + 1) % len(self.keys)
            permit = key.reserve(prompt, answer, now)
            if permit is not None:
                return permit
        return None

    def ready_at(self, prompt: int, answer: int, now: float) -> float:
        """Loop time, seconds, at which `reserve` could succeed if nothing else changes.

        Infinite if only the end of an attempt can change it.
        """
        return min(key.ready_at(prompt, answer, now) for key in self.keys)

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
            (key.number + 1, key.state, key.rests_until - now)
            for key in self.keys
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


_TEXTS: dict[KeyState, str] = {
    "ready": "ready",
    "paused": "paused by the provider's rate limit",
    "exhausted": "out of credit at the provider, which is not asked",
    "revoked": "refused by the provider as its key is, which is not used",
}
