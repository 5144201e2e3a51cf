"""A proxy on loopback that opens tunnels, or refuses to."""

import asyncio
from types import TracebackType
from typing import Self


class TunnelProxy:
    """Listens while its context is open and leads every tunnel to one place, whatever its name.

    Args:
        port: Where the tunnels end, on loopback.
        answer: What CONNECT is answered with.
    """

    def __init__(self, port: int, answer: bytes = b"HTTP/1.1 200 Connected\r\n\r\n") -> None:
        self._port = port
        self._answer = answer
        self.heads: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # a task that start_server makes itself is logged as an error when it is canceled
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(self._answer)
        if not self._answer.startswith(b"HTTP/1.1 2"):
            writer.close()
            return
        there, beyond = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, beyond))
                both.create_task(_pump(there, writer))
        finally:
            beyond.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()
