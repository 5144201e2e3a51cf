"""Reads what a provider says of its limits in an answer's headers.

Two families: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` (OpenAI, Azure, Groq and most
that speak its API), where a reset is a length of time such as `1m3.5s`, `120ms` or `6`; and
`anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}`, where it
is a point in time (RFC 3339). Foreign numbers are believed as far as they make sense and left out
otherwise: what isn't told bounds nothing.
"""

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from orchestrator.runners.classify import utc_now
from orchestrator.standing import Allowance, Meter, Standing

OPENAI = b"x-ratelimit-"
ANTHROPIC = b"anthropic-ratelimit-"
MAX_AMOUNT = 1e12
MAX_TEXT = 64

_METERS = {
    "requests": Meter.REQUESTS,
    "tokens": Meter.TOKENS,
    "input-tokens": Meter.INPUT_TOKENS,
    "output-tokens": Meter.OUTPUT_TOKENS,
}
_LENGTH = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII
)
_UNITS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)


def standing_of(
    headers: Iterable[tuple[bytes, bytes]], now: Callable[[], float] = utc_now
) -> Standing | None:
    """Returns what the headers tell of the key's limits; None if they tell nothing.

    Args:
        headers: As they came, in any case.
        now: Seconds since 1970, asked only for a point in time in an answer without `Date`.
    """
    told: dict[tuple[Meter, str], str] = {}
    date = b""
    for raw, value in headers:
        name = raw.lower()
        if name == b"date":
            date = value
        elif name.startswith(OPENAI):
            part, _, meter = name[len(OPENAI) :].decode("latin-1").partition("-")
            if meter in _METERS:
                told[_METERS[meter], part] = value[:MAX_TEXT].decode("latin-1").strip()
        elif name.startswith(ANTHROPIC):
            meter, _, part = name[len(ANTHROPIC) :].decode("latin-1").rpartition("-")
            if meter in _METERS:
                told[_METERS[meter], part] = value[:MAX_TEXT].decode("latin-1").strip()
    if not told:
        return None

    def until(text: str) -> float | None:
        return seconds_until(text, date.decode("latin-1"), now)

    allowances = [_allowance(told, meter, until) for meter in Meter]
    if allowances.count(None) == len(allowances):
        return None
    requests, tokens, inputs, outputs = allowances
    return requests, tokens, inputs, outputs


def _allowance(
    told: dict[tuple[Meter, str], str], meter: Meter, until: Callable[[str], float | None]
) -> Allowance | None:
    remaining = _amount(told.get((meter, "remaining"), ""))
    if remaining is None:
        return None
    return Allowance(
        remaining=remaining,
        limit=_amount(told.get((meter, "limit"), "")),
        reset_after=until(told.get((meter, "reset"), "")),
    )


def _amount(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if 0 <= amount <= MAX_AMOUNT else None  # never true of nan


def length_of(text: str) -> float | None:
    """Reads a length of time such as `1m3.5s`, `120ms` or `6`, which are seconds."""
    found = _LENGTH.fullmatch(text)
    if text and found is not None:
        parts = zip(found.groups(), _UNITS, strict=True)
        return sum(float(number) * unit for number, unit in parts if number is not None)
    seconds = _amount(text)
    return None if seconds is None or not math.isfinite(seconds) else seconds


def seconds_until(text: str, date: str, now: Callable[[], float]) -> float | None:
    """Reads a length of time, or a point in time by the answer's own clock.

    Args:
        text: The header.
        date: The answer's `Date`, so that a wrong clock here doesn't matter; may be empty.
        now: Seconds since 1970, asked if there is no `Date`.
    """
    length = length_of(text)
    if length is not None or "T" not in text:
        return length
    try:
        point = datetime.fromisoformat(text)
    except ValueError:
        return None
    if point.tzinfo is None:
        point = point.replace(tzinfo=UTC)
    try:
        today = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        today = now()
    return max(0.0, point.timestamp() - today)
