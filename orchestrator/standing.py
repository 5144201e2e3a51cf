"""What a provider says of a key's limits in the head of an answer."""

from dataclasses import dataclass
from enum import IntEnum


class Meter(IntEnum):
    """What is counted; the numbers are places in a `Standing`."""

    REQUESTS = 0
    TOKENS = 1
    """Prompts and answers together."""
    INPUT_TOKENS = 2
    OUTPUT_TOKENS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What is left of one limit."""

    remaining: float
    limit: float | None = None
    """What is left when nothing was used; None if it wasn't told."""
    reset_after: float | None = None
    """Seconds until all of it is there again; None if it wasn't told."""


Standing = tuple[Allowance | None, Allowance | None, Allowance | None, Allowance | None]
"""One allowance a meter, in their order; None for what wasn't told."""
