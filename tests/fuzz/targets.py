"""What must hold for any bytes at all; each check takes one input of the fuzzer.

The first bytes of an input say how the rest is cut into reads, and by whom it is read, so that the
fuzzer finds cuts and contents by the same search.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
import httpx_sse

from orchestrator.errors import OrchestratorError
from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.answer import merge_fields
from orchestrator.runners.remote.anthropic_answer import MessageDecoder
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.gemini_answer import GeminiDecoder
from orchestrator.runners.remote.large import take_large
from orchestrator.runners.remote.lines import LineDecoder
from orchestrator.runners.remote.ollama import OllamaDecoder
from orchestrator.runners.remote.reader import Framing, Reader, pieces_of, take_last
from orchestrator.runners.remote.responses import ResponsesDecoder
from orchestrator.runners.remote.sse import ServerSentEvent, SseDecoder

READERS: tuple[tuple[Callable[[], Framing], Callable[[], Reader]], ...] = (
    (SseDecoder, lambda: ChatDecoder("acme")),
    (SseDecoder, lambda: ResponsesDecoder("acme")),
    (LineDecoder, lambda: OllamaDecoder("acme", new_id=lambda: "made")),
    (SseDecoder, lambda: MessageDecoder("acme")),
    (SseDecoder, lambda: GeminiDecoder("acme", new_id=lambda: "made")),
    (SseDecoder, lambda: ChatDecoder("acme", answers=2)),
    (SseDecoder, lambda: GeminiDecoder("acme", new_id=lambda: "made", answers=2)),
)
"""How a provider's bytes are framed, and who reads the events."""

PIECE_BYTES = 64
"""Longer than every name that a reader looks for."""


def cut(stream: bytes, pattern: bytes) -> list[bytes]:
    """The stream in reads whose sizes are the pattern's bytes, again and again."""
    reads: list[bytes] = []
    start = place = 0
    while start < len(stream):
        size = 1 + pattern[place % len(pattern)] if pattern else len(stream)
        reads.append(stream[start : start + size])
        start += size
        place += 1
    return reads


def check_sse(data: bytes) -> None:
    """Our decoder and the reference one see the same events, however the bytes are cut."""
    stream = data[3:]
    whole, pieces = SseDecoder(), SseDecoder()
    events = whole.feed(stream)

    assert [event for read in cut(stream, data[:3]) for event in pieces.feed(read)] == events
    assert pieces.flush() == whole.flush()
    found = [(_text(event.event) or "message", _text(event.data)) for event in events]
    assert [event for event in found if event[1]] == _reference(stream)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _reference(stream: bytes) -> list[tuple[str, str]]:
    response = httpx.Response(
        200,
        content=stream.removeprefix(codecs.BOM_UTF8),
        headers={"content-type": "text/event-stream; charset=utf-8"},
    )
    source = httpx_sse.EventSource(response)
    return [(event.event, event.data) for event in source.iter_sse() if event.data]


@dataclass
class Outcome:
    """All that one stream brought."""

    chunks: list[TokenChunk] = field(default_factory=list[TokenChunk])
    ending: Finished | None = None
    error: str | None = None

    @property
    def together(self) -> "Outcome":
        """The same, however many pieces a large event is told in; each counts as a token."""
        places = {chunk.index for chunk in self.chunks}
        chunks = [self._of(place) for place in sorted(places)]
        error = self.error and re.sub(r"after \d+ tokens", "after some tokens", self.error)
        return Outcome(chunks, self.ending, error)

    def _of(self, place: int) -> TokenChunk:
        chunks = [one for one in self.chunks if one.index == place]
        fields = merge_fields([one.fields for one in chunks if one.fields])
        return TokenChunk("".join(one.text for one in chunks), 0, fields or None, place)


def check_answer(data: bytes) -> None:
    """An answer is the same however it is cut, and only a typed error may come in its place."""
    if not data:
        return
    framing, reader = READERS[data[0] % len(READERS)]
    stream = data[4:]
    whole = _read([stream], framing(), reader())

    assert _read(cut(stream, data[1:4]), framing(), reader()) == whole
    pieces = _read([stream], framing(), reader(), in_pieces=True)
    assert pieces.together == whole.together
    assert (whole.ending is None) == (whole.error is not None)


def _take(reader: Reader, event: ServerSentEvent, *, in_pieces: bool) -> Sequence[TokenChunk]:
    async def taken() -> Sequence[TokenChunk]:
        return [chunk async for chunk in take_large(reader, event, piece_bytes=PIECE_BYTES)]

    if not in_pieces:
        return pieces_of(reader, reader.take(event))
    reading = taken()
    while True:
        try:
            reading.send(None)
        except StopIteration as read:
            return read.value


def _read(
    reads: list[bytes], framing: Framing, reader: Reader, *, in_pieces: bool = False
) -> Outcome:
    outcome = Outcome()

    def note(chunks: Sequence[TokenChunk]) -> None:
        for chunk in chunks:
            assert chunk.text or any((chunk.fields or {}).values()), "a chunk that says nothing"
            outcome.chunks.append(chunk)

    try:
        for read in reads:
            for event in framing.feed(read):
                note(_take(reader, event, in_pieces=in_pieces))
        last: ServerSentEvent | None = framing.flush()
        note(() if last is None else pieces_of(reader, take_last(reader, last)))
        outcome.ending = reader.end()
    except OrchestratorError as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome
