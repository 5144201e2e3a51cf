"""What may be sent with one key, as it is configured."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Account:
    """What a provider counts by: deployments whose accounts are equal have one limit."""

    endpoint: str
    model: str
    key: object = field(repr=False)
    """Where it comes from; equal for equal keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """What the provider allows a key; None is no limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Prompts and answers together."""
    input_tokens_per_minute: float | None = None
    output_tokens_per_minute: float | None = None
    concurrency: int | None = None
    """Attempts at the same time."""
    learn: bool = False
    """Whether what the provider says in its headers counts too, and its 429 lowers the rate."""
