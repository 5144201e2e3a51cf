"""One runner for all providers: a request out, its answer read to the end.

One request, one answer, no limits and no retries; a pooled connection that the provider had closed
is replaced (`upstream.send`), for that is no attempt of anybody's. What differs from provider to
provider is its dialect: how a request is put and how an answer is read, both without I/O.

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

import httpx

from orchestrator import metrics
from orchestrator.errors import (
    OrchestratorError,
    UpstreamAuthenticationError,
    UpstreamProtocolError,
    WorkerHungError,
)
from orchestrator.events import Finished, TokenChunk
from orchestrator.request import PriorityRequest, Work
from orchestrator.runners.base import Abilities, SlotFactory
from orchestrator.runners.classify import ANY_PROVIDER, Refusals
from orchestrator.runners.lease import Lease, Step
from orchestrator.runners.remote.allowances import standing_of
from orchestrator.runners.remote.asking import Asking
from orchestrator.runners.remote.estimate import with_usage
from orchestrator.runners.remote.large import LARGE_EVENT_BYTES, take_large
from orchestrator.runners.remote.large_request import LARGE_REQUEST_BYTES
from orchestrator.runners.remote.listing import find
from orchestrator.runners.remote.prefill import for_the_rest, of_the_whole
from orchestrator.runners.remote.reader import Framing, Reader, pieces_of, take_last
from orchestrator.runners.remote.settings import (
    RemoteSettings,
    check_headers,
    encode,
    encode_in_pieces,
    secret_of,
    ssl_context,
)
from orchestrator.runners.remote.sse import ServerSentEvent, SseDecoder
from orchestrator.runners.remote.transport import Http1Transport
from orchestrator.runners.remote.upstream import Body, send

logger = logging.getLogger(__name__)

NO_EVENTS = (b"{", b"[", b"<")
"""What an answer that came at once, or a page of HTML, begins with; no event stream does."""
SUCCESS = range(200, 300)
TAIL_SECONDS = 2.0
"""How long usage and end marker may take after the finish reason."""
REUSE_SECONDS = 0.05
"""How long the end of the body may take after the end marker, so that the connection is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one deployment's provider is asked and understood."""

    settings: RemoteSettings
    host: str
    """For people."""
    ask: Asking
    """Makes what is sent, with the key if there is one."""
    read: Callable[[PriorityRequest, str | None], Reader]
    """Makes the reader of what comes for a request, which masks the key that was sent."""
    refusals: Refusals = ANY_PROVIDER
    """What this provider's refusals mean besides what they mean for all."""
    framing: Callable[[], Framing] = SseDecoder
    no_events: tuple[bytes, ...] = NO_EVENTS
    """First bytes of a body that is read at once and not as events."""
    models: str | None = "/models"
    """Path of the provider's list of models; None if it has none."""
    others: Mapping[Work, "Dialect"] = field(default_factory=dict[Work, "Dialect"])
    """How what isn't a chat is asked and understood."""
    marks_end: bool = True
    """Whether a stream of this provider has an end marker after its finish reason."""


class ProviderRunner:
    """One slot's access to a provider.

    Args:
        dialect: Of the deployment.
        transport: Shared by all slots of the deployment and closed by their factory.
    """

    def __init__(self, dialect: Dialect, transport: httpx.AsyncBaseTransport) -> None:
        self._dialect = dialect
        self._settings = dialect.settings
        self._transport = transport

    def __repr__(self) -> str:
        return f"<ProviderRunner {self._settings.model} at {self._dialect.host}>"

    @property
    def abilities(self) -> Abilities:
        """A provider can't resume a broken answer."""
        return Abilities()

    async def start(self) -> None:
        """Does nothing: a connection is made with the first request."""

    def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """Streams the provider's answer; the tokens of an error's text are those seen before it.

        Raises:
            OrchestratorError: What the provider refused or broke, of scope request or upstream.
        """
        answer = self._answer(request, lease)
        if not self._settings.estimate_usage or request.work is not Work.CHAT:
            return answer
        return with_usage(answer, request, self._settings.provider)

    async def _answer(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        dialect, provider, resume = self._dialect, self._settings.provider, request.resume
        if request.work is not Work.CHAT:
            for event in await self._work(dialect.others[request.work], request, lease):
                yield event
            return
        if resume is not None:
            request = for_the_rest(request, resume)
        secret, response = await self._open(dialect, request, lease)
        answer = dialect.read(request, secret)
        several = request.sampling.n > 1
        async with contextlib.aclosing(Body(response, provider)) as body:
            if await body.first_byte() in dialect.no_events:
                whole = ServerSentEvent(await body.rest())
                async with contextlib.aclosing(take_large(answer, whole, whole=True)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                yield answer.end() if resume is None else of_the_whole(answer.end(), resume)
                return
            framing = dialect.framing()
            deadline: float | None = None
            while (read := await body.read(deadline)) is not None:
                for event in framing.feed(read):
                    if len(event.data) > LARGE_EVENT_BYTES:
                        async with contextlib.aclosing(take_large(answer, event)) as chunks:
                            async for chunk in chunks:
                                _progress(lease)
                                deadline = None
                                yield chunk
                        continue
                    if several:
                        for chunk in pieces_of(answer, answer.take(event)):
                            _progress(lease)
                            deadline = None
                            yield chunk
                        continue
                    chunk = answer.take(event)
                    if chunk is not None:
                        _progress(lease)
                        deadline = None  # a server that tells its finish too early gets time anew
                        yield chunk
                deadline = _tail_deadline(answer, lease, deadline)
            last = framing.flush()
            if last is not None:
                async with contextlib.aclosing(_last(answer, last)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            if answer.finish_reason is None:
                body.check_end(answer.tokens)
            elif dialect.marks_end and not answer.done:
                metrics.UNMARKED_ENDS.labels(provider).inc()
                logger.debug("%s sent no end marker for %s", provider, request.request_id)
            if answer.events == 0:
                body.check_kind()
            yield answer.end() if resume is None else of_the_whole(answer.end(), resume)

    async def _work(
        self, dialect: Dialect, request: PriorityRequest, lease: Lease
    ) -> tuple[TokenChunk, Finished]:
        """Asks for what comes whole, as one JSON object.

        Raises:
            UpstreamProtocolError: It is no such object.
        """
        secret, response = await self._open(dialect, request, lease)
        answer = dialect.read(request, secret)
        async with contextlib.aclosing(Body(response, self._settings.provider)) as body:
            await body.first_byte()
            chunk = answer.take_whole(await body.rest())
        if chunk is None:
            raise UpstreamProtocolError(f"{self._settings.provider} sent an empty answer")
        return chunk, answer.end()

    async def _open(
        self, dialect: Dialect, request: PriorityRequest, lease: Lease
    ) -> tuple[str | None, httpx.Response]:
        """Sends the request and returns the key that was taken and the answer to it.

        A key that the provider refuses is renewed and the request sent once more: nothing came of
        the first time. Getting a key is a part of connecting, so its lease runs meanwhile.

        Raises:
            OrchestratorError: What the provider refused, or why there is no key.
        """
        settings, key = self._settings, lease.key
        renew = settings.renew if key is None else key.renew
        secret = secret_of(settings, key)
        if renew is not None and not secret:  # none was fetched yet
            lease.arm(Step.CONNECT)
            await renew("")
            secret = secret_of(settings, key)
        response = await self._send(dialect, request, secret, lease)
        if response.status_code in SUCCESS:
            return secret, response
        refusal = await self._refusal(response, secret)
        if renew is None or not isinstance(refusal, UpstreamAuthenticationError):
            raise refusal
        lease.arm(Step.CONNECT)
        try:
            await renew(secret or "")
        except OrchestratorError as error:
            raise refusal from error
        secret = secret_of(settings, key)
        response = await self._send(dialect, request, secret, lease)
        if response.status_code not in SUCCESS:
            refusal = await self._refusal(response, secret)
            raise refusal
        return secret, response

    async def _send(
        self, dialect: Dialect, request: PriorityRequest, secret: str | None, lease: Lease
    ) -> httpx.Response:
        asked = await dialect.ask.translate(request)
        if request.size_bytes <= LARGE_REQUEST_BYTES:
            content = (encode(asked),)
        else:
            content = await encode_in_pieces(asked)
        response = await send(
            self._transport,
            dialect.ask.post(content, secret),
            lease,
            provider=self._settings.provider,
            again=request.idempotent,
        )
        if lease.on_standing is not None:
            standing = standing_of(response.headers.raw)
            if standing is not None:
                lease.on_standing(standing)
        return response

    async def _refusal(self, response: httpx.Response, secret: str | None) -> OrchestratorError:
        async with contextlib.aclosing(Body(response, self._settings.provider)) as body:
            return await body.refusal(secret, self._dialect.refusals)

    async def closed(self) -> BaseException:
        """Waits for ever: there is nothing here that could die."""
        return await asyncio.get_running_loop().create_future()

    def hung(self, cause: WorkerHungError) -> None:
        """Does nothing: a silent provider's connection is closed with the attempt."""

    async def aclose(self) -> None:
        """Does nothing: the connections belong to all slots."""


def slots_of(
    dialect: Dialect,
    inspect: Callable[[PriorityRequest], Awaitable[None] | None],
    transport: httpx.AsyncBaseTransport | None = None,
) -> SlotFactory:
    """Returns what makes the slots of one deployment; they share one pool of connections.

    Args:
        dialect: Of the deployment.
        inspect: Refuses what the provider can't do, before it is asked.
        transport: In place of the usual one; closed with the factory.

    Raises:
        ConfigError: `headers` or `ca_file` can't be used.
    """
    settings = dialect.settings
    check_headers(settings)
    shared = transport or Http1Transport(ssl_context(settings), proxy=settings.proxy)
    return SlotFactory(
        create=lambda: ProviderRunner(dialect, shared),
        model=settings.model,
        inspect=inspect,
        find=lambda _: find(
            settings, dialect.models, dialect.ask.headers(secret_of(settings)), shared
        ),
        aclose=shared.aclose,
    )


async def _last(answer: Reader, event: ServerSentEvent) -> AsyncGenerator[TokenChunk]:
    """Reads an event that the end of the stream cut off; it counts if it is whole."""
    if len(event.data) <= LARGE_EVENT_BYTES:
        for chunk in pieces_of(answer, take_last(answer, event)):
            yield chunk
        return
    with contextlib.suppress(UpstreamProtocolError):
        async with contextlib.aclosing(take_large(answer, event)) as chunks:
            async for chunk in chunks:
                yield chunk


def _progress(lease: Lease) -> None:
    if lease.step is Step.FIRST_TOKEN:
        lease.arm(Step.NEXT_TOKEN)
    else:
        lease.progress()


def _tail_deadline(answer: Reader, lease: Lease, deadline: float | None) -> float | None:
    """Returns until when to read on, given what has been read; None while tokens may come."""
    if answer.finish_reason is None and not answer.done:
        return None
    lease.disarm()
    tail = REUSE_SECONDS if answer.done else TAIL_SECONDS
    until = asyncio.get_running_loop().time() + tail
    return until if deadline is None else min(deadline, until)
