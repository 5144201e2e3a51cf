"""What the actors say to each other.

Every message from a worker carries the worker's id and the attempt's epoch, every message to a
supervisor about an engine or worker carries the engine's generation; a message with an old number
changes nothing and is counted.
"""

from dataclasses import dataclass
from typing import Any

import pykka

from orchestrator.attempt import Outcome
from orchestrator.inflight import Fault, Ticket
from orchestrator.policies.limits.key import Permit
from orchestrator.request import PriorityRequest
from orchestrator.runners.remote.credentials import Key

# --- to the engine -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wake:
    """Something may be dispatched: a request came, or a time has come."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A request that is running ended by something else than its attempt."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class SlotReady:
    """A worker's runner is ready; it may be given work."""

    worker: str
    ref: pykka.ActorRef[Any]


@dataclass(frozen=True, slots=True)
class SlotLost:
    """A worker is dead; the engine settles its request from its own ledger."""

    worker: str
    cause: BaseException | None


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """A worker's attempt is over and its slot is free."""

    worker: str
    epoch: int
    outcome: Outcome


EngineMessage = Wake | Gone | SlotReady | SlotLost | AttemptEnded

# --- to a worker ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assign:
    """Run one attempt."""

    request: PriorityRequest
    epoch: int
    attempts: int
    """Which attempt of this request at this deployment it is, from 1."""
    permit: Permit
    queued_for: float
    """Seconds that the request waited for this attempt."""
    permit_for: float = 0.0
    """Of these, in which a slot was idle and a permit was not to be had."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Nobody waits for that attempt any more."""

    epoch: int


@dataclass(frozen=True, slots=True)
class RunnerLost:
    """The worker's own runner died, hung or could not be started; told by the worker to itself."""

    cause: BaseException


@dataclass(frozen=True, slots=True)
class RunnerStarted:
    """The worker's own runner is ready; told by the worker to itself."""


WorkerMessage = Assign | Abort | RunnerLost | RunnerStarted

# --- to a session --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Renew:
    """A provider refused this key; answered when there is another, or with why there is none."""

    refused: Key | None
    """None: there was none to send."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """The time has come for the next key; told by the session to itself."""


@dataclass(frozen=True, slots=True)
class Look:
    """See whether the key's file is another one; told by the session to itself."""


SessionMessage = Renew | Fetch | Look

# --- to the supervisor ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker's runner was started."""

    worker: str
    generation: int


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker ended; the cause is None if it was asked to."""

    worker: str
    generation: int
    cause: BaseException | None


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine actor ended."""

    generation: int
    cause: BaseException | None


@dataclass(frozen=True, slots=True)
class StartSlot:
    """The backoff of a dead slot is over."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """The backoff after a poison is over."""

    generation: int


@dataclass(frozen=True, slots=True)
class Poison:
    """End this engine generation for good, with this fault as the reason."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop the workers and the engine; answered when all are gone."""


SupervisorMessage = (
    WorkerReady | WorkerDied | EngineDied | StartSlot | StartGeneration | Poison | Shutdown
)
