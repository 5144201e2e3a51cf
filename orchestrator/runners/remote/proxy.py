"""The way to a provider through a proxy.

`https` goes through a tunnel that CONNECT opens (RFC 9110, 9.3.6): the proxy sees a host's name and
bytes. Plain `http` is sent to the proxy itself, with the whole address (RFC 9112, 3.2.2).
"""

import asyncio
import base64
import ipaddress
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

import httpx
from typing_extensions import override

from orchestrator.runners.remote.connection import Connection

MAX_HEAD_BYTES = 16 << 10
END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where a proxy listens, and who we are to it."""

    host: str
    port: int
    authorization: str | None = field(default=None, repr=False)


def proxy_at(address: str) -> Proxy:
    """Reads `http://user:password@host:port`, which has been checked with the configuration."""
    parts = urlsplit(address)
    authorization = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Proxy(parts.hostname or "", parts.port or 80, authorization)


def proxy_for(url: str, proxy: str | None, no_proxy: Sequence[str]) -> Proxy | None:
    """Returns the proxy on the way to an address; None where the way is direct.

    Args:
        url: The provider's address.
        proxy: A proxy's address; `env` for what the environment says; None for none.
        no_proxy: Hosts that are reached directly: names, which stand for all below them, addresses
            and networks; `*` is any.
    """
    if proxy is None:
        return None
    parts = urlsplit(url)
    if proxy == "env":
        known = getproxies_environment()
        proxy = known.get(parts.scheme) or known.get("all")
        told = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        no_proxy = [*no_proxy, *filter(None, (one.strip() for one in told.split(",")))]
        if not proxy:
            return None
    if any(_covers(one, parts.hostname or "") for one in no_proxy):
        return None
    return proxy_at(proxy if "://" in proxy else f"http://{proxy}")


def _covers(one: str, host: str) -> bool:
    if one == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(one, strict=False)
    except ValueError:  # one of them is a name
        name = one.lower().lstrip(".")
        return host == name or host.endswith(f".{name}")


class _Tunnel(asyncio.Protocol):
    """Waits for the answer to CONNECT."""

    def __init__(self) -> None:
        self.head = bytearray()
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @override
    def data_received(self, data: bytes) -> None:
        self.head += data
        if END_OF_HEAD in self.head or len(self.head) > MAX_HEAD_BYTES:
            self._end()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)

    def check(self) -> None:
        """Looks at the answer.

        Raises:
            httpx.ProxyError: There is no tunnel.
        """
        head, end, rest = bytes(self.head).partition(END_OF_HEAD)
        version, _, status = head.split(b"\r\n", 1)[0].partition(b" ")
        if not end or not version.startswith(b"HTTP/1."):
            raise httpx.ProxyError("the proxy closed the connection, or doesn't speak HTTP")
        if not status.startswith(b"2"):
            raise httpx.ProxyError(f"the proxy refused with {status[:80].decode(errors='replace')}")
        if rest:
            raise httpx.ProxyError("the proxy sent bytes of its own into the tunnel")


async def tunnel(
    proxy: Proxy, host: str, port: int, tls: ssl.SSLContext, factory: Callable[[], Connection]
) -> Connection:
    """Connects through a proxy, with TLS from here to the host.

    Raises:
        OSError: The proxy can't be reached, or the host doesn't prove to be that host.
        httpx.ProxyError: The proxy opens no tunnel.
    """
    loop = asyncio.get_running_loop()
    transport, waiting = await loop.create_connection(_Tunnel, proxy.host, proxy.port)
    try:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {where} HTTP/1.1", f"host: {where}"]
        if proxy.authorization is not None:
            lines.append(f"proxy-authorization: {proxy.authorization}")
        transport.write("\r\n".join(lines).encode() + END_OF_HEAD)
        await waiting.answered
        waiting.check()
        connection = factory()
        secured = await loop.start_tls(transport, connection, tls, server_hostname=host)
    except BaseException:
        transport.abort()
        raise
    # start_tls tells the protocol nothing of its transport
    connection.connection_made(cast("asyncio.BaseTransport", secured))
    return connection
