"""All that will happen to a simulated run, written down before it begins.

Nothing draws dice while a run lasts: provider, callers and injector read theirs from the plan. So a
plan replays, prints, and shrinks. Points in time are seconds of the run, names are the journal's.
"""

from enum import StrEnum
from typing import Literal
from zlib import crc32

import msgspec

from orchestrator.points import Point
from orchestrator.policies.queue import OnFull
from orchestrator.routing.route import Midstream, Strategy

TOKEN_SECONDS = 0.02
"""Between two tokens, unless a plan says otherwise."""

Mode = Literal["safety", "liveness"]
Pace = Literal["eager", "slow", "never"]
Telling = Literal["openai", "anthropic", "nothing", "more", "less"]
Hint = Literal["seconds", "fraction", "milliseconds", "date", "past", "none"]


class Trouble(StrEnum):
    """What goes wrong in one attempt."""

    NONE = "none"
    SLOW = "slow"
    REFUSED = "refused"
    HANG_CONNECT = "hang_connect"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    BAD_REQUEST = "bad_request"
    BUG = "bug"
    HANG_FIRST = "hang_first"
    HANG_MID = "hang_mid"
    CUT = "cut"
    CLEAN_CUT = "clean_cut"
    CRASH_FIRST = "crash_first"
    CRASH_MID = "crash_mid"
    ZOMBIE = "zombie"


class Dice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt's fate."""

    trouble: Trouble = Trouble.NONE
    after: int = 0
    """Tokens before what happens in mid-stream."""
    seconds: float = 0.0
    """Of `Retry-After` (0 sends none), between slow tokens, or until a zombie's answer."""


class Caller(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, its reader, and the fate of each of its attempts."""

    name: str
    at: float
    route: str
    tokens: int
    timeout: float
    priority: int = 1
    owner: str = ""
    """On whose behalf it is made."""
    held: bool = False
    idempotent: bool = True
    pace: Pace = "eager"
    buffer_tokens: int | None = None
    """Unread tokens that the channel bears; None takes the default."""
    cancel_after: int | None = None
    """Tokens read before the caller cancels; None never does."""
    cancel_delay: float = 0.0
    """Seconds from the submission to a cancel after 0 tokens."""
    dice: tuple[Dice, ...] = ()
    """One per attempt; what comes after the last goes well."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the provider itself allows each of its keys, and how it tells of it."""

    per_minute: float
    """Requests; as many at once after a minute's rest."""
    telling: Telling = "openai"
    """In whose headers it says what is left; `more` and `less` say so of what isn't true."""
    hint: Hint = "seconds"
    """In which form its refusals say when to come back; `past` is a date that is over."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One deployment."""

    name: str
    local: bool = False
    shared_host: bool = False
    """Whether the death of one local host takes every slot with it."""
    slots: int = 2
    queue_capacity: int = 16
    aging: float | None = None
    on_full: OnFull = "failover"
    waiting: int = 0
    adapts: bool = False
    """Whether the number of attempts at once is found out by trying."""
    keys: int = 1
    revoked: tuple[int, ...] = ()
    """Keys that the provider refuses until it is healed, from 0."""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    failure_threshold: int = 5
    open_for: float = 1.0
    probes: int = 1
    max_attempts: int = 3
    max_restarts: int = 40
    within: float = 10.0
    stays_down: bool = False
    """Whether a poison ends it for good."""
    stall: float = 1.0
    """Seconds that a step may take without progress."""
    start_seconds: float = 0.0
    bad_starts: tuple[int, ...] = ()
    """Numbers of the starts that fail, from 0."""
    token_seconds: float = TOKEN_SECONDS
    resumable: bool = False
    """Whether its runners go on with an answer exactly."""
    prefill: bool = False
    """Whether it goes on with a text."""
    account: str = ""
    """Deployments with the same one send the same keys, whose limits they have in common."""
    quota: Quota | None = None
    """Its provider's own limit, which is learned; None has no such limit, and nothing is."""


class RouteShape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a route chooses, and what it does when a deployment fails."""

    strategy: Strategy = "failover"
    midstream: Midstream = "resume"
    max_attempts: int | None = None
    hedge_after: float | None = None
    """Seconds; None never hedges."""
    hedge_share: float = 0.05


class Action(StrEnum):
    """What an injection does."""

    POISON = "poison"
    KILL_HOST = "kill_host"
    KILL_SUPERVISOR = "kill_supervisor"
    CANCEL = "cancel"
    """Of the request that passes the point."""
    STRETCH = "stretch"
    """Time passes within the step."""
    STOP_HOST = "stop_host"
    """Nothing goes on in it for so many seconds."""
    RELOAD = "reload"
    """Every deployment is replaced by another one like it; `deployment` is any of them."""
    DRAIN = "drain"
    """The whole system takes nothing new and lets what runs finish."""


class Injection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault at a time, or at the n-th passage of a point."""

    do: Action
    deployment: str
    at: float | None = None
    point: Point | None = None
    nth: int = 0
    """Which passage in that deployment, from 0."""
    since: float = 0.0
    """Seconds; passages before aren't counted."""
    delay: float = 0.0
    """Seconds from the passage to the fault, or by which time is stretched."""
    seconds: float = 0.0
    """How long it lasts."""


class Weather(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What goes wrong with attempts that begin within a time, if their caller's dice spare them."""

    deployment: str
    begin: float
    end: float
    dice: Dice
    share: float = 1.0
    """Of the attempts, 0 to 1."""

    def meets(self, caller: str, number: int, now: float) -> bool:
        """Whether an attempt meets it; the same attempt always does, or never."""
        luck = crc32(f"{caller}/{number}/{self.begin}".encode()) / 2**32
        return self.begin <= now < self.end and luck < self.share


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run."""

    seed: int
    """Of what is left to chance: the loop's shuffle and the backoff's jitter."""
    mode: Mode = "safety"
    shuffle: bool = False
    grid: float = 0.0
    shapes: tuple[Shape, ...]
    routes: dict[str, tuple[str, ...]] = {}
    route_shapes: dict[str, RouteShape] = {}
    callers: tuple[Caller, ...]
    injections: tuple[Injection, ...] = ()
    weather: tuple[Weather, ...] = ()

    def as_json(self) -> str:
        """The plan as text that `plan_from_json` reads back."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()


def plan_from_json(text: str) -> Plan:
    """Reads a plan.

    Raises:
        msgspec.ValidationError: The text is no plan.
    """
    return msgspec.json.decode(text, type=Plan)
