"""Permits: the right to start one attempt, within requests and tokens per minute.

Built on aiolimiter's leaky buckets, one for requests and one for tokens. Rules:

    1. Waiting happens in the engine's priority queue, never in a slot and never inside the bucket:
       the engine asks `reserve`, which takes a permit now or takes nothing, and `ready_at`, which
       says when to ask again. aiolimiter would order its own waiters by size, so that a large
       request starves behind small ones.
    2. A permit reserves an estimate of tokens; `settle` corrects it by what was really used,
       `release` gives all of it back when nothing was sent.
    3. After a 429 the key pauses until the latest time that any answer named; no single answer is
       believed beyond `LONGEST_PAUSE`, for after it the provider can say so again.
    4. A pause that is longer than anybody's patience isn't waited for: `refusal` says so at once.
    5. A request above a whole bucket can never pass; `check` refuses it at admission.

At the provider no more than burst + rate x t attempts start in any time t.
"""

from dataclasses import dataclass

from aiolimiter import AsyncLimiter

from orchestrator.errors import RequestTooLargeError, UpstreamRateLimitedError

MINUTE = 60.0
BURST_SHARE = 0.1
LONGEST_PAUSE = 3600.0
"""Seconds that one answer can pause a key for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """What the provider allows; None is no limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


class _Bucket(AsyncLimiter):
    """aiolimiter's bucket with the three steps that its queueing interface lacks.

    It uses the arithmetic of the pinned version; `tests/policies/test_rate_limit.py` fails if an
    upgrade changes it.
    """

    def take(self, amount: float) -> bool:
        """Takes the amount now, or nothing."""
        if not self.has_capacity(amount):
            return False
        self._level += amount
        return True

    def ready_in(self, amount: float) -> float:
        """Seconds until the amount could be taken, if nobody else takes any."""
        self._leak()
        return max(0.0, (self._level + amount - self.max_rate) / self._rate_per_sec)

    def correct(self, amount: float) -> None:
        """Adds what was used beyond the estimate, or gives back (negative) what wasn't.

        The level may rise above the burst: then the next ones wait until it has leaked away, but
        no longer than for a pause, whatever an answer says that it has used.
        """
        self._leak()
        most = self.max_rate + self._rate_per_sec * LONGEST_PAUSE
        self._level = min(max(0.0, self._level + amount), most)


class Permit:
    """One attempt's permit; it is settled or released exactly once, later calls do nothing."""

    __slots__ = ("_limiter", "_open", "tokens")

    def __init__(self, limiter: "RateLimiter", tokens: int) -> None:
        self._limiter = limiter
        self._open = True
        self.tokens = tokens
        """Tokens reserved."""

    def settle(self, used_tokens: int) -> None:
        """The attempt is over and the provider has seen it; corrects the estimate."""
        if self._open:
            self._open = False
            self._limiter.close(self, used_tokens - self.tokens)

    def release(self) -> None:
        """Nothing was sent: gives everything back."""
        if self._open:
            self._open = False
            self._limiter.close(self, -self.tokens, requests=-1)


class RateLimiter:
    """The permits of one key and model.

    Args:
        limits: Per minute.
    """

    def __init__(self, limits: RateLimits) -> None:
        self._requests = _bucket(limits.requests_per_minute, share=BURST_SHARE)
        # one request may need as much as a whole minute's tokens
        self._tokens = _bucket(limits.tokens_per_minute, share=1.0)
        self.paused_until = 0.0
        """Loop time, seconds, until which nothing starts; 0 if nothing is paused."""
        self.outstanding = 0
        """Permits that are neither settled nor released; 0 at rest."""

    def check(self, tokens: int) -> None:
        """Refuses what no waiting can make possible.

        Raises:
            RequestTooLargeError: The estimate is above the tokens per minute.
        """
        if self._tokens is not None and tokens > self._tokens.max_rate:
            raise RequestTooLargeError(
                f"the request needs about {tokens} tokens, more than the "
                f"{self._tokens.max_rate:g} per minute of its deployment; lower max_tokens",
                param="max_tokens",
            )

    def reserve(self, tokens: int, now: float) -> Permit | None:
        """Takes a permit for one attempt now, or takes nothing and returns None.

        Args:
            tokens: The estimate; corrected when the permit is settled.
            now: Loop time, seconds.
        """
        if now < self.paused_until:
            return None
        if self._requests is not None and not self._requests.has_capacity(1):
            return None
        if self._tokens is not None and not self._tokens.take(tokens):
            return None
        if self._requests is not None:
            self._requests.take(1)
        self.outstanding += 1
        return Permit(self, tokens)

    def ready_at(self, tokens: int, now: float) -> float:
        """Loop time, seconds, at which `reserve` could succeed if nothing else changes."""
        wait = 0.0
        if self._requests is not None:
            wait = self._requests.ready_in(1)
        if self._tokens is not None:
            wait = max(wait, self._tokens.ready_in(tokens))
        return max(self.paused_until, now + wait)

    def pause(self, until: float) -> None:
        """Starts nothing until then; of several times the latest counts (loop time, seconds)."""
        self.paused_until = max(self.paused_until, until)

    def heed(self, retry_after: float, now: float) -> None:
        """Pauses for as long as an answer asked for, within reason.

        Args:
            retry_after: Seconds, as the provider said them.
            now: Loop time, seconds.
        """
        self.pause(now + min(retry_after, LONGEST_PAUSE))

    def paused_for(self, now: float) -> float:
        """Seconds until the pause ends; 0 if nothing is paused."""
        return max(0.0, self.paused_until - now)

    def refusal(self, patience: float, now: float) -> UpstreamRateLimitedError | None:
        """Looks without taking anything: an error if the key pauses longer than that, or None.

        Args:
            patience: Seconds that the request can wait for the end of a pause.
            now: Loop time, seconds.
        """
        wait = self.paused_for(now)
        if wait <= 0 or wait < patience:
            return None
        return UpstreamRateLimitedError(
            f"the provider asked for a pause; it ends in {wait:.0f} s", retry_after=wait
        )

    def close(self, _permit: Permit, tokens: int, *, requests: int = 0) -> None:
        """A permit's end, called by the permit itself with the corrections."""
        self.outstanding -= 1
        if self._tokens is not None:
            self._tokens.correct(tokens)
        if self._requests is not None and requests:
            self._requests.correct(requests)


def _bucket(per_minute: float | None, *, share: float) -> _Bucket | None:
    if per_minute is None:
        return None
    burst = max(1.0, per_minute * share)
    return _Bucket(burst, burst * MINUTE / per_minute)
