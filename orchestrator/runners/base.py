"""The seam to whatever produces tokens.

A runner raises errors of `orchestrator.errors` only, and it never retries, never limits and never
looks at another runner.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.errors import WorkerHungError
from orchestrator.events import Finished, TokenChunk
from orchestrator.request import PriorityRequest, Work
from orchestrator.runners.lease import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a runner can do besides streaming text."""

    local: bool = False
    """Steps run on this machine: an expired lease is a hang of the worker, not of a provider."""
    resumable: bool = False
    """An answer that broke off can be gone on with exactly, from `request.resume`."""


class Runner(Protocol):
    """One slot's access to a model; one `generate` at a time."""

    @property
    def abilities(self) -> Abilities:
        """What this runner can do; constant."""
        ...

    async def start(self) -> None:
        """Makes the runner ready: loads the model, or opens the client.

        Raises:
            WorkerStartError: It can't be made ready.
        """
        ...

    def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """Streams the answer: chunks, then one `Finished`, after which the stream ends.

        With `request.resume` it streams what comes after the chunks in there; its usage is that of
        the whole answer.

        The runner arms `lease` for each step (`connect`, `first_step`, `first_token`,
        `next_token`) and calls `lease.progress()` per token. Closing the generator or cancelling
        its task frees all that the attempt holds (upstream connection, place in the batch) at once.

        Raises:
            OrchestratorError: One of its subclasses of scope request, upstream or worker.
        """
        ...

    async def closed(self) -> BaseException:
        """Returns the cause when the runner dies by itself; otherwise never returns.

        A remote runner has nothing that can die and waits for ever.
        """
        ...

    def hung(self, cause: WorkerHungError) -> None:
        """A local step missed its lease: kills what can't be asked any more (the model host).

        Called from the loop, returns at once; every stream of that host then fails with `cause` as
        its `__cause__`, and `closed()` returns an error that leads to it. A remote runner does
        nothing.
        """
        ...

    async def aclose(self) -> None:
        """Frees everything of this runner; it is not used again. Never waits longer than 15 s."""
        ...
        ...


CHAT_ALONE = frozenset({Work.CHAT})


def no_processes() -> Sequence[int]:
    """The process ids of a runner that has no process of its own."""
    return ()


def accept_anything(_request: PriorityRequest) -> None:
    """The check of a runner that leaves all checks to its provider."""


async def nothing_to_close() -> None:
    """The end of a slot factory that holds nothing of its own."""


async def nowhere_to_look(_request: PriorityRequest) -> str:
    """The answer of a runner whose model is nowhere to be found but in use."""
    return "unknown"


async def uncounted(_request: PriorityRequest) -> int | None:
    """The answer of a runner that can't count the tokens of a prompt."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFactory:
    """Makes runners for the slots of one deployment, again and again."""

    create: Callable[[], Runner]
    """A fresh runner that isn't started yet; slots of one local model share its host."""
    model: str
    """The model's name for people."""
    works: frozenset[Work] = CHAT_ALONE
    """What its runners can do."""
    resumes: str | None = None
    """Of resumable runners: two with the same text go on with each other's answers exactly."""
    inspect: Callable[[PriorityRequest], Awaitable[None] | None] = accept_anything
    """Refuses a request that the runner can't serve, before it is queued: raises
    `InvalidRequestError` at once or from the awaitable that it returns."""
    count: Callable[[PriorityRequest], Awaitable[int | None]] = uncounted
    """Counts the tokens of a request's prompt, without asking it; None where that can't be done.
    Raises an `InvalidRequestError` for a prompt that the model can't take."""
    find: Callable[[PriorityRequest], Awaitable[str]] = nowhere_to_look
    """Looks where the model is, without loading it or asking it the request, which is any that it
    could be asked: returns what it found, for people, or raises an `OrchestratorError`."""
    aclose: Callable[[], Awaitable[None]] = nothing_to_close
    """Ends what the runners share (the model host)."""
    processes: Callable[[], Sequence[int]] = no_processes
    """Process ids of the model hosts that serve now, for whoever looks on."""
    spares: Callable[[], Sequence[int]] = no_processes
    """Process ids of the model hosts that wait to take the place of one that dies."""
