"""What a caller receives: any number of chunks, then exactly one ending."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from orchestrator.errors import OrchestratorError


class FinishReason(StrEnum):
    """Why an answer is complete, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


class TokenChunk(msgspec.Struct, frozen=True, gc=False):
    """A piece of the answer: usually one token's text.

    A msgspec struct, not a dataclass: one is made for every token, at a fifth of the cost.
    """

    text: str
    tokens: int = 1
    """Tokens in this chunk, as far as the runner can count them."""
    fields: Mapping[str, object] | None = None
    """Members of the provider's delta besides `content` (tool calls, reasoning), untouched."""
    index: int = 0
    """Which answer it belongs to, where the request wants several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens counted by the runner; a request that nobody counted has no usage at all."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Part of the prompt that was served from a cache."""
    reasoning_tokens: int = 0
    """Part of the completion that was spent on reasoning."""
    estimated: bool = False
    """The provider told nothing, so it was counted here, by the length of the texts."""

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    finish_reason: FinishReason
    usage: Usage | None = None
    """Of all answers together."""
    others: tuple[FinishReason, ...] = ()
    """Of the further answers, from the second on, where the request wants several."""
    stop: str | None = None
    """The stop text that ended the answer, where whoever made it tells."""

    @property
    def finish_reasons(self) -> tuple[FinishReason, ...]:
        """Of each answer, the first included."""
        return (self.finish_reason, *self.others)


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer is not complete and nothing more will come."""

    error: OrchestratorError


Ending = Finished | Failed
