"""Which deployments have the limits of a key in common: its provider counts them together.

They come and go, with a reload: the one that takes another's place goes on with what was sent and
learned before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orchestrator.policies.limits.key import KeyLimiter
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.policies.limits.line import Line
from orchestrator.policies.limits.settings import Account, RateLimits


@dataclass(slots=True)
class _Common:
    account: Account
    limiter: KeyLimiter
    uses: list[tuple[RateLimiter, RateLimits]] = field(
        default_factory=list[tuple[RateLimiter, RateLimits]]
    )

    def changed(self) -> None:
        """Somebody came or went: the lowest limits of all who are left count."""
        self.limiter.change(lowest(limits for _, limits in self.uses))
        users = {id(user): user for user, _ in self.uses}
        if len(users) > 1 and self.limiter.line is None:
            self.limiter.line = Line()
        elif len(users) == 1:
            self.limiter.line = None
        for user in users.values():
            user.look_for_lines()


class SharedKeys:
    """The keys of a system's deployments, by the account that their provider counts by."""

    def __init__(self) -> None:
        self._known: list[_Common] = []  # an account may hold what has no hash; there are few

    def __repr__(self) -> str:
        return f"<SharedKeys of {len(self._known)} accounts>"

    def join(self, limiter: RateLimiter, uses: Sequence[tuple[Account | None, RateLimits]]) -> None:
        """A deployment comes.

        Args:
            limiter: Its own.
            uses: Of each of its keys the account, None if that isn't shared, and the limits.
        """
        for number, (account, limits) in enumerate(uses):
            if account is None:
                continue
            common = next((one for one in self._known if one.account == account), None)
            if common is None:
                common = _Common(account, limiter.keys[number])
                self._known.append(common)
            else:
                limiter.use(number, common.limiter)
            common.uses.append((limiter, limits))
            common.changed()

    def leave(self, limiter: RateLimiter) -> None:
        """A deployment has ended, and all its permits with it."""
        limiter.withdraw()
        for common in self._known:
            left = [use for use in common.uses if use[0] is not limiter]
            if left and len(left) < len(common.uses):
                common.uses = left
                common.changed()
            else:
                common.uses = left
        self._known = [common for common in self._known if common.uses]


def lowest(several: Iterable[RateLimits]) -> RateLimits:
    """The lowest of each kind; what a provider says counts if anybody wants to know it."""
    limits = list(several)

    def least(values: Iterable[float | None]) -> float | None:
        return min((value for value in values if value is not None), default=None)

    slots = [one.concurrency for one in limits if one.concurrency is not None]
    return RateLimits(
        requests_per_minute=least(one.requests_per_minute for one in limits),
        tokens_per_minute=least(one.tokens_per_minute for one in limits),
        input_tokens_per_minute=least(one.input_tokens_per_minute for one in limits),
        output_tokens_per_minute=least(one.output_tokens_per_minute for one in limits),
        concurrency=min(slots, default=None),
        learn=any(one.learn for one in limits),
    )
