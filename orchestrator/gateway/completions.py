"""`POST /v1/completions`, OpenAI's older API for a prompt alone.

The prompt is asked as a user's message: models that chat are all that providers still offer. One
prompt to a request; `suffix` and prompts of tokens are refused. As with OpenAI an answer has 16
tokens unless the request says otherwise.
"""

from collections.abc import Sequence

import msgspec

from orchestrator.channel import Channel
from orchestrator.errors import InvalidRequestError, OrchestratorError
from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.api import Api, Call, StreamWriter
from orchestrator.gateway.chat import now
from orchestrator.gateway.chat_request import StreamOptions
from orchestrator.gateway.chunks import DONE, usage_object
from orchestrator.gateway.failure import failure_event
from orchestrator.gateway.members import (
    TIMEOUT_HEADER,
    Anything,
    Members,
    check_bounds,
    members,
    shorter,
)
from orchestrator.gateway.visit import Visit
from orchestrator.request import Message, Priority, PriorityRequest, SamplingParams
from orchestrator.runners.remote.pace import in_one_step
from orchestrator.runners.remote.translation import list_in, object_in

DEFAULT_TOKENS = 16
MAX_LOGPROBS = 20
_encode = msgspec.json.Encoder().encode
Object = dict[str, object]


class CompletionRequest(msgspec.Struct, kw_only=True):
    """The fields that mean something here; all others are passed on."""

    model: str
    prompt: str | list[Anything]
    suffix: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: str | None = None
    """`background`, `normal`, `high` or `critical`; an extension."""
    deadline: float | None = None
    """Seconds for everything, waiting included; an extension."""


def read(body: Members, visit: Visit) -> Call:
    """Reads a body.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = members(body, CompletionRequest)
    check_bounds(given.model, extra)
    prompt = _prompt(given)
    if given.stream_options is not None and not given.stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
    stop = given.stop or ()
    request = PriorityRequest(
        request_id=visit.request_id,
        model=given.model,
        messages=[Message("user", prompt)],
        sampling=SamplingParams(
            temperature=given.temperature,
            top_p=given.top_p,
            max_tokens=DEFAULT_TOKENS if given.max_tokens is None else given.max_tokens,
            seed=given.seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            presence_penalty=given.presence_penalty,
            frequency_penalty=given.frequency_penalty,
            n=1 if given.n is None else given.n,
        ),
        channel=Channel(held=not given.stream),
        timeout=shorter(given.deadline, visit.header(TIMEOUT_HEADER)),
        priority=Priority.NORMAL if given.priority is None else Priority.of(given.priority),
        extra={**extra, **_logprobs(given.logprobs)},
    )
    head: Object = {
        "id": f"cmpl-{visit.request_id}",
        "object": "text_completion",
        "created": now(),
        "model": given.model,
    }
    echo = prompt if given.echo else ""
    options = given.stream_options
    usage = options is not None and bool(options.include_usage)

    def stream() -> StreamWriter:
        return TextWriter(head, echo=echo, include_usage=usage)

    def whole(chunks: Sequence[TokenChunk], finished: Finished) -> bytes:
        return _whole(head, echo, chunks, finished)

    return Call(request=request, stream=stream if given.stream else None, whole=whole)


def _prompt(given: CompletionRequest) -> str:
    """Returns the prompt, once it is known that its fields can be honoured.

    Raises:
        InvalidRequestError: They can't.
    """
    if given.suffix:
        raise InvalidRequestError("suffix: nothing can be written before a text", param="suffix")
    if given.best_of not in {None, given.n or 1}:
        raise InvalidRequestError(
            "best_of: all answers are given, so it must be n", param="best_of"
        )
    prompt = given.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0]
    if not isinstance(prompt, str):
        raise InvalidRequestError(
            "prompt must be one text; tokens and several prompts are not taken", param="prompt"
        )
    return prompt


def _logprobs(wanted: int | None) -> Object:
    if wanted is None:
        return {}
    if not 0 <= wanted <= MAX_LOGPROBS:
        raise InvalidRequestError(f"logprobs must be from 0 to {MAX_LOGPROBS}", param="logprobs")
    return {"logprobs": True, "top_logprobs": wanted}


def _old_logprobs(fields: Sequence[object], offset: int) -> Object | None:
    """Log probabilities in the older shape: a list for each member, and where each token begins."""
    tokens = [
        object_in(token)
        for told in fields
        for token in list_in(object_in(object_in(told).get("logprobs")).get("content"))
    ]
    if not tokens:
        return None
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(str(token.get("token", "")))
    return {
        "tokens": [token.get("token") for token in tokens],
        "token_logprobs": [token.get("logprob") for token in tokens],
        "top_logprobs": [
            {
                str(object_in(other).get("token")): object_in(other).get("logprob")
                for other in list_in(token.get("top_logprobs"))
            }
            for token in tokens
        ],
        "text_offset": offsets,
    }


def _whole(head: Object, echo: str, chunks: Sequence[TokenChunk], finished: Finished) -> bytes:
    choices: list[Object] = []
    for index, reason in enumerate(finished.finish_reasons):
        own = [chunk for chunk in chunks if chunk.index == index]
        choices.append(
            {
                "index": index,
                "text": echo + "".join(chunk.text for chunk in own),
                "logprobs": _old_logprobs([chunk.fields for chunk in own], len(echo)),
                "finish_reason": reason.value,
            }
        )
    return _encode({**head, "choices": choices, "usage": usage_object(finished.usage)})


class TextWriter:
    """Writes one completion as a stream.

    Args:
        head: The members of every chunk.
        echo: What comes before each answer.
        include_usage: Whether a last chunk tells the usage.
    """

    __slots__ = ("_before", "_echo", "_include_usage", "_lengths", "_tail")

    def __init__(self, head: Object, *, echo: str, include_usage: bool) -> None:
        self._before = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._echo = echo
        self._include_usage = include_usage
        self._lengths: dict[int, int] = {}
        """Characters of each answer so far."""

    def write(self, chunks: Sequence[TokenChunk]) -> bytes:
        """All chunks, as one piece of the stream."""
        return b"".join(self._chunk(chunk) for chunk in chunks)

    def finish(self, finished: Finished) -> bytes:
        """The end of an answer that is complete."""
        parts: list[bytes] = []
        for index, reason in enumerate(finished.finish_reasons):
            text = "" if index in self._lengths else self._echo
            parts.append(self._choice(index, text, None, reason.value))
        if self._include_usage:
            usage = _encode(usage_object(finished.usage))
            parts += (self._before, b'],"usage":', usage, b"}\n\n")
        return b"".join((*parts, DONE))

    def fail(self, error: OrchestratorError) -> bytes:
        """The end of an answer that broke off: one event, and no `[DONE]`."""
        return failure_event(error)

    def _chunk(self, chunk: TokenChunk) -> bytes:
        echo = "" if chunk.index in self._lengths else self._echo
        offset = self._lengths.get(chunk.index, len(self._echo))
        self._lengths[chunk.index] = offset + len(chunk.text)
        logprobs = None if chunk.fields is None else _old_logprobs([chunk.fields], offset)
        return self._choice(chunk.index, echo + chunk.text, logprobs, None)

    def _choice(self, index: int, text: str, logprobs: Object | None, reason: str | None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._before + _encode(choice) + self._tail


COMPLETIONS = Api(
    path="/v1/completions",
    summary="Go on from a prompt",
    body=CompletionRequest,
    read=in_one_step(read),
)
