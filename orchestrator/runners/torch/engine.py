"""The host's engine: many answers at once, one token each per step.

A step gives every running answer its next token and spends one budget of prompt tokens on those
that are still reading their prompt, in turns, so that a long prompt neither stops the others nor is
stopped by them. Answers join and leave between steps. What goes wrong with one ends that one.
"""

from collections import deque
from collections.abc import Iterator

import torch
from jinja2 import TemplateError
from transformers import Cache

from orchestrator.errors import describe
from orchestrator.events import FinishReason
from orchestrator.runners.torch.loading import LoadedModel
from orchestrator.runners.torch.sampling import Row, Sampler
from orchestrator.runners.torch.text import AnswerText
from orchestrator.runners.torch.wire import (
    Admit,
    Completed,
    Count,
    Counted,
    Prefilled,
    Produced,
    Refused,
    StreamEvent,
)

PREFILL_TOKENS = 128
"""Prompt tokens a step, all answers together: a quarter of a second for a small model on a CPU."""
DEFAULT_MAX_TOKENS = 1024
"""Longest answer of a request that names no limit."""


class Answer:
    """One answer in the making."""

    __slots__ = (
        "cache",
        "completion_tokens",
        "fed",
        "last",
        "max_tokens",
        "prompt",
        "sampler",
        "stream",
        "text",
    )

    def __init__(self, admit: Admit, prompt: list[int], max_tokens: int, text: AnswerText) -> None:
        self.stream = admit.stream
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.text = text
        self.sampler = Sampler(admit.sampling, admit.seed)
        self.cache: Cache | None = None
        self.fed = 0
        """Prompt tokens that went through the model."""
        self.last = 0
        """The newest token, which the model hasn't seen yet."""
        self.completion_tokens = 0


class PromptError(Exception):
    """The prompt can't be served; carries the event that says so."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class Engine:
    """All answers of one model.

    Args:
        loaded: The model; nobody else uses it.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._reading: deque[Answer] = deque()
        self._writing: dict[int, Answer] = {}

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._reading and not self._writing

    def warm_up(self) -> None:
        """Runs two steps of an answer that nobody reads, so that the first caller doesn't wait."""
        cache = self._forward([0] * 8, None)[1]
        self._forward([0], cache)

    def admit(self, admit: Admit) -> list[StreamEvent]:
        """Begins an answer; the events say if it was refused."""
        try:
            prompt = self._prompt(admit.stream, admit.messages)
            limit = self._limit(admit.stream, len(prompt), admit.sampling.max_tokens)
        except PromptError as error:
            return [error.refused]
        text = AnswerText(self._loaded.backend, admit.sampling.stop)
        self._reading.append(Answer(admit, prompt, limit, text))
        return []

    def count(self, count: Count) -> list[StreamEvent]:
        """Says how long a prompt is, or that it and its answer don't fit."""
        try:
            prompt = self._prompt(count.stream, count.messages)
            self._limit(count.stream, len(prompt), count.max_tokens)
        except PromptError as error:
            return [error.refused]
        return [Counted(count.stream, len(prompt))]

    def cancel(self, stream: int) -> None:
        """Forgets an answer; one that has ended already is no error."""
        self._writing.pop(stream, None)
        self._reading = deque(answer for answer in self._reading if answer.stream != stream)

    def step(self) -> list[StreamEvent]:
        """Takes every answer one step further."""
        events: list[StreamEvent] = []
        for answer in list(self._writing.values()):
            events.extend(self._guarded(answer, self._write(answer)))
        budget = PREFILL_TOKENS
        for _ in range(len(self._reading)):
            answer = self._reading.popleft()
            size = min(budget, len(answer.prompt) - answer.fed)
            events.extend(self._guarded(answer, self._read(answer, size)))
            budget -= size
            if budget == 0:
                break
        return events

    def _guarded(self, answer: Answer, events: Iterator[StreamEvent]) -> list[StreamEvent]:
        try:
            return list(events)
        except torch.AcceleratorError:
            raise  # the device's context is lost for everybody: only a new process has another
        except Exception as error:  # noqa: BLE001 - whatever the model's code raises ends this answer alone
            self.cancel(answer.stream)
            return [Refused(answer.stream, "failed", f"the model failed: {describe(error)}")]

    def _read(self, answer: Answer, size: int) -> Iterator[StreamEvent]:
        """Feeds `size` more prompt tokens; the last of them bring the first token."""
        part = answer.prompt[answer.fed : answer.fed + size]
        row, answer.cache = self._forward(part, answer.cache)
        answer.fed += size
        yield Prefilled(answer.stream, answer.fed, len(answer.prompt))
        if answer.fed < len(answer.prompt):
            self._reading.append(answer)
            return
        self._writing[answer.stream] = answer
        yield from self._take(answer, row)

    def _write(self, answer: Answer) -> Iterator[StreamEvent]:
        row, answer.cache = self._forward([answer.last], answer.cache)
        yield from self._take(answer, row)

    def _take(self, answer: Answer, row: Row) -> Iterator[StreamEvent]:
        """Chooses the token that follows and says what it means for the answer."""
        answer.last = answer.sampler.choose(row)
        answer.completion_tokens += 1
        if answer.last in self._loaded.end_tokens:
            yield self._end(answer, answer.text.finish(), FinishReason.STOP)
            return
        text = answer.text.add(answer.last)
        if answer.text.stopped:
            yield self._end(answer, text, FinishReason.STOP)
        elif answer.completion_tokens == answer.max_tokens:
            text += answer.text.finish()
            stopped = answer.text.stopped
            yield self._end(answer, text, FinishReason.STOP if stopped else FinishReason.LENGTH)
        else:
            yield Produced(answer.stream, text)

    def _end(self, answer: Answer, text: str, reason: FinishReason) -> Completed:
        del self._writing[answer.stream]
        return Completed(answer.stream, text, reason, len(answer.prompt), answer.completion_tokens)

    @torch.inference_mode()
    def _forward(self, tokens: list[int], cache: Cache | None) -> tuple[Row, Cache]:
        """Feeds tokens and returns the logits after the last one, float32, (vocabulary,)."""
        model = self._loaded.model
        output = model(
            input_ids=torch.tensor([tokens], dtype=torch.int64, device=model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[0, -1].float().cpu().numpy(), output.past_key_values

    def _prompt(self, stream: int, messages: list[dict[str, str]]) -> list[int]:
        """Returns the tokens that the model's chat template makes of the messages.

        Raises:
            PromptError: The template refuses them or fails on them.
        """
        try:
            text = self._loaded.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
            # the template writes the special tokens itself
            return self._loaded.backend.encode(str(text), add_special_tokens=False).ids
        except TemplateError as error:
            text = f"the model's chat template refuses these messages: {error}"
            raise PromptError(Refused(stream, "invalid", text, "messages")) from error
        except Exception as error:
            text = f"the prompt could not be made: {describe(error)}"
            raise PromptError(Refused(stream, "failed", text)) from error

    def _limit(self, stream: int, prompt_tokens: int, max_tokens: int | None) -> int:
        """Returns the longest answer that this request may get.

        Raises:
            PromptError: Prompt and answer don't fit into the context.
        """
        context = self._loaded.facts.context_length
        if prompt_tokens + (max_tokens or 1) <= context:
            return max_tokens or min(DEFAULT_MAX_TOKENS, context - prompt_tokens)
        asked = f" and max_tokens {max_tokens}" if max_tokens else " and an answer"
        text = (
            f"the prompt's {prompt_tokens} tokens{asked} don't fit into the model's context of "
            f"{context} tokens; shorten the messages or lower max_tokens"
        )
        raise PromptError(Refused(stream, "context", text, "messages"))
