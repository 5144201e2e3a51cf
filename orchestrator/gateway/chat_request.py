"""A chat completion as it comes over HTTP, read into a `PriorityRequest`.

Rules:
    1. Types are strict: a number is no boolean, a text is no number, NaN is no JSON at all.
    2. Every refusal names the field.
    3. What this program doesn't know goes into `request.extra` untouched: a provider may know it,
       and a runner that doesn't refuses it by name.
    4. The loop stands still while a body is read, so what it consists of is bounded: 10 MiB of text
       are read in 10 ms, as many bytes of empty lists take five seconds.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, cast

import msgspec

from orchestrator.channel import Channel
from orchestrator.errors import InvalidRequestError
from orchestrator.request import Priority, PriorityRequest, SamplingParams, message_from

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(.+?)`")
TIMEOUT_HEADER = "x-request-timeout"
MAX_MODEL_LENGTH = 256
MAX_MESSAGES = 4096
MAX_PARTS = 4096
"""Of one message."""
MAX_ALL_PARTS = 16_384
MAX_UNKNOWN = 256
MAX_VALUES = 1 << 17
"""Values of any kind, at any depth."""
COUNTED_FROM_BYTES = 256 << 10
"""Smaller bodies are read within 100 ms whatever they consist of."""
SHOWN = 100
"""Characters of what a caller sent that an error repeats."""

Anything = Annotated[object, msgspec.Meta(extra_json_schema={"description": "Any JSON value."})]


class StreamOptions(msgspec.Struct):
    """How a stream is told, besides its text."""

    include_usage: bool | None = None


class ChatCompletionRequest(msgspec.Struct, kw_only=True):
    """The fields that mean something here; all others are passed on."""

    model: str
    messages: list[dict[str, Anything]]
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


_KNOWN = frozenset(ChatCompletionRequest.__struct_fields__)
_bodies = msgspec.json.Decoder(dict[str, object])
_named = msgspec.json.Decoder(ChatCompletionRequest)
_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
# a text without its end reaches to the body's, or each quote in it would be tried anew
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)


class _MessagesAlone(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw(b"[]")


_messages_alone = msgspec.json.Decoder(_MessagesAlone)
_items = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """What is asked, and how it is to be answered."""

    request: PriorityRequest
    stream: bool
    include_usage: bool


def read_call(body: bytes, request_id: str, timeout: str | None = None) -> ChatCall:
    """Reads a body in OpenAI's shape.

    Args:
        body: The whole body.
        request_id: For logs and headers.
        timeout: The header `x-request-timeout`, seconds; the shorter of it and `deadline` counts.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = _decode(body)
    _check_bounds(given, extra)
    stream = bool(given.stream)
    if given.n not in {None, 1}:
        raise InvalidRequestError("n must be 1: there is one answer to a request", param="n")
    if given.stream_options is not None and not stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
    request = PriorityRequest(
        request_id=request_id,
        model=given.model,
        messages=[message_from(message, index) for index, message in enumerate(given.messages)],
        sampling=_sampling(given),
        channel=Channel(held=not stream),
        timeout=_shorter(given.deadline, _seconds(timeout)),
        priority=Priority.NORMAL if given.priority is None else Priority.of(given.priority),
        extra=extra,
    )
    usage = given.stream_options is not None and bool(given.stream_options.include_usage)
    return ChatCall(request=request, stream=stream, include_usage=usage)


def _decode(body: bytes) -> tuple[ChatCompletionRequest, Mapping[str, object]]:
    try:
        if len(body) > COUNTED_FROM_BYTES and _consists_of_too_much(body):
            raise _too_much(body)
        members = _bodies.decode(body)
        given = msgspec.convert(members, ChatCompletionRequest)
    except msgspec.ValidationError as error:
        raise _wrong_type(body, error) from None
    except (msgspec.DecodeError, RecursionError) as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        if "surrogate" in text or ("truncated" in text and _HALF.search(body[-16:])):
            text = (
                "a text of it ends in half a character, a lone surrogate, so it isn't valid UTF-8"
            )
        raise InvalidRequestError(f"the body is no JSON that can be read: {text}") from None
    return given, {name: value for name, value in members.items() if name not in _KNOWN}


def _consists_of_too_much(body: bytes) -> bool:
    # each value but the first follows one of the three; a text may hold them, too
    if _marks(body) <= MAX_VALUES:
        return False
    # only as many texts are cut out as a body may have
    if body.count(b'"') - body.count(b'\\"') > 4 * MAX_VALUES:
        return True
    return _marks(_TEXT.sub(b"", body)) > MAX_VALUES


def _marks(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _too_much(body: bytes) -> InvalidRequestError:
    try:
        messages = len(_items.decode(_messages_alone.decode(body).messages))
    except msgspec.ValidationError:  # no list, and no matter with a body like this
        messages = 0
    if messages > MAX_MESSAGES:
        return _too_many_messages(messages)
    return InvalidRequestError(
        f"the body has more than {MAX_VALUES} values, those within lists and objects included"
    )


def _too_many_messages(count: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"messages has {count} messages; {MAX_MESSAGES} are the most", param="messages"
    )


def _check_bounds(given: ChatCompletionRequest, extra: Mapping[str, object]) -> None:
    if len(given.model) > MAX_MODEL_LENGTH:
        raise InvalidRequestError(
            f"model has more than {MAX_MODEL_LENGTH} characters", param="model"
        )
    if len(given.messages) > MAX_MESSAGES:
        raise _too_many_messages(len(given.messages))
    all_parts = 0
    for index, message in enumerate(given.messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        parts = len(cast("list[object]", content))
        all_parts += parts
        if parts > MAX_PARTS:
            place = f"messages[{index}].content"
            raise InvalidRequestError(
                f"{place} has {parts} parts; {MAX_PARTS} are the most", param=place
            )
    if all_parts > MAX_ALL_PARTS:
        raise InvalidRequestError(
            f"messages has {all_parts} content parts; {MAX_ALL_PARTS} are the most",
            param="messages",
        )
    if len(extra) > MAX_UNKNOWN:
        name = next(islice(extra, MAX_UNKNOWN, None))[:SHOWN]
        raise InvalidRequestError(
            f"the body has {len(extra)} fields beside those known here; {MAX_UNKNOWN} are the most,"
            f" and {name!r} is one too many",
            param=name,
        )


def _wrong_type(body: bytes, error: msgspec.ValidationError) -> InvalidRequestError:
    text = str(error)
    if "$[...]" in text:
        # without its struct msgspec can't name the field of a number that is out of range
        try:
            _named.decode(body)
        except msgspec.ValidationError as named:
            text = str(named)
    place, missing = _PLACE.search(text), _MISSING.search(text)
    path = place[1] if place else ""
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequestError(f"{path} is missing", param=path)
    what = _PLACE.sub("", text).replace("`", "").replace(" | ", " or ")
    what = what[:1].lower() + what[1:]
    return InvalidRequestError(f"{path or 'the body'}: {what}", param=path or None)


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
    )


def _seconds(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequestError(
            f"the header {TIMEOUT_HEADER} must be a number of seconds above 0",
            param=TIMEOUT_HEADER,
        )
    return seconds


def _shorter(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    # a deadline of 0 or less is refused where the request is made, so it must stay the shorter
    return min(one, other)
