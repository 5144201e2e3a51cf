"""The sections of a scenario file, one frozen model a section, in the order of the file."""

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.chaos.provider.toxics import How, Where
from orchestrator.chaos.scenario.catalogue import TARGETS, Target
from orchestrator.chaos.scenario.values import Bound, bound, per_time, point, share
from orchestrator.points import Point
from orchestrator.reading.quantities import seconds, text, whole
from orchestrator.reading.quantities import size as bytes_
from orchestrator.reading.sections import Count, Duration, NonEmpty, Section

Atleast0 = Annotated[float, seconds(0.0)]
Share = Annotated[float, share()]
Wanted = Annotated[Bound, bound()]
Timely = Annotated[Bound, bound(timed=True)]
Mode = Literal["safety", "liveness"]
ANY = "any"


class Restart(Section):
    """When a worker that died is started anew."""

    max: Count = 5
    """Deaths that are answered by a restart; one more poisons the engine."""
    per: Duration = 30.0
    """Within this time."""


class System(Section):
    """What a simulation builds, and what a live run builds if no configuration is given."""

    kind: Literal["local", "provider", "failover", "pair"] = "provider"
    """local: a model host; provider: a stub; failover: the provider, then the host; pair: two
    hosts, of two deployments."""
    slots: Annotated[int, whole(1, 64)] = 4
    queue: Count = 64
    deadline: Duration = 8.0
    stall: Duration = 1.0
    """How long a step may take without progress."""
    restart: Restart = Restart()
    permits: Annotated[int, whole(1, 1_000_000)] | None = None
    """Requests per minute; null is no limit."""
    failures: Count = 10
    """Failures in a row that open the circuit."""
    open_for: Duration = 1.0
    """How long the circuit stays open."""
    attempts: Annotated[int, whole(1, 10)] = 3


class Priorities(Section):
    """Shares of the load; they are weights, and need not add up to 1."""

    background: Share = 0.0
    normal: Share = 1.0
    high: Share = 0.0
    critical: Share = 0.0


class Load(Section):
    """Who asks for what."""

    shape: Literal["poisson", "steady"] = "poisson"
    rate: Annotated[float, per_time()] = 20.0
    for_: Annotated[Duration, Field(alias="for")] = 8.0
    """How long the load lasts, from the first fault's zero."""
    tokens: Annotated[tuple[Count, Count], Field(strict=False)] = (2, 12)
    """The shortest and the longest answer."""
    priorities: Priorities = Priorities()
    deadlines: Annotated[tuple[Duration, ...], Field(strict=False)] = ()
    """Each request draws one; none leaves it to the gateway."""


class Steady(Section):
    """What must hold before anything is injected."""

    success: Wanted = Bound(">=", 0.99, ">= 0.99")
    ttft_p95: Timely | None = None
    for_: Annotated[Duration, Field(alias="for")] = 2.0
    """How long it is watched."""


class Fault(Section):
    """One fault; exactly one of worker, provider, client and gateway says whom it meets."""

    at: Atleast0 = 0.0
    """When, from the begin of the load."""
    after_requests: Count | None = None
    """Or when so many requests have been sent."""
    at_point: Annotated[Point, point()] | None = None
    """And then when somebody in that deployment passes this point of the code."""
    nth: Count = 1
    """For so many times since."""
    worker: NonEmpty | None = None
    """The deployment, or `any`."""
    provider: NonEmpty | None = None
    client: NonEmpty | None = None
    gateway: NonEmpty | None = None
    do: NonEmpty
    """The fault's name; `orchestrator chaos list faults` has them all."""
    every: Duration | None = None
    """Again and again after so long."""
    times: Annotated[int, whole(1, 1000)] = 1
    for_: Annotated[Duration, Field(alias="for")] = 2.0
    toxicity: Share = 1.0
    """Share of the requests that it meets."""
    after_tokens: Annotated[int, whole(0, 100_000)] = 0
    how: How = "fin"
    where: Where = "before_send"
    code: Annotated[int, whole(100, 599)] = 500
    error: NonEmpty = "server_error"
    retry_after: Atleast0 | None = None
    seconds: Duration = 1.0
    jitter: Atleast0 = 0.0
    size: Annotated[int, bytes_(1, 2**30)] = 16
    duty: Share = 0.3
    interval: Duration = 0.3
    n: Annotated[int, whole(1, 100_000)] = 100
    reason: NonEmpty = "drill"

    @property
    def target(self) -> Target:
        """Whom it meets."""
        return next(target for target in TARGETS if getattr(self, target) is not None)

    @property
    def whom(self) -> str:
        """The deployment's name, or `any`."""
        return str(getattr(self, self.target))


class Expect(Section):
    """What is judged besides the invariants, if the mode is liveness."""

    done: Wanted | None = None
    """Share of the requests, cancelled ones left out, that end well, all phases together."""
    recovery: Timely | None = None
    """From the last fault's end to the first moment at which all is as before."""
    ttft_p95: Timely | None = None
    exposed: Annotated[int, whole(0, 1_000_000)] = 1
    """Requests that must have met a fault; with fewer nothing is proven."""
    met: Wanted | None = None
    """Requests that may have met a fault, where one refusal must keep others away from it."""


class Safeguards(Section):
    """When a live run is broken off, and healed."""

    max_errors: Share = 1.0
    """Share of the last 50 requests that may fail."""
    ready_false_for: Duration = 60.0
    """How long no route may be ready."""


class Scenario(Section):
    """The whole file."""

    version: Literal[1]
    name: Annotated[str, text(r"^[a-z0-9][a-z0-9-]{0,63}$", "a name of small letters, digits, -")]
    about: NonEmpty
    """One line for the list."""
    mode: Mode = "liveness"
    """safety: whatever is injected, only invariants are judged; liveness: also expectations."""
    seed: Annotated[int, whole(0, 2**31)] = 0
    system: System = System()
    load: Load = Load()
    steady: Steady
    """What must hold before anything is injected."""
    faults: Annotated[tuple[Fault, ...], Field(strict=False)] = ()
    heal: Duration = 10.0
    """How long everything may take to come back."""
    expect: Expect = Expect()
    safeguards: Safeguards = Safeguards()
