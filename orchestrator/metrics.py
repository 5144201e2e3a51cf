"""Every metric, declared in one place; Prometheus' names and units.

A deployment's meters are bound to their labels once, so that counting costs no look-up. Gauges are
read when they are scraped and cost nothing in between.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY = CollectorRegistry()

TIME_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

REQUESTS = Counter(
    "orchestrator_requests",
    "Requests that ended, by route and outcome (`finished` or an error code).",
    ["route", "outcome"],
    registry=REGISTRY,
)
TOKENS = Counter(
    "orchestrator_tokens",
    "Tokens of finished requests, by route and kind (`prompt`, `completion`).",
    ["route", "kind"],
    registry=REGISTRY,
)
REQUEST_SECONDS = Histogram(
    "orchestrator_request_seconds",
    "Seconds from acceptance to the ending.",
    ["route"],
    buckets=TIME_BUCKETS,
    registry=REGISTRY,
)
FIRST_TOKEN_SECONDS = Histogram(
    "orchestrator_first_token_seconds",
    "Seconds from acceptance to the first token.",
    ["route"],
    buckets=TIME_BUCKETS,
    registry=REGISTRY,
)
QUEUE_SECONDS = Histogram(
    "orchestrator_queue_seconds",
    "Seconds that an attempt waited in the queue, permits and backoff included.",
    ["deployment"],
    buckets=TIME_BUCKETS,
    registry=REGISTRY,
)
ATTEMPTS = Counter(
    "orchestrator_attempts",
    "Attempts that ended, by outcome.",
    ["deployment", "outcome"],
    registry=REGISTRY,
)
FAULTS = Counter(
    "orchestrator_faults",
    "Faults of workers and engines, by scope and class of the root cause.",
    ["deployment", "scope", "cause"],
    registry=REGISTRY,
)
RESTARTS = Counter(
    "orchestrator_slot_restarts",
    "Slots that were started anew after a death.",
    ["deployment"],
    registry=REGISTRY,
)
SHED = Counter(
    "orchestrator_shed",
    "Requests that gave their place in a full queue up, by their priority.",
    ["deployment", "priority"],
    registry=REGISTRY,
)
STALE = Counter(
    "orchestrator_stale_messages",
    "Messages with an old generation, worker or epoch, which changed nothing.",
    ["deployment"],
    registry=REGISTRY,
)
LATE = Counter(
    "orchestrator_late_events",
    "Chunks and endings that came after a request's ending or from a replaced attempt.",
    registry=REGISTRY,
)
ESTIMATED_USAGES = Counter(
    "orchestrator_estimated_usages",
    "Answers whose tokens were counted here, for their provider told none.",
    ["deployment"],
    registry=REGISTRY,
)
UNMARKED_ENDS = Counter(
    "orchestrator_unmarked_ends",
    "Answers of a provider that were complete but lacked its end marker.",
    ["deployment"],
    registry=REGISTRY,
)
COST = Counter(
    "orchestrator_cost_usd",
    "What ended requests cost their callers, in USD; those without a known price are in no sum.",
    ["route", "deployment"],
    registry=REGISTRY,
)
UNBILLED_COST = Counter(
    "orchestrator_unbilled_cost_usd",
    "What failed attempts cost, in USD, by the tokens that were seen of them.",
    ["deployment"],
    registry=REGISTRY,
)
UNPRICED = Counter(
    "orchestrator_unpriced_requests",
    "Answered requests whose cost is unknown: no price of the model, or no usage.",
    ["deployment"],
    registry=REGISTRY,
)
BUDGET_EXCEEDED = Counter(
    "orchestrator_budget_exceeded",
    "Requests that met a budget that was used up, by its scope and `on_exceeded`.",
    ["scope", "action"],
    registry=REGISTRY,
)
LEDGER_ROWS = Counter(
    "orchestrator_ledger_rows", "Rows that were taken into the usage ledger.", registry=REGISTRY
)
LEDGER_FAILURES = Counter(
    "orchestrator_ledger_failures",
    "Failures of the ledger: at its start (`open`), of its spool or of its SQLite file (`store`).",
    ["step"],
    registry=REGISTRY,
)
LEDGER_LOST = Counter(
    "orchestrator_ledger_lost_rows",
    "Rows that could not be kept until the ledger could be written again.",
    registry=REGISTRY,
)
KEY_STATE = Gauge(
    "orchestrator_key_state",
    "Of each key, by number: 0 in use, 1 paused, 2 out of credit, 3 refused by the provider.",
    ["deployment", "key"],
    registry=REGISTRY,
)
KEY_RATE = Gauge(
    "orchestrator_key_requests_per_minute",
    "Attempts per minute that each key, by number, may start: by its limit, by what its provider"
    " tells of it, and by what a 429 has left of that; infinite if nobody limits it.",
    ["deployment", "key"],
    registry=REGISTRY,
)
KEY_REFUSALS = Counter(
    "orchestrator_key_refusals",
    "Attempts that a provider refused because of the key, by its number and the error's code.",
    ["deployment", "key", "code"],
    registry=REGISTRY,
)
HEDGES = Counter(
    "orchestrator_hedges",
    "Second attempts beside one that had not failed, by route and outcome (`started`, `won`).",
    ["route", "outcome"],
    registry=REGISTRY,
)
SEAMS = Counter(
    "orchestrator_seams",
    "Attempts that go on with an answer after a break, by way (`exact`, `prefill`).",
    ["deployment", "way"],
    registry=REGISTRY,
)
REPEATS = Counter(
    "orchestrator_repeats",
    "Requests by what was kept for them: kind (`idempotency`, `cache`), outcome (`hit`, `joined`,"
    " `miss`).",
    ["kind", "outcome"],
    registry=REGISTRY,
)
CACHE_FAILURES = Counter(
    "orchestrator_cache_failures", "Failures of the cache's SQLite file.", registry=REGISTRY
)
HOST_MEMORY = Gauge(
    "orchestrator_host_memory_bytes",
    "Memory of a local model's processes: the one that is `serving`, and the waiting `spare`.",
    ["deployment", "role"],
    registry=REGISTRY,
)
SPARES_LOST = Counter(
    "orchestrator_spares_lost",
    "Spare processes of a local model that died before they were needed.",
    ["deployment"],
    registry=REGISTRY,
)
BODY_BYTES = Gauge(
    "orchestrator_body_bytes",
    "Bytes of large bodies that are held, until their answers have ended.",
    registry=REGISTRY,
)
RESUMABLE_BYTES = Gauge(
    "orchestrator_resumable_bytes",
    "Bytes of streams that are kept for clients who may come back.",
    registry=REGISTRY,
)
READY = Gauge(
    "orchestrator_ready",
    "1 while the deployment would serve a request, else 0.",
    ["deployment"],
    registry=REGISTRY,
)
LIVE_SLOTS = Gauge(
    "orchestrator_live_slots", "Slots with a live worker.", ["deployment"], registry=REGISTRY
)
QUEUED = Gauge("orchestrator_queued", "Requests that wait.", ["deployment"], registry=REGISTRY)
CONCURRENCY = Gauge(
    "orchestrator_concurrency_limit",
    "Attempts that may run at once: the slots, or what `concurrency` has found.",
    ["deployment"],
    registry=REGISTRY,
)
INFLIGHT = Gauge(
    "orchestrator_inflight",
    "Accepted requests that have not ended.",
    ["deployment"],
    registry=REGISTRY,
)
PERMITS = Gauge(
    "orchestrator_permits",
    "Permits that are neither settled nor released.",
    ["deployment"],
    registry=REGISTRY,
)
BREAKER = Gauge(
    "orchestrator_breaker_state",
    "0 closed, 1 half-open, 2 open.",
    ["deployment"],
    registry=REGISTRY,
)
BREAKER_FORCED = Gauge(
    "orchestrator_breaker_forced",
    "1 while an operator holds the circuit breaker open or closed.",
    ["deployment"],
    registry=REGISTRY,
)
GENERATION = Gauge(
    "orchestrator_generation", "Number of the engine's life.", ["deployment"], registry=REGISTRY
)


RELOADS = Counter(
    "orchestrator_reloads",
    "Times the configuration was read anew, by result (`applied`, `unchanged`, `refused`).",
    ["result"],
    registry=REGISTRY,
)


def _zero() -> float:
    return 0.0


class DeploymentMeters:
    """One deployment's counters, bound to their labels."""

    def __init__(self, deployment: str) -> None:
        self._deployment = deployment
        self._queue_seconds = QUEUE_SECONDS.labels(deployment)
        self._restarts = RESTARTS.labels(deployment)
        self._stale = STALE.labels(deployment)
        self._keys: set[str] = set()
        self._roles: tuple[str, ...] = ()
        self._outcomes = {
            outcome: ATTEMPTS.labels(deployment, outcome)
            for outcome in ("done", "retried", "gave_up", "interrupted", "canceled")
        }

    def dispatched(self, waited: float) -> None:
        """An attempt starts after that many seconds in the queue."""
        self._queue_seconds.observe(waited)

    def attempt_ended(self, outcome: str) -> None:
        """An attempt ended."""
        self._outcomes[outcome].inc()

    def shed(self, priority: IntEnum) -> None:
        """A request had to leave the queue for another one."""
        SHED.labels(self._deployment, priority.name.lower()).inc()

    def stale(self) -> None:
        """A message with an old number came and was dropped."""
        self._stale.inc()

    def restart(self) -> None:
        """A slot is started anew."""
        self._restarts.inc()

    def fault(self, scope: str, cause: str) -> None:
        """A fault was settled; `cause` is a class name, never a message."""
        FAULTS.labels(self._deployment, scope, cause).inc()

    def key_refused(self, number: int, code: str) -> None:
        """A provider blamed a key (number from 1); `code` is the error's, a closed set."""
        KEY_REFUSALS.labels(self._deployment, str(number), code).inc()

    def observe_key(
        self, number: int, *, state: Callable[[], float], rate: Callable[[], float]
    ) -> None:
        """Tells a key's gauges where to look when they are scraped (number from 1)."""
        KEY_STATE.labels(self._deployment, str(number)).set_function(state)
        KEY_RATE.labels(self._deployment, str(number)).set_function(rate)
        self._keys.add(str(number))

    def observe_hosts(self, *, serving: Callable[[], float], spare: Callable[[], float]) -> None:
        """Tells the gauges of a local model's memory where to look when they are scraped."""
        HOST_MEMORY.labels(self._deployment, "serving").set_function(serving)
        HOST_MEMORY.labels(self._deployment, "spare").set_function(spare)
        self._roles = ("serving", "spare")

    def spare_lost(self) -> None:
        """A spare process died while it waited, or couldn't be woken."""
        SPARES_LOST.labels(self._deployment).inc()

    def poisoned(self, cause: str) -> None:
        """The engine was poisoned."""
        FAULTS.labels(self._deployment, "engine", cause).inc()

    def forget(self) -> None:
        """The deployment is closed: its gauges are 0 and hold nothing of it any more."""
        for gauge in (
            READY,
            LIVE_SLOTS,
            QUEUED,
            INFLIGHT,
            CONCURRENCY,
            PERMITS,
            BREAKER,
            BREAKER_FORCED,
            GENERATION,
        ):
            gauge.labels(self._deployment).set_function(_zero)
        for number in self._keys:
            KEY_STATE.labels(self._deployment, number).set_function(_zero)
            KEY_RATE.labels(self._deployment, number).set_function(_zero)
        for role in self._roles:
            HOST_MEMORY.labels(self._deployment, role).set_function(_zero)

    def observe(
        self,
        *,
        ready: Callable[[], float],
        live_slots: Callable[[], float],
        queued: Callable[[], float],
        inflight: Callable[[], float],
        concurrency: Callable[[], float],
        permits: Callable[[], float],
        breaker: Callable[[], float],
        breaker_forced: Callable[[], float],
        generation: Callable[[], float],
    ) -> None:
        """Tells the gauges where to look when they are scraped."""
        READY.labels(self._deployment).set_function(ready)
        LIVE_SLOTS.labels(self._deployment).set_function(live_slots)
        QUEUED.labels(self._deployment).set_function(queued)
        INFLIGHT.labels(self._deployment).set_function(inflight)
        CONCURRENCY.labels(self._deployment).set_function(concurrency)
        PERMITS.labels(self._deployment).set_function(permits)
        BREAKER.labels(self._deployment).set_function(breaker)
        BREAKER_FORCED.labels(self._deployment).set_function(breaker_forced)
        GENERATION.labels(self._deployment).set_function(generation)


class RouteMeters:
    """One route's counters, bound to their labels."""

    def __init__(self, route: str) -> None:
        self._route = route
        self._seconds = REQUEST_SECONDS.labels(route)
        self._first_token = FIRST_TOKEN_SECONDS.labels(route)
        self._finished = REQUESTS.labels(route, "finished")
        self._prompt = TOKENS.labels(route, "prompt")
        self._completion = TOKENS.labels(route, "completion")

    def finished(self, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        """A request was answered."""
        self._finished.inc()
        self._seconds.observe(seconds)
        self._prompt.inc(prompt_tokens)
        self._completion.inc(completion_tokens)

    def failed(self, seconds: float, code: str) -> None:
        """A request failed; `code` is the error's, a closed set."""
        REQUESTS.labels(self._route, code).inc()
        self._seconds.observe(seconds)

    def hedge(self, outcome: str) -> None:
        """A hedge was `started`, or has `won`."""
        HEDGES.labels(self._route, outcome).inc()

    def first_token(self, seconds: float) -> None:
        """The first token came that many seconds after acceptance."""
        self._first_token.observe(seconds)


@cache
def for_deployment(deployment: str) -> DeploymentMeters:
    """The meters of a deployment; made once."""
    return DeploymentMeters(deployment)


@cache
def for_route(route: str) -> RouteMeters:
    """The meters of a route; made once."""
    return RouteMeters(route)


def budget_exceeded(scope: str, action: str) -> None:
    """A request met a budget that was used up."""
    BUDGET_EXCEEDED.labels(scope, action).inc()


def exposition() -> bytes:
    """All metrics in Prometheus' text format."""
    return generate_latest(REGISTRY)
