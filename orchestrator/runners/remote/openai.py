"""The `openai` runner: any server that speaks Chat Completions over server-sent events.

One request, one answer, no limits and no retries; a pooled connection that the provider had closed
is replaced (`upstream.send`), for that is no attempt of anybody's.

The lease is armed with `connect` until a connection stands, with `first_token` until the first
piece of the answer, with `next_token` after that; events without a piece of the answer are no
progress. Once the finish reason was seen the lease is off, for what may still come (usage, the end
marker) has a short bound of its own.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator

import httpx

from orchestrator.errors import ConfigError, WorkerHungError, describe
from orchestrator.events import Finished, TokenChunk
from orchestrator.request import PriorityRequest
from orchestrator.runners.base import Abilities, SlotFactory
from orchestrator.runners.lease import Lease, Step
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.openai_request import (
    OpenAISettings,
    encode,
    endpoint,
    fits_header,
    headers_of,
    payload,
    secret_of,
)
from orchestrator.runners.remote.sse import SseDecoder
from orchestrator.runners.remote.transport import AiohttpTransport
from orchestrator.runners.remote.upstream import Body, send

logger = logging.getLogger(__name__)

NO_STREAM = (b"{", b"[", b"<")
"""What an answer that came at once, or a page of HTML, begins with; no event stream does."""
TAIL_SECONDS = 2.0
"""How long usage and end marker may take after the finish reason."""
REUSE_SECONDS = 0.05
"""How long the end of the body may take after the end marker, so that the connection is kept."""


class OpenAIRunner:
    """One slot's access to a provider.

    Args:
        settings: Of the deployment.
        transport: Shared by all slots of the deployment and closed by their factory.
    """

    def __init__(self, settings: OpenAISettings, transport: httpx.AsyncBaseTransport) -> None:
        self._settings = settings
        self._transport = transport
        self._url = endpoint(settings.base_url)

    def __repr__(self) -> str:
        return f"<OpenAIRunner {self._settings.model} at {self._url.host}>"

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
        answer = ChatDecoder(settings.provider, secret=secret)
        response = await send(
            self._transport,
            httpx.Request(
                "POST",
                self._url,
                headers=headers_of(settings, secret),
                content=encode(payload(settings, request)),
            ),
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


def factory(
    settings: OpenAISettings, transport: httpx.AsyncBaseTransport | None = None
) -> SlotFactory:
    """Returns what makes the slots of one deployment; they share one pool of connections.

    Args:
        settings: Of the deployment.
        transport: In place of the usual one; closed with the factory.

    Raises:
        ConfigError: `base_url`, `headers` or `ca_file` can't be used.
    """
    endpoint(settings.base_url)
    for name, value in settings.headers.items():
        if not fits_header(name + value):
            raise ConfigError(f"header {name!r} has characters that no header can carry")
    shared = transport or AiohttpTransport(_ssl_context(settings))
    return SlotFactory(
        create=lambda: OpenAIRunner(settings, shared),
        model=settings.model,
        aclose=shared.aclose,
    )


def _ssl_context(settings: OpenAISettings) -> ssl.SSLContext | None:
    if not settings.base_url.lower().startswith("https:"):
        return None
    if not settings.verify:
        return httpx.create_ssl_context(verify=False)
    try:
        return (
            ssl.create_default_context(cafile=settings.ca_file)
            if settings.ca_file
            else (httpx.create_ssl_context())
        )
    except OSError as error:
        raise ConfigError(f"ca_file {settings.ca_file} can't be used: {describe(error)}") from error


def _progress(lease: Lease) -> None:
    if lease.step is Step.FIRST_TOKEN:
        lease.arm(Step.NEXT_TOKEN)
    else:
        lease.progress()


def _tail_deadline(answer: ChatDecoder, lease: Lease, deadline: float | None) -> float | None:
    """Returns until when to read on, given what has been read; None while tokens may come."""
    if answer.finish_reason is None and not answer.done:
        return None
    lease.disarm()
    tail = REUSE_SECONDS if answer.done else TAIL_SECONDS
    until = asyncio.get_running_loop().time() + tail
    return until if deadline is None else min(deadline, until)
