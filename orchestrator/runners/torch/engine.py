"""The host's engine: many answers at once, one token each per step.

A step gives every running answer its next token, all in one forward pass where the model can, and
spends one budget of prompt tokens on those that are still reading, in turns, so that a long prompt
neither stops the others nor is stopped by them. Answers join and leave between steps. What goes
wrong with one ends that one: a pass that fails for many is done over for each alone.
"""

import traceback
from collections import deque
from collections.abc import Iterator

import torch
from jinja2 import TemplateError
from transformers import Cache

from orchestrator.errors import describe
from orchestrator.events import FinishReason
from orchestrator.runners.torch.forward import forward
from orchestrator.runners.torch.loading import LoadedModel
from orchestrator.runners.torch.rows import enable, forward_rows
from orchestrator.runners.torch.sampling import Sampler
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
    """One answer in the making.

    Args:
        admit: What was asked.
        prompt: Its tokens.
        max_tokens: The longest answer.
        text: Makes its text.
    """

    __slots__ = (
        "alone",
        "cache",
        "fed",
        "max_tokens",
        "prompt_tokens",
        "sampler",
        "stream",
        "text",
        "tokens",
    )

    def __init__(self, admit: Admit, prompt: list[int], max_tokens: int, text: AnswerText) -> None:
        self.stream = admit.stream
        self.tokens = prompt
        """Prompt and answer so far."""
        self.prompt_tokens = len(prompt)
        self.max_tokens = max_tokens
        self.text = text
        self.sampler = Sampler(admit.sampling, admit.seed)
        self.cache: Cache | None = None
        self.fed = 0
        """Tokens that the cache holds."""
        self.alone = False
        """Whether a pass together with others failed, so that it goes by itself."""

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer so far, its end token included."""
        return len(self.tokens) - self.prompt_tokens

    def start_over(self) -> None:
        """Forgets what the model computed, not what was answered: all is fed again."""
        self.cache = None
        self.fed = 0
        self.alone = True


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
        self._model = loaded.model
        self._together = False
        self._reading: deque[Answer] = deque()
        self._writing: dict[int, Answer] = {}

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._reading and not self._writing

    def warm_up(self) -> bool:
        """Runs the first passes, which are slow; returns whether answers can go together."""
        self._together = enable(self._model)
        _, cache = forward(self._model, [0] * 8, None)
        forward(self._model, [0], cache)
        return self._together

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
        events = self._write_all()
        budget = PREFILL_TOKENS
        for _ in range(len(self._reading)):
            answer = self._reading.popleft()
            size = min(budget, len(answer.tokens) - answer.fed)
            events.extend(self._guarded(answer, self._read(answer, size)))
            budget -= size
            if budget == 0:
                break
        return events

    def _write_all(self) -> list[StreamEvent]:
        """Gives every writing answer its next token."""
        writing = list(self._writing.values())
        group = [answer for answer in writing if self._together and not answer.alone]
        # one row alone goes the plain way, which is the one that transformers' generate goes
        single = writing if len(group) < 2 else [answer for answer in writing if answer.alone]  # noqa: PLR2004 - two are many
        events: list[StreamEvent] = []
        if len(single) < len(writing):
            events.extend(self._write_together(group))
        for answer in single:
            events.extend(self._guarded(answer, self._read(answer, 1)))
        return events

    def _write_together(self, group: list[Answer]) -> list[StreamEvent]:
        try:
            logits = forward_rows(
                self._model,
                [answer.tokens[-1] for answer in group],
                [answer.fed for answer in group],
                [answer.cache for answer in group if answer.cache is not None],
            )
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - it isn't known whose fault it is: each tries alone
            traceback.print_exception(error)
            for answer in group:
                answer.start_over()
                del self._writing[answer.stream]
            self._reading.extend(group)
            return []
        events: list[StreamEvent] = []
        for answer, row in zip(group, logits, strict=True):
            answer.fed += 1
            events.extend(self._guarded(answer, self._take(answer, row)))
        return events

    def _guarded(self, answer: Answer, events: Iterator[StreamEvent]) -> list[StreamEvent]:
        try:
            return list(events)
        except torch.AcceleratorError:
            raise  # the device's context is lost for everybody: only a new process has another
        except Exception as error:  # noqa: BLE001 - whatever the model's code raises ends this answer alone
            traceback.print_exception(error)
            self.cancel(answer.stream)
            return [Refused(answer.stream, "failed", f"the model failed: {describe(error)}")]

    def _read(self, answer: Answer, size: int) -> Iterator[StreamEvent]:
        """Feeds the next `size` tokens; the last one that there is brings a new one."""
        part = answer.tokens[answer.fed : answer.fed + size]
        row, answer.cache = forward(self._model, part, answer.cache)
        answer.fed += size
        if answer.stream not in self._writing:
            yield Prefilled(answer.stream, answer.fed, len(answer.tokens))
            if answer.fed < len(answer.tokens):
                self._reading.append(answer)
                return
            self._writing[answer.stream] = answer
        yield from self._take(answer, row)

    def _take(self, answer: Answer, row: torch.Tensor) -> Iterator[StreamEvent]:
        """Chooses the token that follows and says what it means for the answer."""
        token = answer.sampler.choose(row.numpy())
        answer.tokens.append(token)
        if token in self._loaded.end_tokens:
            yield self._end(answer, answer.text.finish(), FinishReason.STOP)
            return
        text = answer.text.add(token)
        if answer.text.stop is not None:
            yield self._end(answer, text, FinishReason.STOP)
        elif answer.completion_tokens == answer.max_tokens:
            text += answer.text.finish()
            stopped = answer.text.stop is not None
            yield self._end(answer, text, FinishReason.STOP if stopped else FinishReason.LENGTH)
        else:
            yield Produced(answer.stream, text)

    def _end(self, answer: Answer, text: str, reason: FinishReason) -> Completed:
        del self._writing[answer.stream]
        return Completed(
            answer.stream,
            text,
            reason,
            answer.prompt_tokens,
            answer.completion_tokens,
            answer.text.stop,
        )

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
