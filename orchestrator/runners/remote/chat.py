"""OpenAI's Chat Completions as a provider sends them, read without I/O.

Rules:
    1. An answer is complete when its finish reason was seen and no error after it; neither
       `[DONE]` nor the end of the stream proves anything.
    2. An error is an error wherever it stands: as an event of that name, as an `error` member, as
       a finish reason that means "broken off".
    3. Members of a delta besides `role` and `content` are passed on untouched in a chunk's fields;
       a choice's `logprobs` are passed on there as well, under that name. Tool calls are numbered
       anew, for their indexes are wrong at some providers (`tool_calls.py`).
    4. A delta that carries nothing (the role alone, nulls, empty texts) is no chunk.
    5. Usage is the greatest count seen, for some providers send it many times; a usage that nobody
       sent stays absent.
    6. Of several answers each has its own finish reason, and the stream is read until all have.
    7. A content that is no text, or a tool call that is no object, is a broken answer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import msgspec

from orchestrator.errors import (
    OrchestratorError,
    UpstreamOverloadedError,
    UpstreamProtocolError,
    UpstreamServerError,
    UpstreamTruncatedError,
)
from orchestrator.events import FinishReason, TokenChunk, Usage
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.answer import Answer, counted
from orchestrator.runners.remote.large_shape import NO_PATH, Shape, counts, others
from orchestrator.runners.remote.sse import ServerSentEvent
from orchestrator.runners.remote.tool_calls import ToolCallNumbers
from orchestrator.runners.remote.translation import object_in

DONE = b"[DONE]"
SHORTEST_CHUNK = len(b'{"choices":[]}')

FINISHES: Mapping[str, FinishReason] = {
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
}
"""Finish reasons by the provider's name; one that isn't here is a stop."""

BROKEN_FINISHES: Mapping[str, type[OrchestratorError]] = {
    "error": UpstreamServerError,
    "network_error": UpstreamServerError,
    "insufficient_system_resource": UpstreamOverloadedError,
    "abort": UpstreamTruncatedError,
    "aborted": UpstreamTruncatedError,
    "cancelled": UpstreamTruncatedError,
}
"""Finish reasons that say that the answer is not complete."""

_DELTA = r"choices\.(?:delta|message)"
_COUNTS = r"(?:choices\.|x_groq\.)?usage"


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: dict[str, object] | None = None
    message: dict[str, object] | None = None
    """In place of the delta, where the whole answer comes at once."""
    finish_reason: str | None = None
    stop_reason: object = None
    """Where vLLM tells the stop text that ended it, or the number of a token."""
    matched_stop: object = None
    """The same in SGLang's words."""
    index: int | None = 0
    logprobs: object = None
    """An object, or a number of Together's."""
    usage: object = None


SHAPE = Shape(
    several=re.compile(
        rf"{_DELTA}\.(?:content|tool_calls)|{others(_DELTA, 'content', 'tool_calls')}"
        r"|choices\.logprobs\.(?:content|refusal)"
    ),
    anything=re.compile(
        "|".join(
            (
                others("", "choices", "usage", "x_groq"),
                others(
                    "choices",
                    *("delta", "message", "logprobs", "usage", "index"),
                    *("finish_reason", "stop_reason", "matched_stop"),
                ),
                r"choices\.logprobs\..+",
                others(_DELTA, "content", "tool_calls"),
                others(rf"{_DELTA}\.content", "type", "text"),
                others(rf"{_DELTA}\.tool_calls", "index", "id", "type", "function"),
                rf"{_DELTA}\.tool_calls\.function\.(?!name$).+",
                others("x_groq", "usage"),
                *counts(_COUNTS),
            )
        )
    ),
    one=re.compile("choices"),
    items=msgspec.json.Decoder(list[_Choice]).decode,
    names=("index",),
)
SHAPE_OF_SEVERAL = replace(
    SHAPE, several=re.compile(f"choices|{SHAPE.several.pattern}"), one=NO_PATH
)
"""Of the events of several answers, each of which is taken."""


class _GroqMembers(msgspec.Struct):
    usage: object = None
    error: object = None
    """Why the stream was stopped early."""


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: object = None
    x_groq: _GroqMembers | None = None
    """Where Groq tells the usage, whether it was asked or not, and why it broke off."""
    error: object = None
    kind: object = msgspec.field(default=None, name="object")


_chunks = msgspec.json.Decoder(_Chunk)


class ChatDecoder(Answer):
    """Reads what comes for one request: chunks, then what the answer ends with.

    Args:
        provider: The name for people.
        secret: The key that was sent, masked wherever the provider repeats it.
        answers: How many answers were asked for.
    """

    __slots__ = ("_calls", "_each", "shape")

    what: ClassVar[str] = "chat completion"

    def __init__(self, provider: str, *, secret: str | None = None, answers: int = 1) -> None:
        super().__init__(provider, secret=secret)
        self._calls: ToolCallNumbers | None = None
        self._each: Sequence[ChatDecoder] | None = None
        self.shape = SHAPE if answers == 1 else SHAPE_OF_SEVERAL
        if answers > 1:
            self._each = self.answers = [
                ChatDecoder(provider, secret=secret) for _ in range(answers)
            ]

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads one event and returns the piece of the answer in it, if there is one.

        Raises:
            UpstreamProtocolError: The event is no chunk.
            OrchestratorError: The event is an error, by its kind.
        """
        if self.done:
            return None
        self.events += 1
        if event.event == b"error":
            failure = self.failure(event.data)
            raise failure
        # No chunk is so short; asking the length first saves a copy per token.
        if len(event.data) < SHORTEST_CHUNK:
            text = event.data.strip()
            self.done = text == DONE
            if self.done or not text:
                return None
        return self._take_chunk(event.data)

    def take_whole(self, body: bytes) -> TokenChunk | None:
        """Reads an answer that came at once, as one JSON object, though a stream was asked for.

        Raises:
            UpstreamProtocolError: It is no answer.
            OrchestratorError: It is an error, by its kind.
        """
        # Gemini's compatible endpoint puts its errors into a list
        if body.lstrip()[:1] == b"[" and b'"error"' in body:
            failure = self.failure(body)
            raise failure
        self.done = True
        return self._take_chunk(body)

    def _take_chunk(self, data: bytes) -> TokenChunk | None:
        try:
            chunk = _chunks.decode(data)
        except NOT_JSON as error:
            chunk = self.mended(_chunks, data, error, self.what)
        failed = chunk.error is not None or chunk.kind == "error"
        if failed:
            failure = self.failure(data)
            raise failure
        if chunk.usage is not None:
            self._count(chunk.usage)
        if chunk.x_groq is not None:
            if chunk.x_groq.error is not None:
                failure = self.failure(msgspec.json.encode({"error": chunk.x_groq.error}))
                raise failure
            self._count(chunk.x_groq.usage)
        if chunk.choices is None:
            return None
        if self._each is not None:
            return self._take_each(self._each, chunk.choices)
        for choice in chunk.choices:
            if not choice.index:
                return self.take_choice(choice)
        return None

    def _take_each(
        self, readers: Sequence["ChatDecoder"], choices: Sequence[_Choice]
    ) -> TokenChunk | None:
        found: list[tuple[int, TokenChunk | None]] = []
        for choice in choices:
            index = choice.index or 0
            if 0 <= index < len(readers):
                if choice.usage is not None:
                    self._count(choice.usage)
                reader = readers[index]
                reader.begun = True
                found.append((index, reader.take_choice(choice)))
        return self.gather(found)

    def take_choice(self, choice: _Choice) -> TokenChunk | None:
        """Reads what one event brings of one answer.

        Raises:
            UpstreamProtocolError: It is no piece of an answer.
            OrchestratorError: It says that the answer broke off.
        """
        if choice.usage is not None:
            self._count(choice.usage)
        if choice.finish_reason:
            self._finish(choice.finish_reason)
            told = choice.stop_reason or choice.matched_stop
            self.stop = told if isinstance(told, str) else None
        delta = choice.message if choice.delta is None else choice.delta
        if not delta:
            return self._take_fields(None, {}, choice.logprobs) if choice.logprobs else None
        content = delta.pop("content", None)
        delta.pop("role", None)
        if delta or choice.logprobs is not None or not isinstance(content, str):
            return self._take_fields(content, delta, choice.logprobs)
        if not content:
            return None
        self.tokens += 1
        return TokenChunk(content)

    def _take_fields(
        self, content: object, delta: dict[str, object], logprobs: object
    ) -> TokenChunk | None:
        if isinstance(content, list):
            content, delta["content"] = _parts(cast("list[object]", content))
        if content is not None and not isinstance(content, str):
            raise self._no_delta("content", content)
        text = content or ""
        if delta.get("tool_calls"):
            delta["tool_calls"] = self._number(delta["tool_calls"])
        fields = {name: value for name, value in delta.items() if value is not None}
        tokens = 1
        if logprobs:
            fields["logprobs"] = logprobs
            tokens = max(1, _length(object_in(logprobs).get("content")))
        if not text and not any(fields.values()):
            return None
        self.tokens += tokens
        return TokenChunk(text, tokens, fields or None)

    def _number(self, told: object) -> list[dict[str, object]]:
        """Numbers the pieces of tool calls.

        Raises:
            UpstreamProtocolError: They are none.
        """
        pieces = cast("list[object]", told) if isinstance(told, list) else []
        if not pieces or not all(isinstance(piece, dict) for piece in pieces):
            raise self._no_delta("tool_calls", cast("object", told))
        if self._calls is None:
            self._calls = ToolCallNumbers()
        return self._calls.number(cast("list[dict[str, object]]", pieces))

    def _no_delta(self, member: str, value: object) -> UpstreamProtocolError:
        return self.no_answer(
            "delta of a chat completion",
            msgspec.json.encode(value),
            TypeError(f"`{member}` of type {type(value).__name__}"),
        )

    def _finish(self, reason: str) -> None:
        if reason in BROKEN_FINISHES:
            broken = self.broke_off(reason, BROKEN_FINISHES[reason])
            raise broken
        self.finish_reason = FINISHES.get(reason.lower(), FinishReason.STOP)

    def _count(self, told: object) -> None:
        try:
            usage = msgspec.convert(told, _Usage)
        except msgspec.ValidationError:
            return  # a usage in a shape of its own is no reason to lose an answer
        details, spent = usage.prompt_tokens_details, usage.completion_tokens_details
        self.count(
            Usage(
                prompt_tokens=counted(usage.prompt_tokens),
                completion_tokens=counted(usage.completion_tokens),
                cached_tokens=counted(details and details.cached_tokens)
                or counted(usage.prompt_cache_hit_tokens),
                reasoning_tokens=counted(spent and spent.reasoning_tokens),
            )
        )


def _parts(content: list[object]) -> tuple[str, list[object] | None]:
    """Splits Mistral's list of parts into its text and what isn't text (its thinking)."""
    texts: list[str] = []
    others: list[object] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                others.append(part)
    return "".join(texts), others or None


def _length(value: object) -> int:
    return len(cast("list[object]", value)) if isinstance(value, list) else 0
