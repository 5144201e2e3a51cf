"""A proxy before a real provider, or any server that speaks HTTP; it knows events from bytes."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Self
from urllib.parse import urlsplit

import httpx
from typing_extensions import override

from orchestrator.chaos.provider.front import LOOPBACK, Front, Reply
from orchestrator.chaos.provider.toxics import Landed
from orchestrator.chaos.provider.wire import Asked, events_of

OURS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "keep-alive"}
)
"""Headers that belong to one connection, not to the request."""
UNHURRIED = httpx.Timeout(None, connect=10.0)
"""How long anything may take is the gateway's to say."""


class Proxy(Front):
    """The proxy.

    Args:
        upstream: Base URL of what it stands before.
        port: 0 takes a free one.
        seed: Of the choice whom a toxic meets.
        on_landed: Told of every strike of a toxic.
        on_start: Told of every request that arrives.
        verify: Whether the upstream must prove who it is.
    """

    def __init__(
        self,
        upstream: str,
        *,
        port: int = 0,
        seed: int = 0,
        on_landed: Landed | None = None,
        on_start: Callable[[str | None], None] | None = None,
        verify: bool = True,
    ) -> None:
        super().__init__(port=port, seed=seed, on_landed=on_landed, on_start=on_start)
        parts = urlsplit(upstream)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path.rstrip("/")
        self._verify = verify
        self._client: httpx.AsyncClient | None = None

    @property
    def url(self) -> str:
        """The base URL to configure in the upstream's place."""
        return f"http://{LOOPBACK}:{self.port}{self._path}"

    @override
    async def __aenter__(self) -> Self:
        self._client = httpx.AsyncClient(
            base_url=self._base, timeout=UNHURRIED, verify=self._verify, trust_env=False
        )
        return await super().__aenter__()

    @override
    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(None, None, None)
        if self._client is not None:
            await self._client.aclose()

    @contextlib.asynccontextmanager
    async def origin(self, asked: Asked) -> AsyncGenerator[Reply]:
        """Asks the upstream.

        Raises:
            ConnectionError: It can't be asked, or broke off.
        """
        if self._client is None:
            raise ConnectionError("the proxy isn't open")
        headers = {name: text for name, text in asked.headers.items() if name not in OURS}
        headers["accept-encoding"] = "identity"  # events can't be told apart in packed bytes
        try:
            async with self._client.stream(
                asked.method, asked.target, headers=headers, content=asked.body
            ) as response:
                kind = response.headers.get("content-type", "")
                if kind.startswith("text/event-stream"):
                    yield Reply(response.status_code, events=events_of(response.aiter_raw()))
                    return
                passed = {name: text for name, text in response.headers.items() if name not in OURS}
                body = await response.aread()
                yield Reply(response.status_code, body=body, headers=passed)
        except httpx.HTTPError as error:
            raise ConnectionError(f"the upstream failed: {error!r}") from error
