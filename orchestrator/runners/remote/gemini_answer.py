"""Gemini's answers as AI Studio and Vertex send them, read without I/O.

Each event is a whole `GenerateContentResponse` with the next parts of the answer. There is no end
marker: the stream ends after the event with the finish reason, which brings the last usage too.
Thoughts are told as `reasoning_content`; a call of a function comes whole and gets an id if the API
gave it none; signatures of thoughts go where `gemini_request` looks for them.
"""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import msgspec

from orchestrator.errors import (
    ContentFilteredError,
    ContextLengthExceededError,
    InvalidRequestError,
    OrchestratorError,
    UpstreamAuthenticationError,
    UpstreamPermissionError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamServerError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.runners.classify import NOT_JSON, Refusals, shorten
from orchestrator.runners.remote.answer import Answer, counted, joined
from orchestrator.runners.remote.gemini_wire import (
    NOTHING,
    Blob,
    Candidate,
    Feedback,
    FunctionCall,
    Logprob,
    Logprobs,
    Part,
    Response,
    counts,
    response_lists,
    responses,
)
from orchestrator.runners.remote.large_shape import NO_PATH, Shape, others
from orchestrator.runners.remote.sse import ServerSentEvent

DONE = b"[DONE]"

_PART = r"candidates\.content\.parts"

SHAPE = Shape(
    several=re.compile(rf"|{_PART}|candidates\.logprobsResult\.(?:chosen|top)Candidates"),
    anything=re.compile(
        "|".join(
            (
                others("", "candidates", "promptFeedback", "usageMetadata"),
                others("candidates", "content", "finishReason", "index", "logprobsResult"),
                others(r"candidates\.content", "parts"),
                others(_PART, "text", "thought", "thoughtSignature", "functionCall", "inlineData"),
                others(rf"{_PART}\.functionCall", "name", "id"),
                others(rf"{_PART}\.inlineData", "mimeType", "data"),
                others("promptFeedback", "blockReason", "blockReasonMessage"),
                r"usageMetadata\..+",
            )
        )
    ),
    one=re.compile("candidates"),
    items=msgspec.json.Decoder(list[Candidate]).decode,
    names=("index",),
    pairs=(b"chosenCandidates", b"topCandidates"),
)
SHAPE_OF_SEVERAL = replace(
    SHAPE, several=re.compile(f"{SHAPE.several.pattern}|candidates"), one=NO_PATH
)
"""Of the events of several answers, each of which is taken."""

FINISHES: Mapping[str, FinishReason] = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
} | dict.fromkeys(
    (
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "MODEL_ARMOR",
    ),
    FinishReason.CONTENT_FILTER,
)
"""Finish reasons by the API's name; all others say that it broke off, a malformed call for one."""

UNSAID = ("FINISH_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")

REFUSALS = Refusals(
    codes={
        "API_KEY_INVALID": UpstreamAuthenticationError,
        "API_KEY_EXPIRED": UpstreamAuthenticationError,
        "ACCESS_TOKEN_EXPIRED": UpstreamAuthenticationError,
        "BILLING_DISABLED": UpstreamQuotaExceededError,
    },
    texts=(
        # No pause that can be waited for; the RetryInfo beside it means the minute's quota.
        (UpstreamRateLimitedError, re.compile("PerDay"), UpstreamQuotaExceededError),
        (InvalidRequestError, re.compile("input token count"), ContextLengthExceededError),
        (InvalidRequestError, re.compile("API key"), UpstreamAuthenticationError),
        (InvalidRequestError, re.compile("User location"), UpstreamPermissionError),
        (InvalidRequestError, re.compile("enable billing"), UpstreamQuotaExceededError),
    ),
)
"""400 stands for much that isn't the caller's fault, and 429 for more than a rate."""


Told = TypeVar("Told")


def made_id() -> str:
    """Returns the id of a call that came without one; `gemini_request` knows it by its shape."""
    return f"call_{uuid.uuid4().hex}"


class GeminiDecoder(Answer):
    """Reads one answer.

    Args:
        provider: The name for people.
        secret: The key that was sent, masked wherever the API repeats it.
        new_id: Makes the id of a call that came without one.
        answers: How many answers were asked for.
    """

    __slots__ = ("_broken", "_calls", "_counts", "_each", "_new_id", "_signature", "shape")

    what: ClassVar[str] = "response of its API"

    def __init__(
        self,
        provider: str,
        *,
        secret: str | None = None,
        new_id: Callable[[], str] = made_id,
        answers: int = 1,
    ) -> None:
        super().__init__(provider, secret=secret, own=REFUSALS)
        self._each: Sequence[GeminiDecoder] | None = None
        self.shape = SHAPE if answers == 1 else SHAPE_OF_SEVERAL
        if answers > 1:
            self._each = self.answers = [
                GeminiDecoder(provider, secret=secret, new_id=new_id) for _ in range(answers)
            ]
        self._new_id = new_id
        self._calls = 0
        self._counts = (0, 0, 0, 0)
        """Greatest counts so far, in the order of `Usage`: every event has them, the end one."""
        self._signature: str | None = None
        """Of the newest part that is no call; told with the finish, for only the last counts."""
        self._broken: OrchestratorError | None = None
        """Why the answer broke off; told after the text that came with it."""

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads one event and returns the piece of the answer in it, if there is one.

        Raises:
            UpstreamProtocolError: The event is no response of the API.
            OrchestratorError: The event is an error, or says that the prompt was refused.
        """
        if self.done or not event.data:
            return None
        self.events += 1
        if event.data == DONE:  # not the API's own, but some that stand before it send it
            self.done = True
            return None
        if event.event == b"error":
            failure = self.failure(event.data)
            raise failure
        return self._take_response(self._decode(event.data, responses), event.data)

    def take_whole(self, body: bytes) -> TokenChunk | None:
        """Reads an answer that came at once, as one response, though a stream was asked for.

        Raises:
            UpstreamProtocolError: It is no response.
            OrchestratorError: It is an error, by its kind.
        """
        self.done = True
        if body.lstrip()[:1] != b"[":
            return self._take_response(self._decode(body, responses), body)
        # so come errors, and answers from a server that knows nothing of events
        pieces: list[TokenChunk] = []
        for response in self._decode(body, response_lists):
            piece = self._take_response(response, body)
            if piece is not None:
                pieces += (piece, *self.more)
        places = range(max(1, len(self.answers)))
        each = [joined([piece for piece in pieces if piece.index == place]) for place in places]
        whole = [piece for piece in each if piece is not None]
        self.more = whole[1:]
        return whole[0] if whole else None

    def end(self) -> Finished:
        """Returns the ending, now that nothing more will be read.

        Raises:
            UpstreamTruncatedError: No finish reason was seen.
            UpstreamServerError: The finish reason was that the answer broke off.
        """
        if self._broken is not None:
            raise self._broken
        prompt, completion, cached, reasoning = self._counts
        self.count(
            Usage(
                prompt_tokens=prompt,
                completion_tokens=completion,
                cached_tokens=cached,
                reasoning_tokens=reasoning,
            )
        )
        return super().end()

    def _decode(self, data: bytes, decoder: msgspec.json.Decoder[Told]) -> Told:
        try:
            return decoder.decode(data)
        except NOT_JSON as error:
            return self.mended(decoder, data, error, self.what)

    def _take_response(self, response: Response, data: bytes) -> TokenChunk | None:
        if response.error is not None:
            failure = self.failure(data)
            raise failure
        if response.usage is not NOTHING:
            self._count(response.usage)
        chunk = None
        candidates = response.candidates or ()
        if self._each is not None:
            chunk = self._take_each(self._each, candidates)
        else:
            for candidate in candidates:
                if not candidate.index:
                    chunk = self.take_candidate(candidate)
                    break
        if self._broken is not None and chunk is None:
            raise self._broken
        if response.feedback is not None and self.finish_reason is None:
            self._take_feedback(response.feedback)
        return chunk

    def _take_each(
        self, readers: Sequence["GeminiDecoder"], candidates: Sequence[Candidate]
    ) -> TokenChunk | None:
        found: list[tuple[int, TokenChunk | None]] = []
        for candidate in candidates:
            index = candidate.index or 0
            if 0 <= index < len(readers):
                found.append((index, readers[index].take_candidate(candidate)))
                self._broken = self._broken or readers[index].broken
        return self.gather(found)

    @property
    def broken(self) -> OrchestratorError | None:
        """Why the answer broke off, if it did."""
        return self._broken

    def take_candidate(self, candidate: Candidate) -> TokenChunk | None:
        """Reads what one event brings of one answer."""
        parts = (candidate.content and candidate.content.parts) or []
        if len(parts) == 1 and candidate.finish_reason is None and candidate.logprobs is None:
            part = parts[0]  # nearly every event is one of these
            if part.text and part == Part(text=part.text):
                return self._chunk(part.text, None)
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[object] = []
        images: list[object] = []
        for part in parts:
            if part.call is not None:
                calls.append(self._call(part.call, part.signature))
                continue
            self._signature = part.signature or self._signature
            if part.blob is not None:
                images.append(_image(part.blob))
            elif part.text:
                (thoughts if part.thought else texts).append(part.text)
        fields: dict[str, object] = {
            "reasoning_content": "".join(thoughts),
            "tool_calls": calls,
            "images": images,
            "logprobs": candidate.logprobs and _logprobs(candidate.logprobs),
        }
        named = 1 if candidate.logprobs is None else len(candidate.logprobs.chosen)
        chunk = self._chunk("".join(texts), fields, named)
        if candidate.finish_reason and candidate.finish_reason not in UNSAID:
            self._finish(candidate.finish_reason)
        return self._signed(chunk) if self.finish_reason is not None else chunk

    def _call(self, call: FunctionCall, signature: str | None) -> dict[str, object]:
        arguments = msgspec.json.encode(call.args or {}).decode()
        told: dict[str, object] = {
            "index": self._calls,
            "id": call.id or self._new_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }
        self._calls += 1
        if self.finish_reason is FinishReason.STOP:  # some models say so in every event
            self.finish_reason = FinishReason.TOOL_CALLS
        return told if signature is None else {**told, **_signed(signature)}

    def _chunk(
        self, text: str, fields: Mapping[str, object] | None, named: int = 1
    ) -> TokenChunk | None:
        told = {name: value for name, value in fields.items() if value} if fields else None
        if not text and not told:
            return None
        # a chunk has many tokens here, and the usage beside it says how many there are by now
        tokens = max(1, named, self._counts[1] - self.tokens)
        self.tokens += tokens
        return TokenChunk(text, tokens, told or None)

    def _signed(self, chunk: TokenChunk | None) -> TokenChunk | None:
        signature, self._signature = self._signature, None
        if signature is None:
            return chunk
        if chunk is None:
            return TokenChunk("", 0, _signed(signature))
        return TokenChunk(chunk.text, chunk.tokens, {**(chunk.fields or {}), **_signed(signature)})

    def _finish(self, reason: str) -> None:
        if reason not in FINISHES:
            self._broken = self.broke_off(reason, UpstreamServerError)
        elif reason == "STOP" and self._calls:
            self.finish_reason = FinishReason.TOOL_CALLS
        else:
            self.finish_reason = FINISHES[reason]

    def _take_feedback(self, feedback: Feedback) -> None:
        reason = feedback.block_reason
        if not reason or reason in UNSAID:
            return
        if self.tokens:
            self.finish_reason = FinishReason.CONTENT_FILTER
            return
        why = f"{reason}: {feedback.message}" if feedback.message else reason
        raise ContentFilteredError(
            f"{self._provider} refused the prompt ({shorten(why, self._secret)})",
            upstream_code=reason,
        )

    def _count(self, usage: msgspec.Raw) -> None:
        try:
            told = counts.decode(usage)
        except NOT_JSON:
            return
        thoughts = counted(told.thoughts_token_count)
        found = (
            counted(told.prompt_token_count) + counted(told.tool_use_prompt_token_count),
            counted(told.candidates_token_count) + thoughts,
            counted(told.cached_content_token_count),
            thoughts,
        )
        prompt, completion, cached, reasoning = map(max, found, self._counts)
        self._counts = prompt, completion, cached, reasoning


def _signed(signature: str) -> dict[str, object]:
    return {"extra_content": {"google": {"thought_signature": signature}}}


def _image(blob: Blob) -> dict[str, object]:
    url = f"data:{blob.mime_type};base64,{blob.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _logprobs(told: Logprobs) -> dict[str, object]:
    content: list[object] = []
    for place, chosen in enumerate(told.chosen):
        others = told.top[place].candidates if place < len(told.top) else []
        content.append({**_logprob(chosen), "top_logprobs": [_logprob(one) for one in others]})
    return {"content": content} if content else {}


def _logprob(told: Logprob) -> dict[str, object]:
    return {"token": told.token, "logprob": told.logprob, "bytes": list(told.token.encode())}
