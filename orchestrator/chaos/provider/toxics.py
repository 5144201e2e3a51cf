"""What a provider does wrong: each is put on, strikes the requests that it meets, and is taken off.

The names are those of the catalogue. A toxic that is taken off lets go of the streams that it
holds; what it cut stays cut.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class Harm(StrEnum):
    """What is done to an answer."""

    REFUSED = "refused"
    STATUS = "status"
    LATENCY = "latency"
    HEADER_THEN_HANG = "header_then_hang"
    COMMENTS_ONLY = "comments_only"
    REPLY_LOST = "reply_lost"
    STALL = "stall"
    CUT = "cut"
    DUP_TOKENS = "dup_tokens"
    ERROR_EVENT = "error_event"
    BAD_JSON = "bad_json"
    HUGE_EVENT = "huge_event"
    SLICER = "slicer"
    BANDWIDTH = "bandwidth"


How = Literal["fin", "rst", "mid_event", "mid_utf8", "clean_no_done"]
Where = Literal["before_send", "after_send"]
CUTS: tuple[How, ...] = ("fin", "rst", "mid_event", "mid_utf8", "clean_no_done")
BEFORE_THE_ANSWER = frozenset(
    {
        Harm.REFUSED,
        Harm.STATUS,
        Harm.LATENCY,
        Harm.HEADER_THEN_HANG,
        Harm.COMMENTS_ONLY,
        Harm.REPLY_LOST,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toxic:
    """One fault of a provider."""

    harm: Harm
    toxicity: float = 1.0
    """Share of the requests that it meets, 0 to 1."""
    after_tokens: int = 0
    """Events that pass before it strikes, for what strikes in mid-stream."""
    how: How = "fin"
    """How a cut is made."""
    where: Where = "before_send"
    """Whether what strikes before the answer lets the request through to the provider first."""
    code: int = 500
    """HTTP status."""
    error: str = "chaos"
    """The error's code in the body of a refusal."""
    retry_after: float | None = None
    """Seconds, sent as a header."""
    seconds: float = 0.0
    """Of latency."""
    jitter: float = 0.0
    """Seconds by which latency may be longer."""
    size: int = 16
    """Bytes of a slice, or a second, or of a huge event."""


@dataclass(slots=True, eq=False)
class Active:
    """A toxic that is on."""

    toxic: Toxic
    number: int
    landed: int = 0
    """Requests that it struck."""
    off: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is taken off."""


Landed = Callable[[Active, str | None], None]
"""(the toxic, the request if it is known): told at every strike."""


class Toxics:
    """All toxics of one provider.

    Args:
        chance: Decides whom a toxic with a toxicity below 1 meets.
        on_landed: Told at every strike.
    """

    def __init__(self, chance: random.Random, on_landed: Landed | None = None) -> None:
        self._chance = chance
        self.on_landed = on_landed
        self._active: dict[int, Active] = {}
        self._next = 1

    def __repr__(self) -> str:
        return f"<Toxics {[str(active.toxic.harm) for active in self._active.values()]}>"

    @property
    def active(self) -> list[Active]:
        """Those that are on, oldest first."""
        return list(self._active.values())

    def put_on(self, toxic: Toxic) -> Active:
        """Lets a toxic strike from now on."""
        active = Active(toxic, self._next)
        self._next += 1
        self._active[active.number] = active
        return active

    def take_off(self, number: int) -> None:
        """Ends a toxic; streams that it holds go on."""
        active = self._active.pop(number, None)
        if active is not None:
            active.off.set()

    def reset(self) -> None:
        """Ends all of them."""
        for number in tuple(self._active):
            self.take_off(number)

    def meets(self, wanted: Callable[[Toxic], bool]) -> Active | None:
        """The toxic that the request in hand meets: the first one on whose share it falls.

        Args:
            wanted: Which kinds are looked for.
        """
        for active in self._active.values():
            if wanted(active.toxic) and self._chance.random() < active.toxic.toxicity:
                return active
        return None

    def strike(self, active: Active, request: str | None) -> None:
        """Counts a strike and tells of it."""
        active.landed += 1
        if self.on_landed is not None:
            self.on_landed(active, request)

    def delay(self, toxic: Toxic) -> float:
        """Seconds of a latency, its jitter drawn."""
        return toxic.seconds + self._chance.uniform(0.0, toxic.jitter)
