"""What a local model can be asked, decided before a request is queued.

A field that can't be honoured is refused by name, never ignored; a field whose value asks for what
happens anyway is let through.
"""

from collections.abc import Mapping, Sequence

from orchestrator.errors import ContextLengthExceededError, InvalidRequestError
from orchestrator.request import Message, PriorityRequest
from orchestrator.runners.torch import tools
from orchestrator.runners.torch.tools import calls_of, tools_of
from orchestrator.runners.torch.wire import Ready, Turn
from orchestrator.runners.torch.wishes import FIELDS, wishes_of

ROLES = ("system", "developer", "user", "assistant", "tool")
OLD_FIELDS = ("functions", "function_call")
TOOL_FIELDS = {"assistant": ("tool_calls",), "tool": ("tool_call_id",)}
"""Members of a message that are about tools, by its role."""
UNHEARD = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier")
"""Fields of the body for the provider's bookkeeping; the answer doesn't depend on them."""
MOST_ANSWERS = 16
NEUTRAL: Mapping[str, Sequence[object]] = {
    "n": (1,),
    "modalities": (["text"],),
}
"""Values that ask for nothing."""

TEMPLATE_BYTES = 512
MESSAGE_BYTES = 32
"""Room for what a chat template adds to a prompt, and to each message of it."""


def to_wire(request: PriorityRequest) -> list[Turn]:
    """Returns the messages as the host takes them.

    Raises:
        InvalidRequestError: A field asks for what a local model can't do; `param` names it.
    """
    if request.sampling.n > MOST_ANSWERS:
        text = f"n must be at most {MOST_ANSWERS}: this model gives no more answers at once"
        raise InvalidRequestError(text, param="n")
    wishes_of(request.extra)
    tools_of(request)
    for name, value in request.extra.items():
        if name not in FIELDS and name not in tools.FIELDS:
            _check_field(name, value)
    return [_message(index, message) for index, message in enumerate(request.messages)]


def may_exceed(messages: Sequence[Turn], max_tokens: int | None, facts: Ready) -> bool:
    """Whether prompt and answer could be longer than the context, so that counting is needed.

    A token stands for at least one byte, so a prompt with few bytes needs no counting.

    Raises:
        ContextLengthExceededError: No tokenizer could make the prompt short enough.
    """
    size = sum(len(str(message["content"]).encode()) for message in messages)
    least = -(-size // facts.longest_token)
    if least + (max_tokens or 1) > facts.context_length:
        raise ContextLengthExceededError(
            f"the prompt's {size} bytes are at least {least} tokens; with "
            f"{'an answer' if max_tokens is None else f'max_tokens {max_tokens}'} they don't fit "
            f"into the model's context of {facts.context_length} tokens",
            param="messages",
        )
    most = size + TEMPLATE_BYTES + MESSAGE_BYTES * len(messages)
    return most + (max_tokens or 1) > facts.context_length


def _check_field(name: str, value: object) -> None:
    if value is None or name in UNHEARD or value in NEUTRAL.get(name, ()):
        return
    if name in OLD_FIELDS:
        raise InvalidRequestError(f"{name}: this model takes tools instead", param=name)
    if name in NEUTRAL:
        raise InvalidRequestError(f"{name}: this model can't do that", param=name)
    raise InvalidRequestError(f"{name}: this model doesn't know the field", param=name)


def _message(index: int, message: Message) -> Turn:
    place = f"messages[{index}]"
    for name, value in message.fields.items():
        if value is None or name == "name" or name in TOOL_FIELDS.get(message.role, ()):
            continue  # clients send an answer back with all its empty members
        param = f"{place}.{name}"
        raise InvalidRequestError(f"{param}: this model doesn't know the field", param=param)
    if message.role not in ROLES:
        allowed = ", ".join(ROLES)
        param = f"{place}.role"
        raise InvalidRequestError(
            f"{param} {message.role!r}: this model takes {allowed}", param=param
        )
    # chat templates know the older name only
    role = "system" if message.role == "developer" else message.role
    turn: Turn = {"role": role, "content": _text(f"{place}.content", message)}
    if calls := calls_of(place, message):
        turn["tool_calls"] = calls
    if message.role == "tool":
        turn |= {name: message.fields.get(name) for name in ("name", "tool_call_id")}
    return turn


def _text(place: str, message: Message) -> str:
    if message.content is None and message.role != "assistant":
        raise InvalidRequestError(f"{place} must be text", param=place)
    if message.content is None or isinstance(message.content, str):
        return _clean(place, message.text)
    for index, part in enumerate(message.content):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            param = f"{place}[{index}]"
            kind = part.get("type")
            raise InvalidRequestError(
                f"{param} is of type {kind!r}; this model takes text parts only", param=param
            )
    return _clean(place, message.text)


def _clean(place: str, text: str) -> str:
    # JSON can carry half a surrogate pair ("\ud83d"), which no encoding and no model can take
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{place} holds half a character", param=place) from error
    return text
