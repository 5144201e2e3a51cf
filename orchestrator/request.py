"""What is asked: messages, sampling, priority and deadline, checked before anything is queued."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import cast

from orchestrator.channel import Channel
from orchestrator.errors import InvalidRequestError, OrchestratorError
from orchestrator.resume import Resume, Seam

MAX_STOPS = 16
MAX_STOP_LENGTH = 512
MAX_SEED = 2**63 - 1
MAX_NAME = 256
MAX_ANSWERS = 128
MIN_TIMEOUT = 0.001
"""Seconds; less is no time that anything could be done in."""
MAX_TIMEOUT = 30 * 86_400.0
BYTES_PER_TOKEN = 4
DEFAULT_ANSWER_TOKENS = 256


def is_unicode(text: str) -> bool:
    """Whether a text can be sent: half a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Priority(IntEnum):
    """Who goes first; among equals, who came first."""

    BACKGROUND = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3

    @classmethod
    def of(cls, given: "Priority | str") -> "Priority":
        """Finds a priority by its name, in any case.

        Raises:
            InvalidRequestError: There is none of that name.
        """
        if isinstance(given, Priority):
            return given
        try:
            return cls[given.upper()]
        except (KeyError, AttributeError):  # a number is no name either
            names = ", ".join(priority.name.lower() for priority in cls)
            raise InvalidRequestError(
                f"no priority is called {str(given)[:40]!r}; there are {names}", param="priority"
            ) from None


class Work(StrEnum):
    """What is done with what is asked; all of it goes the same way.

    Whatever isn't a chat keeps its body's own fields in `extra`, its texts in `messages`, and its
    answer is one chunk whose text is the JSON of a list.
    """

    CHAT = "chat"
    EMBED = "embed"
    RERANK = "rerank"
    CLASSIFY = "classify"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str | Sequence[Mapping[str, object]] | None
    """Text, or content parts in OpenAI's shape (`{"type": "text", "text": ...}`)."""
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    """Other members of the message (`name`, `tool_calls`, `tool_call_id`), passed on untouched."""
    length: int = field(init=False, repr=False, compare=False)
    """Characters of the text; counted once, for a conversation may have thousands of parts."""

    def __post_init__(self) -> None:
        """Checks the content.

        Raises:
            InvalidRequestError: It is neither text nor a list of parts.
        """
        content = self.content
        length = len(content) if isinstance(content, str) else _length_of(content)
        object.__setattr__(self, "length", length)

    @property
    def text(self) -> str:
        """The text of the message; its text parts joined."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content)


def _length_of(content: object) -> int:
    if content is None:
        return 0
    length = 0
    # a caller may have no type checker
    for part in cast("Sequence[object]", content) if isinstance(content, list | tuple) else (None,):
        if not isinstance(part, dict | Mapping):  # the first of them is quick, and usual
            raise InvalidRequestError(
                "the content of a message must be a text or a list of parts", param="messages"
            )
        length += len(str(cast("Mapping[str, object]", part).get("text", "")))
    return length


ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def message_from(given: object, index: int) -> Message:
    """Reads a message in OpenAI's shape.

    Args:
        given: `role`, `content` and whatever else the message has.
        index: Its place in the conversation, for errors.

    Raises:
        InvalidRequestError: Role or content are missing or of another type.
    """
    fields: dict[str, object] = {}
    if isinstance(given, dict | Mapping):  # the first of them is quick, and usual
        fields.update(cast("Mapping[str, object]", given))
    role, content = fields.pop("role", None), fields.pop("content", None)
    if isinstance(role, str) and role in ROLES and isinstance(content, str):
        return Message(role, content, fields)
    where = f"messages[{index}]"
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role"
        )
    if isinstance(content, list):
        return Message(role, _parts(cast("list[object]", content), where), fields)
    if content is not None:
        raise InvalidRequestError(
            f"{where}.content must be a text or a list of parts", param=f"{where}.content"
        )
    if role != "assistant":  # one that only calls tools has no content
        raise InvalidRequestError(f"{where}.content is missing", param=f"{where}.content")
    return Message(role, None, fields)


def _parts(content: list[object], where: str) -> list[Mapping[str, object]]:
    parts: list[Mapping[str, object]] = []
    for number, part in enumerate(content):
        mapping = cast("Mapping[str, object]", part if isinstance(part, dict) else {})
        kind = mapping.get("type")
        if not isinstance(kind, str):
            place = f"{where}.content[{number}]"
            raise InvalidRequestError(f"{place} must be an object with a type", param=place)
        if kind == "text" and not isinstance(mapping.get("text"), str):
            place = f"{where}.content[{number}]"
            raise InvalidRequestError(f"{place}.text must be a text", param=f"{place}.text")
        parts.append(mapping)
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; None leaves it to the model's or provider's default."""

    temperature: float | None = None
    """0 to 2; 0 is greedy."""
    top_p: float | None = None
    """Above 0, up to 1."""
    max_tokens: int | None = None
    """At least 1."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it."""
    presence_penalty: float | None = None
    """-2 to 2."""
    frequency_penalty: float | None = None
    """-2 to 2."""
    n: int = 1
    """Answers to the same messages, 1 to 128."""

    def __post_init__(self) -> None:
        """Checks ranges.

        Raises:
            InvalidRequestError: A value is out of range, not finite or of another type.
        """
        if self.temperature is not None:
            _check_number("temperature", self.temperature, 0.0, 2.0)
        if self.top_p is not None:
            _check_number("top_p", self.top_p, 0.0, 1.0)
            if self.top_p == 0:
                raise InvalidRequestError("top_p must be above 0", param="top_p")
        if self.presence_penalty is not None:
            _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        if self.frequency_penalty is not None:
            _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, MAX_SEED)
        _check_integer("n", self.n, 1, MAX_ANSWERS)
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequestError(f"stop takes at most {MAX_STOPS} texts", param="stop")
        for text in cast("tuple[object, ...]", self.stop):  # a caller may have no type checker
            if (
                not isinstance(text, str)
                or not 0 < len(text) <= MAX_STOP_LENGTH
                or not is_unicode(text)
            ):
                raise InvalidRequestError(
                    f"each stop text has 1 to {MAX_STOP_LENGTH} characters", param="stop"
                )


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise InvalidRequestError(
            f"{name} must be a text of 1 to {MAX_NAME} characters", param=name
        )


def _check_number(name: str, value: object, low: float, high: float) -> None:
    # bool is an int to Python, never to the caller of an API
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(f"{name} must be a number", param=name)
    if not low <= value <= high:  # NaN is in no range; a huge int is no float either
        raise InvalidRequestError(f"{name} must be from {low:g} to {high:g}", param=name)


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} must be a whole number", param=name)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be from {low} to {high}", param=name)


@dataclass(slots=True, kw_only=True, eq=False)
class AttemptRecord:
    """What one attempt did; the caller sees the list as `stream.attempts`."""

    deployment: str
    worker: str
    epoch: int
    started_at: float
    """Loop time, seconds; so are the next two."""
    queued_for: float
    """Seconds between acceptance (or the attempt before) and this start."""
    permit_for: float = 0.0
    """Of these, in which the deployment had an idle slot and no permit to fill it."""
    hedge: bool = False
    """Whether it was made beside another one that had not failed."""
    resumed_after: int | None = None
    """Tokens of the answer that earlier attempts had sent, if it goes on from there."""
    breaker: str = ""
    """State of the breaker as it let the attempt through; empty if it didn't."""
    first_token_at: float | None = None
    ended_at: float | None = None
    tokens: int = 0
    """Prompt and answer together once it has ended: the runner's count, or what was seen of it."""
    outcome: str = "running"
    """`done`, `retried`, `gave_up`, `interrupted`, `canceled`, `worker_lost`, or `running`."""
    error: str | None = None
    """Class and text of what went wrong, None if nothing did."""
    decision: str = ""
    """What followed: `again in 0.2 s`, `next: b` or `ended` after a failure, `resumed (exact) at b`
    after a break, `hedged: b`, `won the hedge`, `lost the hedge`; empty if nothing did."""


@dataclass(slots=True, kw_only=True, eq=False)
class PriorityRequest:
    """One request on its way; it carries its channel and its deadline with it."""

    request_id: str
    model: str
    """The route's name, as the caller gave it."""
    messages: Sequence[Message]
    sampling: SamplingParams
    channel: Channel
    timeout: float | None = None
    """Seconds from acceptance to the deadline; None takes the route's."""
    priority: Priority = Priority.NORMAL
    priority_named: bool = False
    """Whether the caller has named it; else a key's own priority counts."""
    work: Work = Work.CHAT
    caller: str = ""
    """Who asks, as the gateway's keys tell; empty where nobody asked for a key. Callers of one
    priority take turns."""
    made_on: Channel | None = None
    """Where its answer goes on being made when its own channel has ended; None ends with it."""
    size_bytes: int = 0
    """Of the body that it came in, if it came in one: a large one is encoded in pieces."""
    idempotent: bool = True
    """False forbids every retry and failover once an attempt was started."""
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    """Provider-specific fields of the request's body, passed on untouched."""
    accepted_at: float = 0.0
    """Loop time, seconds; so is the next."""
    deadline: float = math.inf
    """Covers queue, permits, backoff, attempts and failover; set at acceptance."""
    attempts: list[AttemptRecord] = field(default_factory=list[AttemptRecord])
    first_error: OrchestratorError | None = None
    """What the first attempt that failed has failed with; the cause that survives."""
    attempt_limit: int | None = None
    """Attempts, those elsewhere included, after which the present deployment gives it up."""
    others_ahead: bool = False
    """Whether a healthy deployment of the route has not been tried yet."""
    on_first_token: Callable[[AttemptRecord], None] | None = None
    """Told of each attempt's first token, if the route measures."""
    hedge: bool = False
    """Whether this is a second attempt beside one that has not failed."""
    seam: Seam = Seam.NONE
    """How the present deployment may go on with an answer that broke off after delivery."""
    resume: Resume | None = None
    """What the present attempt goes on from; None begins the answer."""
    passed_over: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Deployments that refused it without an attempt, each with the error's code."""
    estimated_prompt_tokens: int = field(init=False)
    """4 bytes a token."""

    def __post_init__(self) -> None:
        """Checks messages and deadline.

        Raises:
            InvalidRequestError: There is no message, or the timeout is no positive number.
        """
        if self.timeout is not None:
            _check_number("deadline", self.timeout, 0.0, MAX_TIMEOUT)
            if self.timeout < MIN_TIMEOUT:
                raise InvalidRequestError(
                    f"the deadline must be {MIN_TIMEOUT:g} seconds or more", param="deadline"
                )
        _check_name("model", self.model)
        _check_name("request_id", self.request_id)
        if self.caller != "":
            _check_name("caller", self.caller)
        if not self.messages:
            raise InvalidRequestError("messages must not be empty", param="messages")
        characters = sum(message.length for message in self.messages)
        self.estimated_prompt_tokens = max(1, characters // BYTES_PER_TOKEN)

    def __repr__(self) -> str:
        # E16: no prompt in a repr, so none in a log
        return f"<PriorityRequest {self.request_id} {self.priority.name.lower()} {self.model}>"

    @property
    def tries(self) -> int:
        """Attempts so far, hedges apart, which have a bound of their own."""
        return sum(not record.hedge for record in self.attempts)

    @property
    def estimated_tokens(self) -> int:
        """Prompt and the longest answer, or all of them; what a permit reserves."""
        return self.estimated_prompt_tokens + self.estimated_answer_tokens

    @property
    def estimated_answer_tokens(self) -> int:
        """The longest answer, or a usual one if it has no limit; of several, all of them."""
        if self.work is not Work.CHAT:  # nothing is written
            return 0
        return (self.sampling.max_tokens or DEFAULT_ANSWER_TOKENS) * self.sampling.n
