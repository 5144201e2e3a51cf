"""A response's head and the first piece of its body in one write.

uvicorn writes them one after the other, and each write is a system call, the dearest step of a
short answer: with a provider's write there were three to a request, a third of all its time.
"""

import asyncio

from typing_extensions import override

STATUS_LINE = b"HTTP/1.1 "


class HeadHolder(asyncio.Transport):
    """Holds a head until more is written, but no longer than the current turn of the loop.

    Args:
        transport: The connection's own.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head = b""
        self._loop = asyncio.get_running_loop()
        # all else is the connection's own business
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.set_write_buffer_limits = transport.set_write_buffer_limits

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._transport.is_closing():
            # answers to what a peer sent ahead before it left; uvloop would raise
            self._head = b""
        elif self._head:
            head, self._head = self._head, b""
            self._transport.write(head + bytes(data))
        elif data[:9] == STATUS_LINE:
            self._head = bytes(data)
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    @override
    def close(self) -> None:
        self._flush()
        self._transport.close()

    @override
    def abort(self) -> None:
        self._head = b""
        self._transport.abort()

    @override
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)
