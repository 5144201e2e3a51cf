"""The answer as server-sent events, in the shape of OpenAI's `chat.completion.chunk`.

All that is the same in every chunk is made once per answer; a chunk costs one encoding of its text.
"""

from collections.abc import Sequence

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.events import Finished, TokenChunk, Usage
from orchestrator.gateway.failure import failure_event

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
LOGPROBS = "logprobs"
"""The one member of a chunk's fields that belongs to the choice and not to its delta."""


def usage_object(usage: Usage | None) -> dict[str, object] | None:
    """Usage in OpenAI's shape; None if nobody counted."""
    if usage is None:
        return None
    told: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    if usage.estimated:
        told["estimated"] = True
    return told


class ChunkWriter:
    """Writes one answer.

    Args:
        completion_id: The answer's `id`.
        model: The route's name, as the caller gave it.
        created: Seconds since 1970.
        include_usage: Whether a last chunk tells the usage.
        several: Whether chunks of more than one answer come.
    """

    __slots__ = (
        "_after",
        "_before",
        "_begun",
        "_include_usage",
        "_several",
        "_tail",
        "_text_before",
    )

    def __init__(
        self,
        *,
        completion_id: str,
        model: str,
        created: int,
        include_usage: bool,
        several: bool = False,
    ) -> None:
        head = {
            "id": completion_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._before = b"data: " + _encode(head)[:-1] + b',"choices":['
        # OpenAI: whoever asks for usage gets it as null in every chunk but the last
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text_before = self._before + b'{"index":0,"delta":{"content":'
        self._after = b'},"finish_reason":null}' + self._tail
        self._include_usage = include_usage
        self._several = several
        self._begun: set[int] = set()
        """Answers whose first chunk, which tells the role, has been written."""

    def write(self, chunks: Sequence[TokenChunk]) -> bytes:
        """All chunks, as one piece of the stream."""
        parts: list[bytes] = []
        plain = bool(self._begun) and not self._several
        for chunk in chunks:
            if plain and chunk.fields is None:
                parts += (self._text_before, _encode(chunk.text), self._after)
            else:
                parts.append(self._write_whole(chunk))
                plain = not self._several
        return b"".join(parts)

    def finish(self, finished: Finished) -> bytes:
        """The end of an answer that is complete."""
        parts: list[bytes] = []
        for index, reason in enumerate(finished.finish_reasons):
            if index not in self._begun:
                parts.append(self._write_whole(TokenChunk("", 0, None, index)))
            ending = b'{"index":%d,"delta":{},"finish_reason":%b}' % (index, _encode(reason.value))
            parts += (self._before, ending, self._tail)
        if self._include_usage:
            usage = _encode(usage_object(finished.usage))
            parts += (self._before, b'],"usage":', usage, b"}\n\n")
        return b"".join((*parts, DONE))

    def fail(self, error: OrchestratorError) -> bytes:
        """The end of an answer that broke off: one event, and no `[DONE]`."""
        return failure_event(error)

    def _write_whole(self, chunk: TokenChunk) -> bytes:
        delta: dict[str, object] = {}
        if chunk.index not in self._begun:
            delta["role"] = "assistant"
            self._begun.add(chunk.index)
        if chunk.text or chunk.fields is None:
            delta["content"] = chunk.text
        choice: dict[str, object] = {"index": chunk.index, "delta": delta, "finish_reason": None}
        for name, value in (chunk.fields or {}).items():
            (choice if name == LOGPROBS else delta)[name] = value
        return self._before + _encode(choice) + self._tail
