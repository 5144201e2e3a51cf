"""The Messages API as Anthropic sends it, read without I/O.

An answer is a list of blocks. Texts are told as they come; thinking as `reasoning_content`, and
once more, whole and signed, as `thinking_blocks` for whoever continues the conversation; a call of
a tool as `tool_calls`. What the API's own tools do on its side is no part of the answer.
"""

import re
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from orchestrator.errors import (
    ContentFilteredError,
    ContextLengthExceededError,
    InvalidRequestError,
    UpstreamQuotaExceededError,
)
from orchestrator.events import FinishReason, TokenChunk, Usage
from orchestrator.runners.classify import NOT_JSON, Refusals
from orchestrator.runners.remote.answer import Answer, counted, joined
from orchestrator.runners.remote.large_shape import Shape, counts, others
from orchestrator.runners.remote.sse import ServerSentEvent
from orchestrator.runners.remote.translation import object_in

DONE = b"[DONE]"

BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
DELTAS = ("text_delta", "thinking_delta", "signature_delta", "input_json_delta", "citations_delta")
READ = (
    "message_start",
    "message_delta",
    "message_stop",
    "message",
    "content_block_stop",
    "error",
)
"""Events whose members have no types of their own."""
TYPED = ("content_block_start", "content_block_delta")
"""Events whose member says of what type it is; one that is missing is a mistake."""

_BLOCK = r"(?:(?:message\.)?content|content_block)"
_MESSAGE = ("content", "stop_reason", "stop_sequence", "usage")

SHAPE = Shape(
    several=re.compile(
        r"(?:message\.)?content|(?:content|content_block)\.citations"
        r"|(?:delta|content_block)\.(?:text|thinking)"
    ),
    anything=re.compile(
        "|".join(
            (
                others("", "type", "index", "delta", "content_block", "message", *_MESSAGE),
                others("message", *_MESSAGE),
                others(
                    _BLOCK,
                    *("type", "text", "thinking", "signature", "data", "id", "name"),
                    *("input", "citations"),
                ),
                rf"{_BLOCK}\.(?:citations|input)(?:\..+)?|delta\.citation\..+",
                others(
                    "delta",
                    *("type", "text", "thinking", "signature", "partial_json", "citation"),
                    *("stop_reason", "stop_sequence"),
                ),
                *counts(r"(?:message\.)?usage"),
            )
        )
    ),
    names=("type", "index"),
)

FINISHES: Mapping[str, FinishReason] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.LENGTH,  # a long turn that the API wants to be asked to go on with
    "refusal": FinishReason.CONTENT_FILTER,
}
"""Finish reasons by the API's name; one that isn't here is a stop."""

REFUSALS = Refusals(
    texts=(
        (InvalidRequestError, re.compile("prompt is too long"), ContextLengthExceededError),
        (InvalidRequestError, re.compile("exceed context limit"), ContextLengthExceededError),
        (InvalidRequestError, re.compile("credit balance is too low"), UpstreamQuotaExceededError),
        (InvalidRequestError, re.compile("content filtering policy"), ContentFilteredError),
    ),
)
"""The API has one type for all that is wrong with a request, and tells it apart in words."""


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: dict[str, object] | None = None
    stop_reason: str | None = None
    stop_sequence: object = None


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: object = None
    citations: list[dict[str, object]] | None = None


class _Message(msgspec.Struct, gc=False):
    content: list[_Block] = []
    stop_reason: str | None = None
    stop_sequence: object = None
    usage: object = None


class _Event(_Message, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    error: object = None


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


_events = msgspec.json.Decoder(_Event)


class MessageDecoder(Answer):
    """Reads one answer."""

    __slots__ = ("_arguments", "_blocks", "_thoughts", "_tools")

    what: ClassVar[str] = "event of its API"
    shape = SHAPE

    def __init__(self, provider: str, *, secret: str | None = None) -> None:
        """Args as of `Answer`."""
        super().__init__(provider, secret=secret, own=REFUSALS)
        self._blocks: dict[int, _Block] = {}
        """Open blocks by their index, as far as something is still to be told of them."""
        self._thoughts: dict[int, list[str]] = {}
        """What has come of an open block's thinking, joined once."""
        self._tools: dict[int, int] = {}
        """Place among the answer's tool calls by the index of the block."""
        self._arguments: set[int] = set()
        """Blocks of which arguments have come."""

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads one event and returns the piece of the answer in it, if there is one.

        Raises:
            UpstreamProtocolError: The event is nothing that the API sends.
            OrchestratorError: The event is an error, by its kind.
        """
        if self.done or not event.data:
            return None
        self.events += 1
        if event.data == DONE:  # not the API's own, but some that stand before it send it
            self.done = True
            return None
        told = self._decode(event.data, failed=event.event == b"error")
        match told.type:
            case "content_block_delta" if told.delta is not None:
                return self._take_delta(told.index, told.delta)
            case "content_block_start" if told.content_block is not None:
                return self._open(told.index, told.content_block)
            case "content_block_stop":
                return self._close(told.index)
            case "message_start" if told.message is not None:
                self._count(told.message.usage)
            case "message_delta":
                self._count(told.usage)
                if told.delta is not None:
                    self._finish(told.delta.stop_reason, told.delta.stop_sequence)
            case "message_stop":
                self.done = True
            case _:  # a ping, or an event that this program is too old for
                pass
        return None

    def take_whole(self, body: bytes) -> TokenChunk | None:
        """Reads an answer that came at once, as one message, though a stream was asked for.

        Raises:
            UpstreamProtocolError: It is no message.
            OrchestratorError: It is an error, by its kind.
        """
        message = self._decode(body)
        self.done = True
        self._count(message.usage)
        self._finish(message.stop_reason, message.stop_sequence)
        pieces: list[TokenChunk | None] = []
        for block in message.content:
            index = len(self._tools)  # a large message comes here in several parts
            pieces += (self._open(index, block), self._close(index))
        return joined([piece for piece in pieces if piece is not None])

    def _decode(self, data: bytes, *, failed: bool = False) -> _Event:
        try:
            event = None if failed else _events.decode(data)
        except NOT_JSON as error:
            if _is_foreign(data):
                return _Event()
            event = self.mended(_events, data, error, self.what)
        if event is None or event.error is not None or event.type == "error":
            failure = self.failure(data)
            raise failure
        return event

    def _take_delta(self, index: int, delta: _Delta) -> TokenChunk | None:
        if delta.text and delta.type in ("text_delta", ""):
            return self._chunk(delta.text)
        if delta.citation:
            return self._chunk("", 0, {"citations": [delta.citation]})
        block = self._blocks.get(index)
        if block is None:
            return None
        if delta.partial_json and index in self._tools:
            self._arguments.add(index)
            return self._call(index, {"function": {"arguments": delta.partial_json}})
        if delta.signature:
            block.signature = (block.signature or "") + delta.signature
        if delta.thinking and delta.type == "thinking_delta":
            self._thoughts.setdefault(index, []).append(delta.thinking)
            return self._chunk("", 1, {"reasoning_content": delta.thinking})
        return None

    def _open(self, index: int, block: _Block) -> TokenChunk | None:
        match block.type:
            case "text":
                fields = {"citations": block.citations} if block.citations else None
                return self._chunk(block.text or "", 1 if block.text else 0, fields)
            case "thinking":
                known = self._blocks.get(index)
                if known is None or known.type != "thinking":
                    self._thoughts[index] = []
                self._blocks[index] = block
                self._thoughts[index].append(block.thinking or "")
                return self._chunk("", 1, {"reasoning_content": block.thinking})
            case "redacted_thinking":
                told = {"type": block.type, "data": block.data or ""}
                return self._chunk("", 0, {"thinking_blocks": [told]})
            case "tool_use":
                self._tools[index] = len(self._tools)
                arguments = ""
                if self.large and block.input:
                    # what was taken out of it is known only now, and nothing more is told of it
                    arguments = msgspec.json.encode(block.input).decode()
                else:
                    self._blocks[index] = block
                function = {"name": block.name or "", "arguments": arguments}
                begun = {"id": block.id or "", "type": "function", "function": function}
                return self._call(index, begun, 2 if arguments else 1)
            case _:
                return None

    def _close(self, index: int) -> TokenChunk | None:
        block = self._blocks.pop(index, None)
        if block is None:
            return None
        if block.type == "thinking":
            told = {
                "type": block.type,
                "thinking": "".join(self._thoughts.pop(index, ())),
                "signature": block.signature or "",
            }
            return self._chunk("", 0, {"thinking_blocks": [told]})
        if index in self._arguments:
            return None
        arguments = msgspec.json.encode(block.input or {}).decode()
        return self._call(index, {"function": {"arguments": arguments}})

    def _call(self, index: int, told: Mapping[str, object], tokens: int = 1) -> TokenChunk | None:
        call = {"index": self._tools[index], **told}
        return self._chunk("", tokens, {"tool_calls": [call]})

    def _chunk(
        self, text: str, tokens: int = 1, fields: Mapping[str, object] | None = None
    ) -> TokenChunk | None:
        if not text and not any((fields or {}).values()):
            return None
        self.tokens += tokens
        return TokenChunk(text, tokens, fields)

    def _finish(self, reason: str | None, stop: object) -> None:
        if reason:
            self.finish_reason = FINISHES.get(reason, FinishReason.STOP)
            self.stop = stop if isinstance(stop, str) else None

    def _count(self, told: object) -> None:
        try:
            usage = msgspec.convert(told, _Usage)
        except msgspec.ValidationError:
            return  # a usage in a shape of its own is no reason to lose an answer
        details, cached = usage.output_tokens_details, counted(usage.cache_read_input_tokens)
        # the API counts what the cache took in and gave out apart from the rest of the prompt
        added = counted(usage.cache_creation_input_tokens)
        self.count(
            Usage(
                prompt_tokens=counted(usage.input_tokens) + added + cached,
                completion_tokens=counted(usage.output_tokens),
                cached_tokens=cached,
                reasoning_tokens=counted(details and details.thinking_tokens),
            )
        )


def _is_foreign(data: bytes) -> bool:
    """Whether it is of a type that isn't read here, so that its members may have any shape."""
    try:
        event = object_in(msgspec.json.decode(data))
    except NOT_JSON:
        return False
    inner = object_in(event.get("delta")) or object_in(event.get("content_block"))
    kind, inner_kind = event.get("type"), inner.get("type")
    known = kind in READ or inner_kind in (*BLOCKS, *DELTAS)
    untyped = kind in TYPED and not isinstance(inner_kind, str)
    return isinstance(kind, str) and not known and not untyped
