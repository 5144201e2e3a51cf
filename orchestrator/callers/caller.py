"""One caller while the gateway runs: what it may ask for, and what of it runs right now."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from orchestrator.errors import CallerLimitedError, PermissionDeniedError
from orchestrator.events import Finished
from orchestrator.policies.limits.key import Permit
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.request import Priority, PriorityRequest

BUSY_RETRY_AFTER = 1.0
"""Seconds after which one of the caller's own requests may have ended."""


@dataclass(slots=True, eq=False)
class Tally:
    """What of a caller's runs; shared by all that is known of the same caller."""

    running: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Caller:
    """Whose request it is; of one key, or of a token's subject."""

    name: str
    """Empty for anybody who shows no key."""
    routes: Collection[str] | None = None
    """Models that may be asked for; None is all."""
    priority: Priority = Priority.CRITICAL
    """The highest priority."""
    max_concurrent: int | None = None
    limiter: RateLimiter | None = None
    admin: bool = False
    tally: Tally = field(default_factory=Tally)

    @property
    def running(self) -> int:
        """Requests whose answers are being made."""
        return self.tally.running

    def may_use(self, route: str) -> bool:
        """Whether that model may be asked for."""
        return self.routes is None or route in self.routes

    def check(self, route: str) -> None:
        """Refuses a model that isn't allowed, without telling whether there is one of that name.

        Raises:
            PermissionDeniedError: It isn't one of this caller's.
        """
        if not self.may_use(route):
            raise PermissionDeniedError("this key may not use that model", param="model")

    def admit(self, request: PriorityRequest, now: float) -> None:
        """Makes the request this caller's, within what it may.

        Args:
            request: As it was read, not submitted yet.
            now: Loop time, seconds.

        Raises:
            PermissionDeniedError: The model isn't one of this caller's.
            CallerLimitedError: Too many requests run, or started within the minute.
            RequestTooLargeError: The request alone is more than a minute's tokens.
        """
        self.check(request.model)
        if self.max_concurrent is not None and self.running >= self.max_concurrent:
            raise CallerLimitedError(
                f"{self.running} requests {'of this key' if self.name else 'without a key'} are"
                " running, which is all that may",
                retry_after=BUSY_RETRY_AFTER,
            )
        permit = None if self.limiter is None else _permit(self.limiter, request, now)
        request.caller = self.name
        if request.priority_named or request.priority is not Priority.NORMAL:
            request.priority = min(request.priority, self.priority)
        elif self.name:  # anybody has no priority of its own
            request.priority = self.priority
        if permit is not None or self.max_concurrent is not None:
            self.tally.running += 1
            request.channel.watch(self._leaving(request, permit))

    def _leaving(self, request: PriorityRequest, permit: Permit | None) -> Callable[[], None]:
        def leave() -> None:
            channel = request.made_on or request.channel
            if channel.ending is None:  # who has left still costs what is made for it
                channel.watch(leave)
                return
            self.tally.running -= 1
            if permit is None:
                return
            ending = channel.ending
            usage = ending.usage if isinstance(ending, Finished) else None
            if usage is None:
                permit.spend()
            else:
                permit.settle(usage.prompt_tokens, usage.completion_tokens)

        return leave


def limiter_of(
    requests_per_minute: int | None, tokens_per_minute: int | None
) -> RateLimiter | None:
    """Makes what counts a caller's requests and tokens; None if nothing is limited."""
    if requests_per_minute is None and tokens_per_minute is None:
        return None
    return RateLimiter(
        RateLimits(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
    )


def _permit(limiter: RateLimiter, request: PriorityRequest, now: float) -> Permit:
    prompt, answer = request.estimated_prompt_tokens, request.estimated_answer_tokens
    limiter.check(prompt, answer)
    permit = limiter.reserve(prompt, answer, now)
    if permit is None:
        raise CallerLimitedError(
            "this key's requests or tokens of the minute are used up",
            retry_after=max(0.0, limiter.ready_at(prompt, answer, now) - now),
        )
    return permit
