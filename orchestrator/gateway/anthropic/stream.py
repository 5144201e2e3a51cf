"""An answer as the events of Anthropic's Messages API.

An answer is a list of blocks, each begun, filled and ended. Texts, thinking and calls of tools are
blocks of their own; a call whose arguments are not whole yet stays open while a text goes on. All
that is the same in every piece of a text is made once a block.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.anthropic.answer import end_of, usage_of
from orchestrator.gateway.anthropic.failure import failure_event
from orchestrator.gateway.tool_turns import ToolCall, ToolTurns
from orchestrator.request import PriorityRequest

_encode = msgspec.json.Encoder().encode
Object = Mapping[str, object]


def event(kind: str, **members: object) -> bytes:
    """One event of the API."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, **members}))


class MessageWriter:
    """Writes one answer.

    Args:
        message_id: The message's `id`.
        request: What was asked.
    """

    __slots__ = (
        "_index",
        "_kept",
        "_message_id",
        "_new",
        "_request",
        "_text_after",
        "_text_before",
        "_tokens",
        "_tool_index",
        "_tools",
        "_writing",
    )

    def __init__(self, *, message_id: str, request: PriorityRequest) -> None:
        self._message_id = message_id
        self._request = request
        self._new = True
        self._index = -1
        """Of the newest block."""
        self._writing: tuple[str, int] | None = None
        """Kind and index of the open block, if it is text or thinking."""
        self._tools = ToolTurns()
        self._tool_index = 0
        self._text_before = b""
        self._text_after = b"}}\n\n"
        self._tokens = 0
        self._kept: dict[str, object] = {}
        """Members that the API has no place for, told at the end."""

    def write(self, chunks: Sequence[TokenChunk]) -> bytes:
        """All chunks, as one piece of the stream."""
        parts: list[bytes] = [self._start()] if self._new else []
        for chunk in chunks:
            self._tokens += chunk.tokens
            if chunk.fields is not None:
                self._write_fields(parts, chunk.fields)
            if chunk.text:
                self._write_text(parts, chunk.text)
        return b"".join(parts)

    def finish(self, finished: Finished) -> bytes:
        """The end of an answer that is complete."""
        parts: list[bytes] = [self._start()] if self._new else []
        self._close(parts)
        self._write_tools(parts, self._tools.flush())
        usage = usage_of(finished, self._request, self._tokens)
        parts += (
            event("message_delta", delta=end_of(finished), usage=usage, **self._kept),
            event("message_stop"),
        )
        return b"".join(parts)

    def fail(self, error: OrchestratorError) -> bytes:
        """The end of an answer that broke off: one event, and nothing after it."""
        return failure_event(error, self._request.request_id)

    def _start(self) -> bytes:
        self._new = False
        message: Object = {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            # nobody has counted yet; what counts comes with message_delta
            "usage": {"input_tokens": self._request.estimated_prompt_tokens, "output_tokens": 0},
        }
        return event("message_start", message=message)

    def _write_text(self, parts: list[bytes], text: str) -> None:
        if self._writing is None or self._writing[0] != "text":
            index = self._open(parts, "text", {"type": "text", "text": ""})
            self._text_before = (
                b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
                b'"delta":{"type":"text_delta","text":' % index
            )
        parts += (self._text_before, _encode(text), self._text_after)

    def _write_fields(self, parts: list[bytes], fields: Object) -> None:
        signed = fields.get("thinking_blocks")
        for name, value in fields.items():
            match name, value:
                case "tool_calls", list():
                    self._write_tools(parts, self._tools.take(cast("list[object]", value)))
                case "thinking_blocks", list():
                    self._write_signed(parts, cast("list[Object]", value))
                case "reasoning_content", str():
                    if not signed:  # they hold it once more
                        self._think(parts, value)
                case "citations", list():
                    self._cite(parts, cast("list[object]", value))
                case "refusal", str():
                    self._write_text(parts, value)
                case _:
                    self._kept[name] = value

    def _think(self, parts: list[bytes], text: str) -> int:
        if self._writing is None or self._writing[0] != "thinking":
            index = self._open(
                parts, "thinking", {"type": "thinking", "thinking": "", "signature": ""}
            )
        else:
            index = self._writing[1]
        if text:
            parts.append(self._delta(index, {"type": "thinking_delta", "thinking": text}))
        return index

    def _write_signed(self, parts: list[bytes], blocks: list[Object]) -> None:
        for block in blocks:
            if block.get("type") != "thinking":
                self._open(parts, "redacted", block)
            else:
                begun = self._writing is not None and self._writing[0] == "thinking"
                index = self._think(parts, "" if begun else str(block.get("thinking") or ""))
                signature = block.get("signature") or ""
                parts.append(
                    self._delta(index, {"type": "signature_delta", "signature": signature})
                )
            self._close(parts)

    def _cite(self, parts: list[bytes], citations: list[object]) -> None:
        if self._writing is None or self._writing[0] != "text":
            self._write_text(parts, "")
        assert self._writing is not None  # noqa: S101 - a text is open now
        for citation in citations:
            delta = {"type": "citations_delta", "citation": citation}
            parts.append(self._delta(self._writing[1], delta))

    def _write_tools(self, parts: list[bytes], steps: Iterable[tuple[str, ToolCall]]) -> None:
        for step, call in steps:
            match step:
                case "begin":
                    self._close(parts)
                    self._index += 1
                    self._tool_index = self._index
                    spare_id = f"toolu_{self._message_id}_{self._index}"
                    block: Object = {
                        "type": "tool_use",
                        "id": call.call_id or spare_id,
                        "name": call.name,
                        "input": {},
                    }
                    parts.append(
                        event("content_block_start", index=self._index, content_block=block)
                    )
                case "go on":
                    arguments = call.untold()
                    if arguments:
                        delta = {"type": "input_json_delta", "partial_json": arguments}
                        parts.append(self._delta(self._tool_index, delta))
                case _:
                    parts.append(event("content_block_stop", index=self._tool_index))

    def _open(self, parts: list[bytes], kind: str, block: Object) -> int:
        self._close(parts)
        self._index += 1
        self._writing = (kind, self._index)
        parts.append(event("content_block_start", index=self._index, content_block=block))
        return self._index

    def _close(self, parts: list[bytes]) -> None:
        if self._writing is not None:
            parts.append(event("content_block_stop", index=self._writing[1]))
            self._writing = None

    def _delta(self, index: int, delta: Object) -> bytes:
        return event("content_block_delta", index=index, delta=delta)
