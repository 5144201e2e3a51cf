"""The shape of Gemini's events, as far as they are read; what else is in them is skipped."""

import msgspec


class Blob(msgspec.Struct):
    """Media, in base64."""

    mime_type: str = msgspec.field(default="", name="mimeType")
    data: str = ""


class FunctionCall(msgspec.Struct):
    """A call of a function, whole."""

    name: str = ""
    args: dict[str, object] | None = None
    id: str | None = None


class Part(msgspec.Struct, gc=False):
    """One part of an answer; of its members one is set, besides the signature."""

    text: str | None = None
    thought: bool | None = None
    signature: str | None = msgspec.field(default=None, name="thoughtSignature")
    call: FunctionCall | None = msgspec.field(default=None, name="functionCall")
    blob: Blob | None = msgspec.field(default=None, name="inlineData")


class Content(msgspec.Struct, gc=False):
    """What one event brings."""

    parts: list[Part] | None = None


class Logprob(msgspec.Struct):
    """A token and how likely it was."""

    token: str = ""
    logprob: float = msgspec.field(default=0.0, name="logProbability")


class TopLogprobs(msgspec.Struct):
    """The likeliest tokens at one place."""

    candidates: list[Logprob] = []


class Logprobs(msgspec.Struct):
    """Of every token: the one that was chosen, and the likeliest."""

    chosen: list[Logprob] = msgspec.field(default_factory=list[Logprob], name="chosenCandidates")
    top: list[TopLogprobs] = msgspec.field(default_factory=list[TopLogprobs], name="topCandidates")


class Candidate(msgspec.Struct, gc=False):
    """One answer, as far as this event goes."""

    content: Content | None = None
    finish_reason: str | None = msgspec.field(default=None, name="finishReason")
    index: int | None = 0
    logprobs: Logprobs | None = msgspec.field(default=None, name="logprobsResult")


class Feedback(msgspec.Struct):
    """Why the prompt was refused."""

    block_reason: str | None = msgspec.field(default=None, name="blockReason")
    message: str | None = msgspec.field(default=None, name="blockReasonMessage")


class Counts(msgspec.Struct, rename="camel", gc=False):
    """Tokens so far."""

    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


NOTHING = msgspec.Raw(b"")


class Response(msgspec.Struct, gc=False):
    """One event."""

    candidates: list[Candidate] | None = None
    feedback: Feedback | None = msgspec.field(default=None, name="promptFeedback")
    usage: msgspec.Raw = msgspec.field(default=NOTHING, name="usageMetadata")
    """Read apart: one in a shape of its own is no reason to lose an answer."""
    error: object = None


counts = msgspec.json.Decoder(Counts)
responses = msgspec.json.Decoder(Response)
response_lists = msgspec.json.Decoder(list[Response])
