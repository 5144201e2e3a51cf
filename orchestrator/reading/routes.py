"""The sections of the YAML below `routes`."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self, cast

from pydantic import Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.reading.quantities import Value, not_allowed, seconds, text, whole, wrong
from orchestrator.reading.sections import Section
from orchestrator.reading.text import list_of

Name = Annotated[
    str,
    text(
        r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$",
        "a name of up to 128 letters, digits and . _ : / @ + - (a letter or digit first)",
    ),
]
MOST_HEDGES = 0.5
_WORDS = ("next", "never", "larger")


def _action(*, larger: bool) -> Value:
    """`next`, `never` or a list of deployments; for a context that was too long also `larger`."""
    words = _WORDS if larger else _WORDS[:2]
    allowed = f"{', '.join(words)} or a list of deployments"

    def read(value: object, _: object) -> str | tuple[str, ...]:
        if isinstance(value, str) and value in words:
            return value
        names = list_of(value)
        if names and all(isinstance(name, str) for name in names):
            return tuple(map(str, names))
        raise not_allowed(allowed)

    listed = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    return Value(read, {"anyOf": [{"enum": list(words)}, listed]})


Action = Annotated[str | tuple[str, ...], _action(larger=False)]
ContextAction = Annotated[str | tuple[str, ...], _action(larger=True)]


class Failover(Section):
    """What follows when a deployment can't serve a request of which nothing was delivered."""

    context_length: ContextAction | None = None
    """The context is too long; larger is a deployment with a greater `context`, and the default."""
    content_filter: Action | None = None
    """The provider's filter refused; never by default."""
    invalid_request: Action | None = None
    """The provider refused the request itself; never by default."""
    queue_full: Action | None = None
    """No room in the queue; next by default."""
    rate_limit: Action | None = None
    """429, after the retries; next by default."""
    quota: Action | None = None
    """The account is used up; next by default, at once."""
    authentication: Action | None = None
    """The key, or the right to the model, was refused; next by default, at once."""
    timeout: Action | None = None
    """A step made no progress in time; next by default, at once."""
    upstream: Action | None = None
    """Any other fault of the provider, after the retries; next by default."""
    worker: Action | None = None
    """The worker or its model host was lost, after the retries; next by default."""
    unhealthy: Action | None = None
    """The breaker is open, or the engine down; next by default, at once."""


def _delay() -> Value:
    """A percentile (`p95`), or a duration, kept as seconds."""
    duration = seconds()

    def read(value: object, info: ValidationInfo) -> str | float:
        if isinstance(value, str) and re.fullmatch("p[1-9][0-9]", value, re.ASCII):
            return value
        try:
            return cast("float", duration.read(value, info))
        except PydanticCustomError as error:
            allowed = "a percentile from p10 to p99 or a duration with its unit (ms, s, m, h)"
            hint = (error.context or {}).get("hint", "")
            raise not_allowed(allowed, str(hint)) from None

    patterns = [{"type": "string", "pattern": "^p[1-9][0-9]$"}, duration.schema]
    return Value(read, {"anyOf": patterns})


def _percent() -> Value:
    """A share in percent (`5%`), kept as a number from 0 to 1."""
    pattern = r"^[0-9]{1,2}(\.[0-9])?%$"

    def read(value: object, _: object) -> float:
        if isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII):
            share = float(value.removesuffix("%")) / 100
            if 0 < share <= MOST_HEDGES:
                return share
        raise not_allowed("a share from 0.1% to 50%")

    return Value(read, {"type": "string", "pattern": pattern})


class Hedge(Section):
    """A second deployment is asked when the first one is slow; the first token wins."""

    after: Annotated[str | float, _delay()] = "p95"
    """How long the first one may take: a percentile of this route's first tokens, or a time."""
    budget: Annotated[float, _percent()] = 0.05
    """Second attempts per request, on the average."""


class Route(Section):
    """A model name that callers use."""

    deployments: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Deployments that serve it, the preferred one first; the next takes over when one fails."""
    strategy: Literal["failover", "weighted", "least_busy", "latency"] = "failover"
    """Which of the healthy ones serves: failover takes them in their order, weighted by chance,
    least_busy by requests per slot, latency by the time to the first token (best of two)."""
    weights: Annotated[
        Mapping[Name, Annotated[int, whole(0, 1_000_000)]],
        Field(json_schema_extra={"additionalProperties": False}),
    ] = Field(default={})
    """For weighted: each deployment's share, 1 where none is given, 0 for failover only."""
    max_attempts: Annotated[int, whole(1, 100)] | None = None
    """Attempts of one request at all deployments together; null is the first one's
    `retry.max_attempts` and one more for each further deployment."""
    hedge: Hedge | None = None
    """Asks a second deployment when the first one is slow; null never does."""
    midstream: Literal["resume", "continue", "error"] = "resume"
    """What follows a break after the caller has read something: resume goes on exactly where a
    runner can, continue also as a text at a deployment with prefill, error always ends it."""
    failover: Failover = Failover()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.weights and self.strategy != "weighted":
            raise wrong(f"weights count for strategy: weighted, and not for {self.strategy}")
        if self.strategy == "weighted" and not any(
            self.weights.get(name, 1) for name in self.deployments
        ):
            raise wrong("every one of the weights is 0")
        if self.hedge is not None and len(self.deployments) == 1:
            raise wrong("hedge needs a second deployment, and there is one")
        return self
