"""The `openai-responses` runner: OpenAI's Responses API, read as the deltas of a chat completion.

Rules:
    1. `response.completed` and `response.incomplete` are finish reason and end marker at once;
       `response.failed` and `error` are errors. Nothing else ends an answer.
    2. Only deltas carry the answer. A `done` event repeats it and counts only where no delta came
       before, as with servers that send the arguments of a call whole.
    3. Events and items that have no place in a chat completion are ignored.
"""

import re
from functools import partial
from typing import ClassVar, cast

import httpx
import msgspec

from orchestrator.errors import (
    ContentFilteredError,
    InvalidRequestError,
    UpstreamTimeoutError,
)
from orchestrator.events import FinishReason, TokenChunk, Usage
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.classify import NOT_JSON, Refusals
from orchestrator.runners.remote.answer import Answer, counted
from orchestrator.runners.remote.asking import Asking
from orchestrator.runners.remote.large_shape import Shape, counts, others
from orchestrator.runners.remote.openai_request import OpenAISettings, own_headers
from orchestrator.runners.remote.provider import Dialect, slots_of
from orchestrator.runners.remote.responses_request import payload
from orchestrator.runners.remote.settings import address
from orchestrator.runners.remote.sse import ServerSentEvent

DONE = b"[DONE]"

REFUSALS = Refusals(
    codes={
        "bio_policy": ContentFilteredError,
        "image_content_policy_violation": ContentFilteredError,
        "misalignment_policy_violation": ContentFilteredError,
        "vector_store_timeout": UpstreamTimeoutError,
        **dict.fromkeys(
            (
                "empty_image_file",
                "failed_to_download_image",
                "image_file_not_found",
                "image_file_too_large",
                "image_parse_error",
                "image_too_large",
                "image_too_small",
                "invalid_base64_image",
                "invalid_image",
                "invalid_image_format",
                "invalid_image_mode",
                "invalid_image_url",
                "unsupported_image_media_type",
            ),
            InvalidRequestError,
        ),
    }
)
"""What an image or a policy has to do with it; each comes within a stream, without a status."""

REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")

_ITEM = r"(?:item|(?:response\.)?output)"
_PARTS = rf"{_ITEM}\.(?:content|summary)"

SHAPE = Shape(
    several=re.compile(rf"delta|logprobs|(?:response\.)?output|{_PARTS}"),
    anything=re.compile(
        "|".join(
            (
                others(
                    "",
                    *("type", "delta", "output_index", "arguments", "item", "logprobs"),
                    *("annotation", "response", "output", "status", "incomplete_details", "usage"),
                ),
                r"logprobs(?:\..+)?|annotation\..+",
                others("response", "status", "output", "incomplete_details", "usage"),
                others(_ITEM, "type", "call_id", "name", "arguments", "content", "summary"),
                others(_PARTS, "type", "text", "refusal"),
                *counts(r"(?:response\.)?usage"),
                others(r"(?:response\.)?incomplete_details", "reason"),
            )
        )
    ),
    names=("type", "output_index"),
)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _Reason(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[_Item] | None = None
    incomplete_details: _Reason | None = None
    usage: object = None
    error: object = None


class _Event(msgspec.Struct):
    type: str | None = None
    delta: object = None
    output_index: int | None = None
    arguments: str | None = None
    item: _Item | None = None
    logprobs: list[object] | None = None
    annotation: dict[str, object] | None = None
    response: _Response | None = None
    error: object = None


_events = msgspec.json.Decoder(_Event)
_wholes = msgspec.json.Decoder(_Response)


class ResponsesDecoder(Answer):
    """Reads one answer."""

    __slots__ = ("_calls", "_told")

    what: ClassVar[str] = "event of a response"
    shape = SHAPE

    def __init__(self, provider: str, *, secret: str | None = None) -> None:
        """Args as of `Answer`."""
        super().__init__(provider, secret=secret, own=REFUSALS)
        self._calls: dict[int | None, int] = {}
        """Our number of a call by the place of its item in the output."""
        self._told: set[int] = set()
        """Calls of whose arguments something came."""

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads one event and returns the piece of the answer in it, if there is one.

        Raises:
            UpstreamProtocolError: The event is none of this API's.
            OrchestratorError: The event is an error, by its kind.
        """
        if self.done:
            return None
        self.events += 1
        if event.event == b"error":
            failure = self.failure(event.data)
            raise failure
        if len(event.data) < len(b'{"type":""}'):
            self.done = event.data.strip() == DONE
            if self.done or not event.data.strip():
                return None
        try:
            found = _events.decode(event.data)
        except NOT_JSON as error:
            found = self.mended(_events, event.data, error, self.what)
        return self._take(found, event.data)

    def take_whole(self, body: bytes) -> TokenChunk | None:
        """Reads an answer that came at once, as one JSON object, though a stream was asked for.

        Raises:
            UpstreamProtocolError: It is no answer.
            OrchestratorError: It is an error, by its kind.
        """
        try:
            response = _wholes.decode(body)
        except NOT_JSON as error:
            response = self.mended(_wholes, body, error, "response")
        if response.error is not None or response.status in ("failed", "cancelled"):
            failure = self.failure(body)
            raise failure
        chunk = self._take_items(response.output or [])
        if response.status is not None:
            self._finish(response)
        return chunk

    def _take(self, found: _Event, data: bytes) -> TokenChunk | None:
        match found.type:
            case "response.output_text.delta":
                return self._take_text(found)
            case "response.refusal.delta":
                return self._piece({"refusal": self._text(found)})
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self._piece({"reasoning_content": self._text(found)})
            case "response.output_item.added" | "response.output_item.done":
                return self._take_item(found)
            case "response.function_call_arguments.delta":
                return self._take_arguments(found.output_index, self._text(found))
            case "response.function_call_arguments.done":
                return self._take_rest(found.output_index, found.arguments)
            case "response.output_text.annotation.added":
                return self._piece({"annotations": _annotations(found.annotation)})
            case "response.completed" | "response.incomplete":
                self._finish(found.response or _Response(status=found.type.rpartition(".")[2]))
                return None
            case "response.failed" | "error":
                failure = self._failed(data)
                raise failure
            case _:
                if found.error is not None:
                    failure = self.failure(data)
                    raise failure
                return None

    def _failed(self, data: bytes) -> Exception:
        # response.failed has its error one level deeper than all others
        failed = cast("object", msgspec.json.decode(data))
        response = cast("dict[str, object]", failed).get("response")
        return self.failure(msgspec.json.encode(response) if isinstance(response, dict) else data)

    def _take_text(self, found: _Event) -> TokenChunk | None:
        text = self._text(found)
        if not text and not found.logprobs:
            return None
        if not found.logprobs:
            self.tokens += 1
            return TokenChunk(text or "")
        self.tokens += len(found.logprobs)
        logprobs = {"content": found.logprobs, "refusal": None}
        return TokenChunk(text or "", len(found.logprobs), {"logprobs": logprobs})

    def _text(self, found: _Event) -> str | None:
        """Returns the text of a delta.

        Raises:
            UpstreamProtocolError: It is none.
        """
        if found.delta is None or isinstance(found.delta, str):
            return found.delta
        mistake = TypeError(f"`delta` of type {type(found.delta).__name__}")
        broken = self.no_answer("delta of a response", msgspec.json.encode(found.delta), mistake)
        raise broken

    def _take_item(self, found: _Event) -> TokenChunk | None:
        item = found.item
        if item is None or item.type != "function_call":
            return None
        if found.output_index in self._calls:
            return self._take_rest(found.output_index, item.arguments)
        return self._piece({"tool_calls": [self._begun(found.output_index, item)]})

    def _begun(self, place: int | None, item: _Item) -> dict[str, object]:
        number = self._calls[place] = len(self._calls)
        if item.arguments:
            self._told.add(number)
        return {
            "index": number,
            "id": item.call_id,
            "type": "function",
            "function": {"name": item.name, "arguments": item.arguments or ""},
        }

    def _take_arguments(self, place: int | None, arguments: str | None) -> TokenChunk | None:
        number = self._calls.get(place)
        if number is None or not arguments:
            return None
        self._told.add(number)
        return self._piece(
            {"tool_calls": [{"index": number, "function": {"arguments": arguments}}]}
        )

    def _take_rest(self, place: int | None, arguments: str | None) -> TokenChunk | None:
        told = self._calls.get(place) in self._told
        return None if told else self._take_arguments(place, arguments)

    def _take_items(self, items: list[_Item]) -> TokenChunk | None:
        texts: dict[str, str] = {"text": "", "refusal": "", "reasoning_content": ""}
        calls: list[object] = []
        for item in items:
            for part in item.content or []:
                member = "reasoning_content" if item.type == "reasoning" else "text"
                texts[member] += part.text or ""
                texts["refusal"] += part.refusal or ""
            for part in item.summary or []:
                texts["reasoning_content"] += part.text or ""
            if item.type == "function_call":
                calls.append(self._begun(len(self._calls), item))
        text = texts.pop("text")
        fields: dict[str, object] = {name: value for name, value in texts.items() if value}
        if calls:
            fields["tool_calls"] = calls
        if not text and not fields:
            return None
        self.tokens += 1
        return TokenChunk(text, 1, fields or None)

    def _piece(self, fields: dict[str, object]) -> TokenChunk | None:
        if not any(fields.values()):
            return None
        self.tokens += 1
        return TokenChunk("", 1, fields)

    def _finish(self, response: _Response) -> None:
        self._count(response.usage)
        match response.status, response.incomplete_details:
            case "completed", _:
                self.finish_reason = FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP
            case "incomplete", _Reason(reason="content_filter"):
                self.finish_reason = FinishReason.CONTENT_FILTER
            case "incomplete", _:
                self.finish_reason = FinishReason.LENGTH
            case _:
                return
        self.done = True

    def _count(self, told: object) -> None:
        try:
            usage = msgspec.convert(told, _Usage)
        except msgspec.ValidationError:
            return  # a usage in a shape of its own is no reason to lose an answer
        details, spent = usage.input_tokens_details, usage.output_tokens_details
        self.count(
            Usage(
                prompt_tokens=counted(usage.input_tokens),
                completion_tokens=counted(usage.output_tokens),
                cached_tokens=counted(details and details.cached_tokens),
                reasoning_tokens=counted(spent and spent.reasoning_tokens),
            )
        )


def _annotations(annotation: dict[str, object] | None) -> list[object]:
    """A chat completion has what an annotation says under the annotation's own type."""
    if annotation is None:
        return []
    kind = str(annotation.pop("type", "annotation"))
    return [{"type": kind, kind: annotation}]


def factory(
    settings: OpenAISettings, transport: httpx.AsyncBaseTransport | None = None
) -> SlotFactory:
    """Returns what makes the slots of one deployment; they share one pool of connections.

    Args:
        settings: Of the deployment.
        transport: In place of the usual one; closed with the factory.

    Raises:
        ConfigError: `base_url`, `headers` or `ca_file` can't be used.
    """
    url = address(settings.base_url, "/responses")
    ask = Asking(settings, url, partial(own_headers, settings), partial(payload, settings))
    dialect = Dialect(
        settings=settings,
        host=url.host,
        ask=ask,
        read=lambda _, secret: ResponsesDecoder(settings.provider, secret=secret),
        refusals=REFUSALS,
    )
    return slots_of(dialect, ask.inspect, transport)
