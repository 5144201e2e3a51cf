"""How each harm is done to an answer, byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator

from orchestrator.chaos.provider.toxics import Active, Harm, Toxics
from orchestrator.chaos.provider.wire import LAST_CHUNK, Asked, GoneError, Wire

COMMENT_SECONDS = 0.1
SSE_HEADERS = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
JSON_HEADERS = {"content-type": "application/json"}


class Wreck:
    """Sends one answer and spoils it on the way, if the request meets a toxic.

    Args:
        toxics: What is on.
        wire: To whom it is sent.
        request: Whose answer it is, if that is known.
    """

    def __init__(self, toxics: Toxics, wire: Wire, request: str | None) -> None:
        self._toxics = toxics
        self._wire = wire
        self._request = request

    async def before(self, active: Active) -> bool:
        """Does what is done before the answer; returns whether the request is over with it.

        Raises:
            GoneError: The connection is cut.
        """
        toxic, wire = active.toxic, self._wire
        self._toxics.strike(active, self._request)
        match toxic.harm:
            case Harm.REFUSED:
                wire.reset()
            case Harm.STATUS:
                headers = dict(JSON_HEADERS)
                if toxic.retry_after is not None:
                    headers["retry-after"] = f"{toxic.retry_after:g}"
                error = {"message": f"chaos: {toxic.error}", "type": toxic.error}
                body = json.dumps({"error": {**error, "code": toxic.error}}).encode()
                await wire.whole(toxic.code, body, headers)
                return True
            case Harm.LATENCY:
                await self._wait(active, self._toxics.delay(toxic))
            case Harm.HEADER_THEN_HANG:
                await wire.head(200, SSE_HEADERS)
                await self._wait(active, None)
                wire.reset()
            case Harm.COMMENTS_ONLY:
                await wire.head(200, SSE_HEADERS)
                while not active.off.is_set():
                    await wire.chunk(b": keep-alive\n\n")
                    await self._wait(active, COMMENT_SECONDS)
                wire.reset()
            case _:
                pass
        return False

    async def stream(self, events: AsyncIterator[bytes], active: Active | None) -> None:
        """Sends the events of an answer whose head has been sent, and its end.

        Raises:
            GoneError: The connection is cut.
        """
        number = 0
        async for event in events:
            if active is not None and number == active.toxic.after_tokens:
                self._toxics.strike(active, self._request)
                if await self._break(active, event):
                    return
            if active is not None and active.toxic.harm in (Harm.SLICER, Harm.BANDWIDTH):
                await self._in_pieces(active, event)
            else:
                await self._wire.chunk(event)
            number += 1
        await self._wire.send(LAST_CHUNK)

    async def _break(self, active: Active, event: bytes) -> bool:
        wire = self._wire
        match active.toxic.harm:
            case Harm.STALL:
                await self._wait(active, None)
            case Harm.CUT:
                return await self._cut(active, event)
            case Harm.DUP_TOKENS:
                await wire.chunk(event)
            case Harm.ERROR_EVENT:
                body = {"error": {"message": "chaos: error event", "type": "server_error"}}
                await wire.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")
                await wire.send(LAST_CHUNK)
                return True
            case Harm.BAD_JSON:
                await wire.chunk(b'data: {"choices": [{"delta"\n\n')
            case Harm.HUGE_EVENT:
                padding = b"x" * active.toxic.size
                await wire.chunk(b'data: {"choices":[],"padding":"%s"}\n\n' % padding)
            case _:
                pass
        return False

    async def _cut(self, active: Active, event: bytes) -> bool:
        wire = self._wire
        match active.toxic.how:
            case "clean_no_done":
                await wire.send(LAST_CHUNK)
                return True
            case "rst":
                wire.reset()
            case "mid_event":
                await wire.chunk(event[: len(event) // 2])
            case "mid_utf8":
                await wire.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"\xe2\x82')
            case "fin":
                pass
        raise GoneError("cut")

    async def _in_pieces(self, active: Active, event: bytes) -> None:
        framed = b"%x\r\n%s\r\n" % (len(event), event)
        toxic = active.toxic
        step = toxic.size if toxic.harm is Harm.SLICER else max(1, toxic.size // 20)
        for place in range(0, len(framed), step):
            await self._wire.send(framed[place : place + step])
            pause = 0.0 if toxic.harm is Harm.SLICER else step / toxic.size
            await self._wait(active, pause)

    async def _wait(self, active: Active, seconds: float | None) -> None:
        """Waits so long, or for ever, or until the toxic is off.

        Raises:
            GoneError: The peer went away meanwhile.
        """
        waits = [
            asyncio.ensure_future(active.off.wait()),
            asyncio.ensure_future(self._wire.gone.wait()),
        ]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._wire.gone.is_set():
            raise GoneError("the peer went away")


def name_in(asked: Asked) -> str | None:
    """The request's own name, if its prompt is one that counts."""
    place = asked.body.rfind(b"count ")
    words = asked.body[place : place + 96].split()
    if place < 0 or len(words) < 3:  # noqa: PLR2004 - count, how many, for whom
        return None
    name = words[2].split(b'"')[0].decode("latin-1")
    return name or None
