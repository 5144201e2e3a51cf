"""A provider's own limit on one key, as it keeps it and as it tells of it.

It is a bucket that fills again evenly, as large providers keep theirs. What it says goes out as
headers and comes in through the same readers as those of a real answer. A provider that lies keeps
its true limit all the same.
"""

import math
from datetime import UTC, datetime
from email.utils import format_datetime

from orchestrator.chaos.simulation.plan import Hint, Quota, Telling
from orchestrator.chaos.simulation.world import EPOCH
from orchestrator.policies.limits.window import SPAN_SECONDS
from orchestrator.runners.classify import retry_after
from orchestrator.runners.remote.allowances import standing_of
from orchestrator.standing import Standing

TRUE_TELLINGS: tuple[Telling, ...] = ("openai", "anthropic")
EXAGGERATED = 10.0
LIE_SECONDS = 20.0


class Bucket:
    """One key's limit at its provider.

    Args:
        quota: What is allowed.
    """

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._level = quota.per_minute
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<Bucket, {self._level:g} of {self._quota.per_minute:g} left>"

    def take(self, now: float) -> bool:
        """A request comes; False if nothing is left for it (seconds of the run)."""
        self._fill(now)
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is something left for one more."""
        self._fill(now)
        return max(0.0, 1.0 - self._level) * SPAN_SECONDS / self._quota.per_minute

    def standing(self, telling: Telling, now: float) -> Standing | None:
        """What an answer's headers say now."""
        self._fill(now)
        limit, left = self._quota.per_minute, math.floor(self._level)
        reset = (limit - self._level) * SPAN_SECONDS / limit
        match telling:
            case "nothing":
                return None
            case "more":
                limit, left, reset = EXAGGERATED * limit, math.floor(EXAGGERATED * limit), 0.0
            case "less":
                left, reset = 0, LIE_SECONDS
            case _:
                pass
        if telling == "anthropic":
            name = "anthropic-ratelimit-requests-"
            told = {
                f"{name}limit": f"{limit:g}",
                f"{name}remaining": str(left),
                f"{name}reset": _date(now + reset).isoformat(),
                "date": format_datetime(_date(now), usegmt=True),
            }
        else:
            told = {
                "x-ratelimit-limit-requests": f"{limit:g}",
                "x-ratelimit-remaining-requests": str(left),
                "x-ratelimit-reset-requests": f"{math.ceil(reset * 1000)}ms",
            }
        return standing_of((name.encode(), text.encode()) for name, text in told.items())

    def _fill(self, now: float) -> None:
        filled = self._quota.per_minute * (now - self._at) / SPAN_SECONDS
        self._level = min(self._quota.per_minute, self._level + filled)
        self._at = now


def highest_told(quota: Quota) -> float:
    """The highest limit per minute that its provider may ever tell; 0 if it tells none."""
    match quota.telling:
        case "nothing":
            return 0.0
        case "more":
            return EXAGGERATED * quota.per_minute
        case _:
            return quota.per_minute


def hinted(form: Hint, seconds: float, now: float) -> float | None:
    """The seconds that are understood of a hint in that form; None if none are."""
    match form:
        case "none":
            return None
        case "fraction":
            told = {"retry-after": f"{math.ceil(seconds * 10) / 10:.1f}"}
        case "milliseconds":
            told = {"retry-after-ms": str(math.ceil(seconds * 1000))}
        case "date" | "past":
            date = _date(math.ceil(now + seconds) if form == "date" else now - 1.0)
            told = {
                "retry-after": format_datetime(date, usegmt=True),
                "date": format_datetime(_date(now), usegmt=True),
            }
        case _:
            told = {"retry-after": str(math.ceil(seconds))}
    return retry_after(told)


def _date(at: float) -> datetime:
    return datetime.fromtimestamp(EPOCH + at, UTC)
