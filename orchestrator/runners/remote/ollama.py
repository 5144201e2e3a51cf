"""The `ollama` runner: Ollama's own chat API, one JSON object a line.

Rules:
    1. `done: true` is finish reason and end marker at once, and brings the counts.
    2. A line with an `error` is one, wherever it stands.
    3. A tool call comes whole and often without an id; it gets one, and its arguments, an object
       there, become the text that they are in a chat completion.
"""

import re
import uuid
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import httpx
import msgspec

from orchestrator.events import FinishReason, TokenChunk, Usage
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.answer import Answer, counted
from orchestrator.runners.remote.asking import Asking
from orchestrator.runners.remote.large_shape import Shape, others
from orchestrator.runners.remote.lines import LineDecoder
from orchestrator.runners.remote.ollama_request import payload
from orchestrator.runners.remote.provider import Dialect, slots_of
from orchestrator.runners.remote.settings import RemoteSettings, address
from orchestrator.runners.remote.sse import ServerSentEvent

_CALL = r"message\.tool_calls"

SHAPE = Shape(
    several=re.compile(r"logprobs|message\.(?:content|thinking|tool_calls)"),
    anything=re.compile(
        "|".join(
            (
                others(
                    "",
                    *("message", "done", "done_reason", "prompt_eval_count", "eval_count"),
                    "logprobs",
                ),
                r"logprobs\..+",
                others("message", "content", "thinking", "tool_calls"),
                others(_CALL, "function", "id"),
                others(rf"{_CALL}\.function", "name"),
            )
        )
    ),
    written=True,
)

LENGTH_REASONS = ("length", "limit")


class _Function(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[_Call] | None = None


class _Line(msgspec.Struct):
    message: _Message | None = None
    done: bool | None = None
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    logprobs: list[object] | None = None
    error: object = None


_lines = msgspec.json.Decoder(_Line)


def made_id() -> str:
    """Returns the id of a call that came without one."""
    return f"call_{uuid.uuid4().hex}"


class OllamaDecoder(Answer):
    """Reads one answer.

    Args:
        provider: The name for people.
        secret: The key that was sent, masked wherever the server repeats it.
        new_id: Makes the id of a call that came without one.
    """

    __slots__ = ("_calls", "_new_id")

    what: ClassVar[str] = "line of an answer"
    shape = SHAPE

    def __init__(
        self, provider: str, *, secret: str | None = None, new_id: Callable[[], str] = made_id
    ) -> None:
        super().__init__(provider, secret=secret)
        self._calls = 0
        self._new_id = new_id

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads one line and returns the piece of the answer in it, if there is one.

        Raises:
            UpstreamProtocolError: The line is none of this API's.
            OrchestratorError: The line is an error, by its kind.
        """
        if self.done:
            return None
        self.events += 1
        try:
            line = _lines.decode(event.data)
        except NOT_JSON as error:
            line = self.mended(_lines, event.data, error, self.what)
        try:
            calls = [_arguments(call) for call in (line.message and line.message.tool_calls) or ()]
        except NOT_JSON as error:
            unreadable = self.no_answer(self.what, event.data, error)
            raise unreadable from error
        if line.error is not None:
            failure = self.failure(event.data)
            raise failure
        chunk = self._take(line.message, calls, line.logprobs)
        if line.done:
            self._finish(line)
        return chunk

    def take_whole(self, body: bytes) -> TokenChunk | None:
        """Reads a body that doesn't begin like a line: a page of HTML, or a list.

        Raises:
            UpstreamProtocolError: Always, unless it is an error.
            OrchestratorError: It is an error, by its kind.
        """
        return self.take(ServerSentEvent(body))

    def _take(
        self, message: _Message | None, arguments: list[str], logprobs: list[object] | None
    ) -> TokenChunk | None:
        fields: dict[str, object] = {}
        if message is not None and message.thinking:
            fields["reasoning_content"] = message.thinking
        if message is not None and message.tool_calls:
            fields["tool_calls"] = list(map(self._called, message.tool_calls, arguments))
        text = (message and message.content) or ""
        if not text and not fields and not logprobs:
            return None
        tokens = 1
        if logprobs:
            fields["logprobs"] = {"content": logprobs, "refusal": None}
            tokens = len(logprobs)
        self.tokens += tokens
        return TokenChunk(text, tokens, fields or None)

    def _called(self, call: _Call, arguments: str) -> dict[str, object]:
        number = self._calls
        self._calls += 1
        return {
            "index": number,
            "id": call.id or self._new_id(),
            "type": "function",
            "function": {"name": call.function.name, "arguments": arguments},
        }

    def _finish(self, line: _Line) -> None:
        self.done = True
        if line.done_reason in LENGTH_REASONS:
            self.finish_reason = FinishReason.LENGTH
        else:
            self.finish_reason = FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP
        self.count(
            Usage(
                prompt_tokens=counted(line.prompt_eval_count),
                completion_tokens=counted(line.eval_count),
            )
        )


def _arguments(call: _Call) -> str:
    """The arguments' JSON as it came, for its numbers and their order are nobody's to change."""
    arguments = bytes(call.function.arguments).decode()  # nobody has looked at its UTF-8 yet
    if arguments == "null":
        return "{}"
    # some servers in Ollama's place send the text of an object, as OpenAI does
    return msgspec.json.decode(arguments, type=str) if arguments[:1] == '"' else arguments


def own_headers(secret: str | None) -> dict[str, str]:
    """Returns the headers by which Ollama knows its caller, if it wants to."""
    own = {"accept": "application/x-ndjson"}
    return own if secret is None else {**own, "authorization": f"Bearer {secret}"}


def factory(
    settings: RemoteSettings, transport: httpx.AsyncBaseTransport | None = None
) -> SlotFactory:
    """Returns what makes the slots of one deployment; they share one pool of connections.

    Args:
        settings: Of the deployment.
        transport: In place of the usual one; closed with the factory.

    Raises:
        ConfigError: `base_url`, `headers` or `ca_file` can't be used.
    """
    url = address(settings.base_url, "/api/chat")
    ask = Asking(settings, url, own_headers, partial(payload, settings))
    dialect = Dialect(
        settings=settings,
        host=url.host,
        ask=ask,
        read=lambda _, secret: OllamaDecoder(settings.provider, secret=secret),
        framing=LineDecoder,
        no_events=(b"<", b"["),
        models="/api/tags",
    )
    return slots_of(dialect, ask.inspect, transport)
