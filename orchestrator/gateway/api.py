"""What one API of the gateway is: how a body is read, and how answers and errors are told.

Every API reads its bodies into the same `PriorityRequest` and tells the same chunks and ending, so
any of them stands in front of any deployment.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.failure import failure_event, failure_object
from orchestrator.gateway.members import Members
from orchestrator.gateway.visit import Visit
from orchestrator.request import PriorityRequest
from orchestrator.routing.router import Router
from orchestrator.runners.remote.pace import Steps


class StreamWriter(Protocol):
    """Writes one answer as server-sent events; each piece is whole events."""

    def write(self, chunks: Sequence[TokenChunk]) -> bytes:
        """All chunks, as one piece of the stream."""
        ...

    def finish(self, finished: Finished) -> bytes:
        """The end of an answer that is complete."""
        ...

    def fail(self, error: OrchestratorError) -> bytes:
        """The end of an answer that broke off; nothing follows it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is asked, and how it is to be answered."""

    request: PriorityRequest
    stream: Callable[[], StreamWriter] | None
    """Makes what writes the answer as a stream; None if it is wanted whole."""
    whole: Callable[[Sequence[TokenChunk], Finished], bytes]
    """Makes the JSON of a complete answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """What is answered without asking a model."""

    model: str
    """Which the caller must be allowed to use."""
    answer: Callable[[Router], Awaitable[bytes]]
    """Makes the JSON of the answer; raises an `OrchestratorError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One path that is posted to."""

    path: str
    summary: str
    """For the published document, as is the next."""
    body: type[msgspec.Struct]
    read: Callable[[Members, Visit], Steps[Call | Direct]]
    """Raises `InvalidRequestError` for a body that can't be used."""
    failure: Callable[[OrchestratorError, str], object] = lambda error, _: failure_object(error)
    """The body of a refusal, given the error and the request's id."""
    failure_event: Callable[[OrchestratorError, str], bytes] = lambda error, _: failure_event(error)
    """The event that ends a stream of which nobody knows how far it was written."""
    failure_schema: str = "Error"
    """The name of their shape in the published document."""
