"""Nobody asks for a compressed stream, for a compressor holds tokens back; some send one anyway."""

import gzip
import importlib
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from orchestrator.errors import OrchestratorError, UpstreamProtocolError, UpstreamTruncatedError
from orchestrator.events import Finished, FinishReason
from tests.fakes.sse_server import Close, Send, SseServer, answer, delta, framed, head
from tests.runners.remote.asking import asking

brotli: Any = importlib.import_module("brotli")  # no types come with it
pytestmark = pytest.mark.live

EVENTS = (delta("Hel"), delta("lo 你好"), delta(finish="stop"), b"data: [DONE]\n\n")
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("size", [1, 1 << 16])
async def test_a_stream_in_any_coding_is_read_however_it_is_cut(coding: str, size: int):
    body = CODINGS[coding](b"".join(EVENTS))
    pieces = [framed(body[start : start + size]) for start in range(0, len(body), size)]
    script = [Send(head(extra=[f"content-encoding: {coding}"])), *map(Send, pieces)]

    async with SseServer([*script, Send(b"0\r\n\r\n")]) as server, asking(server) as asker:
        found = await asker.ask()

    assert found.text == "Hello 你好"
    assert found.ending == Finished(FinishReason.STOP)


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_stream_that_was_cut_is_never_an_answer(coding: str):
    body = CODINGS[coding](b"".join(EVENTS))
    start = head(framing="connection: close", extra=[f"content-encoding: {coding}"])
    errors: tuple[type[OrchestratorError], ...] = (UpstreamTruncatedError, UpstreamProtocolError)
    cuts = range(0, len(body) // 2, 7)

    async with (
        SseServer(*([Send(start + body[:cut]), Close()] for cut in cuts)) as server,
        asking(server) as asker,
    ):
        for _ in cuts:
            found = await asker.ask()

            assert found.ending is None
            assert isinstance(found.error, errors)


async def test_a_compressed_stream_is_not_asked_for():
    async with SseServer(answer(*EVENTS)) as server, asking(server) as asker:
        await asker.ask()

        assert server.requests[0].headers["accept-encoding"] == "identity"
