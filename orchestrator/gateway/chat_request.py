"""A chat completion as it comes over HTTP, read into a `PriorityRequest`.

What this program doesn't know goes into `request.extra` untouched: a provider may know it, and a
runner that doesn't refuses it by name.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from orchestrator.channel import Channel
from orchestrator.errors import InvalidRequestError
from orchestrator.gateway.members import (
    Anything,
    Members,
    check_bounds,
    check_messages,
    members,
    shorter,
    turns,
)
from orchestrator.request import (
    ROLES,
    Message,
    Priority,
    PriorityRequest,
    SamplingParams,
    message_from,
)
from orchestrator.runners.remote.pace import Steps


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is told, besides its text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """OpenAI's padding against guesses from the length of packets, which is never added here."""


class ChatCompletionRequest(msgspec.Struct, kw_only=True):
    """The fields that mean something here; all others are passed on."""

    model: str
    messages: Annotated[list[dict[str, Anything]], msgspec.Meta(extra_json_schema=turns(*ROLES))]
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: str | None = None
    """`background`, `normal`, `high` or `critical`; an extension."""
    deadline: float | None = None
    """Seconds for everything, waiting included; an extension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """What is asked, and how it is to be answered."""

    request: PriorityRequest
    stream: bool
    include_usage: bool


def read_call(body: Members, request_id: str, timeout: str | None = None) -> Steps[ChatCall]:
    """Reads a body in OpenAI's shape.

    Args:
        body: Its members, decoded.
        request_id: For logs and headers.
        timeout: The header `x-request-timeout`, seconds; the shorter of it and `deadline` counts.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = members(body, ChatCompletionRequest)
    check_bounds(given.model, extra)
    yield from check_messages(given.messages)
    stream = bool(given.stream)
    if given.stream_options is not None and not stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
    messages: list[Message] = []
    for index, message in enumerate(given.messages):
        messages.append(message_from(message, index))
        yield
    request = PriorityRequest(
        request_id=request_id,
        model=given.model,
        messages=messages,
        sampling=_sampling(given),
        channel=Channel(held=not stream),
        timeout=shorter(given.deadline, timeout),
        priority=Priority.NORMAL if given.priority is None else Priority.of(given.priority),
        priority_named=given.priority is not None,
        extra=extra,
    )
    usage = given.stream_options is not None and bool(given.stream_options.include_usage)
    return ChatCall(request=request, stream=stream, include_usage=usage)


def _sampling(given: ChatCompletionRequest) -> SamplingParams:
    name, longest = "max_tokens", given.max_tokens
    if given.max_completion_tokens is not None:
        if longest is not None and longest != given.max_completion_tokens:
            raise InvalidRequestError(
                "max_tokens and max_completion_tokens disagree; send one of them",
                param="max_tokens",
            )
        name, longest = "max_completion_tokens", given.max_completion_tokens
    if longest is not None and not 1 <= longest < 2**31:
        raise InvalidRequestError(f"{name} must be from 1 to {2**31 - 1}", param=name)
    stop = given.stop or ()
    return SamplingParams(
        temperature=given.temperature,
        top_p=given.top_p,
        max_tokens=longest,
        seed=given.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        n=1 if given.n is None else given.n,
    )
