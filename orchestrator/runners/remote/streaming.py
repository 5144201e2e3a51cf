"""One request, one streamed answer, whatever the provider's language.

What a provider says and how it is asked stands in its own file, as a `Dialect`; the exchange
itself is the same for all: no limits and no retries here, and a pooled connection that the provider
had closed is replaced (`upstream.send`), for that is no attempt of anybody's.

The lease is armed with `connect` until a connection stands, with `first_token` until the first
piece of the answer, with `next_token` after that; events without a piece of the answer are no
progress. Once the finish reason was seen the lease is off, for what may still come (usage, the end
marker) has a short bound of its own.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import httpx

from orchestrator.errors import WorkerHungError
from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.request import PriorityRequest
from orchestrator.runners.base import Abilities, SlotFactory, accept_anything
from orchestrator.runners.lease import Lease, Step
from orchestrator.runners.remote.provider import (
    ProviderSettings,
    check_headers,
    encode,
    headers_with,
    secret_of,
    ssl_context,
)
from orchestrator.runners.remote.sse import ServerSentEvent, SseDecoder
from orchestrator.runners.remote.transport import AiohttpTransport
from orchestrator.runners.remote.upstream import Body, send

logger = logging.getLogger(__name__)

NO_STREAM = (b"{", b"[", b"<")
"""What an answer that came at once, or a page of HTML, begins with; no event stream does."""
TAIL_SECONDS = 2.0
"""How long usage and end marker may take after the finish reason."""
REUSE_SECONDS = 0.05
"""How long the end of the body may take after the end marker, so that the connection is kept."""


class Answer(Protocol):
    """Reads one answer in a provider's own words, without I/O."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Set as soon as the answer is complete; usage may still follow."""
        ...

    @property
    def done(self) -> bool:
        """The provider's own end marker was seen; what follows it is ignored."""
        ...

    @property
    def events(self) -> int:
        """Events seen, of any kind."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens seen, as far as they can be counted."""
        ...

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads one event and returns the piece of the answer in it, if there is one."""
        ...

    def take_last(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads an event that the end of the stream cut off; it counts if it is whole."""
        ...

    def take_whole(self, body: bytes) -> TokenChunk | None:
        """Reads an answer that came at once, as JSON, though a stream was asked for."""
        ...

    def end(self) -> Finished:
        """Returns the ending, now that nothing more will be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one provider is asked and understood."""

    kind: str
    """The runner's name for people."""
    url: httpx.URL
    """Where requests go."""
    body: Callable[[PriorityRequest], Mapping[str, object]]
    """What is sent; raises `InvalidRequestError` for what the provider can't do."""
    answer: Callable[[str | None], Answer]
    """Makes the reader of one answer, given the key that was sent."""
    headers: Callable[[str | None], Mapping[str, str]]
    """Headers of this kind of provider, given the key to send."""
    inspect: Callable[[PriorityRequest], Awaitable[None] | None] = field(default=accept_anything)
    """Refuses what the provider can't do before it is queued."""


class StreamRunner:
    """One slot's access to a provider.

    Args:
        settings: Of the deployment.
        dialect: How its provider is asked and understood.
        transport: Shared by all slots of the deployment and closed by their factory.
    """

    def __init__(
        self, settings: ProviderSettings, dialect: Dialect, transport: httpx.AsyncBaseTransport
    ) -> None:
        self._settings = settings
        self._dialect = dialect
        self._transport = transport

    def __repr__(self) -> str:
        dialect = self._dialect
        return f"<StreamRunner {dialect.kind} {self._settings.model} at {dialect.url.host}>"

    @property
    def abilities(self) -> Abilities:
        """A provider can't resume a broken answer."""
        return Abilities()

    async def start(self) -> None:
        """Does nothing: a connection is made with the first request."""

    async def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """Streams the provider's answer; the tokens of an error's text are those seen before it.

        Raises:
            OrchestratorError: What the provider refused or broke, of scope request or upstream.
        """
        settings = self._settings
        secret = secret_of(settings)
        answer = self._dialect.answer(secret)
        response = await send(
            self._transport,
            self._request(request, secret),
            lease,
            provider=settings.provider,
            again=request.idempotent,
        )
        async with contextlib.aclosing(Body(response, settings.provider)) as body:
            if not response.is_success:
                refusal = await body.refusal(secret)
                raise refusal
            if await body.first_byte() in NO_STREAM:
                chunk = answer.take_whole(await body.rest())
                if chunk is not None:
                    yield chunk
                yield answer.end()
                return
            decoder = SseDecoder()
            deadline: float | None = None
            while (read := await body.read(deadline)) is not None:
                for event in decoder.feed(read):
                    chunk = answer.take(event)
                    if chunk is not None:
                        _progress(lease)
                        deadline = None  # a server that tells its finish too early gets time anew
                        yield chunk
                deadline = _tail_deadline(answer, lease, deadline)
            last = decoder.flush()
            chunk = None if last is None else answer.take_last(last)
            if chunk is not None:
                yield chunk
            if answer.finish_reason is None:
                body.check_end(answer.tokens)
            elif not answer.done:
                logger.debug("%s sent no end marker for %s", settings.provider, request.request_id)
            if answer.events == 0:
                body.check_kind()
            yield answer.end()

    async def closed(self) -> BaseException:
        """Waits for ever: there is nothing here that could die."""
        return await asyncio.get_running_loop().create_future()

    def hung(self, cause: WorkerHungError) -> None:
        """Does nothing: a silent provider's connection is closed with the attempt."""

    async def aclose(self) -> None:
        """Does nothing: the connections belong to all slots."""

    def _request(self, request: PriorityRequest, secret: str | None) -> httpx.Request:
        return httpx.Request(
            "POST",
            self._dialect.url,
            headers=headers_with(self._settings, self._dialect.headers(secret)),
            content=encode(self._dialect.body(request)),
        )


def stream_factory(
    settings: ProviderSettings, dialect: Dialect, transport: httpx.AsyncBaseTransport | None = None
) -> SlotFactory:
    """Returns what makes the slots of one deployment; they share one pool of connections.

    Args:
        settings: Of the deployment.
        dialect: How its provider is asked and understood.
        transport: In place of the usual one; closed with the factory.

    Raises:
        ConfigError: `headers` or `ca_file` can't be used.
    """
    check_headers(settings)
    shared = transport or AiohttpTransport(ssl_context(settings))
    return SlotFactory(
        create=lambda: StreamRunner(settings, dialect, shared),
        model=settings.model,
        inspect=dialect.inspect,
        aclose=shared.aclose,
    )


def _progress(lease: Lease) -> None:
    if lease.step is Step.FIRST_TOKEN:
        lease.arm(Step.NEXT_TOKEN)
    else:
        lease.progress()


def _tail_deadline(answer: Answer, lease: Lease, deadline: float | None) -> float | None:
    """Returns until when to read on, given what has been read; None while tokens may come."""
    if answer.finish_reason is None and not answer.done:
        return None
    lease.disarm()
    tail = REUSE_SECONDS if answer.done else TAIL_SECONDS
    until = asyncio.get_running_loop().time() + tail
    return until if deadline is None else min(deadline, until)
