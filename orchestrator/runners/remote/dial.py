"""A connection to the first address of a host that answers (RFC 8305, "Happy Eyeballs").

A name often has addresses of both families, and one of them may lead nowhere: then its connect
would last for minutes. So the next address is tried beside it after a head start. uvloop's
`create_connection` tries them one after the other.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from orchestrator.runners.remote.connection import Connection

HEAD_START = 0.25
"""Seconds that an address has before the next one is tried, too."""

Factory = Callable[[], Connection]


async def dial(host: str, port: int, tls: ssl.SSLContext | None, factory: Factory) -> Connection:
    """Connects.

    Args:
        host: A name or an address.
        port: The port.
        tls: Whom to trust; None speaks plainly.
        factory: Makes the connection's protocol.

    Raises:
        OSError: No address answers, or none proves to be that host.
    """
    loop = asyncio.get_running_loop()

    async def connect(address: str) -> Connection:
        _, connection = await loop.create_connection(
            factory, address, port, ssl=tls, server_hostname=host if tls is not None else None
        )
        return connection

    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = interleaved([(family, str(where[0])) for family, _, _, _, where in found])
    if len(addresses) == 1:
        return await connect(addresses[0])
    return await first_to_connect(addresses, connect)


def interleaved(found: Sequence[tuple[int, str]]) -> list[str]:
    """Returns the addresses in the resolver's order, but with the families taking turns."""
    families: dict[int, deque[str]] = {}
    for family, address in dict.fromkeys(found):
        families.setdefault(family, deque()).append(address)
    turns = list(families.values())
    order: list[str] = []
    while any(turns):
        order += [turn.popleft() for turn in turns if turn]
    return order


async def first_to_connect(
    addresses: Sequence[str], connect: Callable[[str], Awaitable[Connection]]
) -> Connection:
    """Returns the first connection that stands and closes all others.

    Raises:
        OSError: The first address's fault, if none answers.
    """
    ahead = deque(addresses)
    faults: list[BaseException] = []
    trying: set[asyncio.Future[Connection]] = set()
    try:
        while ahead or trying:
            if ahead:
                trying.add(asyncio.ensure_future(connect(ahead.popleft())))
            await asyncio.wait(
                trying,
                timeout=HEAD_START if ahead else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for tried in [tried for tried in trying if tried.done()]:
                trying.discard(tried)
                fault = tried.exception()
                if fault is None:
                    return tried.result()
                faults.append(fault)
    finally:
        for tried in trying:
            tried.add_done_callback(_drop)
            tried.cancel()
    raise faults[0] if faults else OSError("the name has no address")


def _drop(tried: asyncio.Future[Connection]) -> None:
    # it may have connected in the very turn in which it was canceled
    if not tried.cancelled() and tried.exception() is None:
        tried.result().abort()
