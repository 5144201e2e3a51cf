"""Answers to HTTP/1.0: their end is the connection's, for such a client knows no chunks.

RFC 9112, 6.1 and 6.3: nobody who speaks less than HTTP/1.1 is sent a `Transfer-Encoding`, and a
body without a length goes on until the connection closes. uvicorn sends chunks to everybody.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

HTTP_1_0 = "1.0"


def until_close(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Frames what an application answers to one request by the connection's end.

    Args:
        app: The application.
        cycle: uvicorn's state of this request, after which it closes the connection.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        bounded = False

        async def told(message: Message) -> None:
            nonlocal bounded
            if message["type"] == "http.response.start":
                bounded = any(name == b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = None if bounded else False
            elif not bounded:
                # uvicorn takes a body without chunks for one of a length that was announced
                cycle.expected_content_length = len(message["body"])
            await send(message)

        await app(scope, receive, told)

    return serve
