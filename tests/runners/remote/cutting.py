"""Cuts a recorded stream at every byte of its body: what the cut tests of all providers share."""

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.errors import UpstreamTruncatedError
from orchestrator.events import TokenChunk
from orchestrator.runners.remote.reader import Reader, pieces_of
from orchestrator.runners.remote.sse import ServerSentEvent
from tests.fakes.sse_server import Send, SseServer, Step, head
from tests.runners.remote.asking import asking


async def check_every_cut(
    recorded: Sequence[bytes],
    events: Sequence[ServerSentEvent],
    reader: Callable[[], Reader],
    end: Step,
    **how: Any,
) -> None:
    """Asserts that no cut loses a token that came before it, nor makes an answer of a part.

    Args:
        recorded: The stream, one event each, with its end of line or its blank line.
        events: What these events say.
        reader: Makes the provider's reader; it is asked what the whole events before a cut mean.
        end: How the connection ends at the cut.
        how: What else `asking` wants to know, and the `content_type`; `asking` itself, if it is
            another provider's, and the members of the `request`.
    """
    stream = b"".join(recorded)
    cuts = range(len(stream) + 1)
    start = head(
        framing="connection: close", content_type=how.pop("content_type", "text/event-stream")
    )
    server = SseServer(*([Send(start + stream[:cut]), end] for cut in cuts))
    ask, request = how.pop("asking", asking), how.pop("request", {})
    async with server, ask(server, **how) as asker:
        for cut in cuts:
            answer = await asker.ask(**request)

            chunks, finished = _expected(recorded, events, reader(), cut)
            assert answer.chunks == chunks, cut
            assert (answer.ending is not None) == finished, cut
            assert finished or isinstance(answer.error, UpstreamTruncatedError), (cut, answer.error)


def _expected(
    recorded: Sequence[bytes], events: Sequence[ServerSentEvent], reader: Reader, cut: int
) -> tuple[list[TokenChunk], bool]:
    chunks: list[TokenChunk] = []
    start = 0
    for raw, event in zip(recorded, events, strict=True):
        if start + len(raw.rstrip()) > cut:
            break
        start += len(raw)
        chunks += pieces_of(reader, reader.take(event))
    return chunks, reader.finish_reason is not None
