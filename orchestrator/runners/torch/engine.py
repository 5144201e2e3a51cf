"""The host's engine: many answers at once, one token each per step.

A step gives every running answer its next token and spends a budget of prompt tokens on those that
are still reading, in turns, so that a long prompt neither stops the others nor is stopped by them;
all of it in one pass where the model can. Answers join and leave between steps.

An answer begins when there is room for its prompt. One that finds no room for its next token takes
that of the answer that began last, which waits and is computed anew later. What goes wrong with one
ends that one: a pass that fails for many is done over for each alone.
"""

import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from jinja2 import TemplateError

from orchestrator.errors import describe
from orchestrator.events import FinishReason
from orchestrator.runners.torch.answer import Answer
from orchestrator.runners.torch.calls import Call
from orchestrator.runners.torch.chances import tell
from orchestrator.runners.torch.forms import Form
from orchestrator.runners.torch.grammar import FormError, Grammar, Grammars
from orchestrator.runners.torch.loading import LoadedModel
from orchestrator.runners.torch.memory import NoRoomError
from orchestrator.runners.torch.passes import Passes, Place
from orchestrator.runners.torch.text import AnswerText
from orchestrator.runners.torch.tools import NO_TOOLS, place_of_tools
from orchestrator.runners.torch.wire import (
    Admit,
    Completed,
    Count,
    Counted,
    Prefilled,
    Produced,
    Refused,
    StreamEvent,
    Told,
    Turn,
)

PREFILL_TOKENS = 128
"""Prompt tokens a step, all answers together, where the machine is fast enough for them."""
LEAST_TOKENS = 16
STEP_SECONDS = 0.2
"""A step in which others wait for their next token reads no more than it can in this time."""
WARM_ROWS = 4
DEFAULT_MAX_TOKENS = 1024
"""Longest answer of a request that names no limit."""


class PromptError(Exception):
    """The prompt can't be served; carries the event that says so."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class Engine:
    """All answers of one model.

    Args:
        loaded: The model; nobody else uses it.
        passes: How tokens go through it.
    """

    def __init__(self, loaded: LoadedModel, passes: Passes) -> None:
        self._loaded = loaded
        self._passes = passes
        self._grammars = Grammars(loaded.backend, loaded.facts.vocabulary, loaded.end_tokens)
        self._waiting: deque[Answer] = deque()
        self._full = False
        """Whether the first that waits has found no room since anybody left."""
        self._reading: deque[Answer] = deque()
        self._writing: dict[int, Answer] = {}
        self._token_seconds = 0.0
        """Of a prompt's token, as the last steps had it."""

    def __repr__(self) -> str:
        counts = len(self._waiting), len(self._reading), len(self._writing)
        return "<Engine: {} waiting, {} reading, {} writing>".format(*counts)

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._reading and not self._writing and not self._waiting

    def warm_up(self) -> None:
        """Runs the first passes, which are slow, those of several answers among them."""
        places = [self._passes.open([0] * 8) for _ in range(WARM_ROWS)]
        self._passes.feed([(place, [0] * 8) for place in places])
        self._passes.feed([(place, [0]) for place in places])
        for place in places:
            self._passes.close(place, keep=False)

    def admit(self, admit: Admit) -> list[StreamEvent]:
        """Begins an answer; the events say if it was refused."""
        try:
            self._check(admit)
            prompt = self._prompt(admit.stream, admit.messages, admit.tools)
            limit = self._limit(admit.stream, len(prompt), admit.sampling.max_tokens)
            grammar = self._grammar(admit.stream, admit.wishes.form)
        except PromptError as error:
            return [error.refused]
        family = self._loaded.facts.tools if admit.tools else None
        text = AnswerText(self._loaded.backend, admit.sampling.stop, family)
        self._waiting.append(Answer(admit, prompt, limit, text, grammar))
        return []

    def count(self, count: Count) -> list[StreamEvent]:
        """Says how long a prompt is, or that it and its answer, or its form, can't be served."""
        try:
            prompt = self._prompt(count.stream, count.messages, count.tools)
            self._limit(count.stream, len(prompt), count.max_tokens)
            self._grammar(count.stream, count.form)
        except PromptError as error:
            return [error.refused]
        return [Counted(count.stream, len(prompt))]

    def cancel(self, stream: int) -> None:
        """Forgets an answer; one that has ended already is no error."""
        if (answer := self._writing.pop(stream, None)) is not None:
            self._leave(answer, keep=True)
            return
        for held in (self._reading, self._waiting):
            for answer in held:
                if answer.stream == stream:
                    held.remove(answer)
                    self._leave(answer, keep=True)
                    return

    def step(self) -> list[StreamEvent]:
        """Takes every answer one step further."""
        self._begin()
        self._make_room()
        feeds = [(answer, 1) for answer in self._writing.values()]
        budget = self._budget()
        for _ in range(len(self._reading)):
            if budget == 0:
                break
            answer = self._reading.popleft()
            size = min(budget, answer.missing)
            budget -= size
            feeds.append((answer, size))
        groups = [[feed] for feed in feeds if feed[0].alone]
        groups.append([feed for feed in feeds if not feed[0].alone])
        return [event for group in groups if group for event in self._pass(group)]

    def _begin(self) -> None:
        """Gives those that wait their place, in turn, as far as there is room."""
        # one that took even its own place finds room once nobody else has any
        while self._waiting and not (self._full and (self._reading or self._writing)):
            answer = self._waiting[0]
            try:
                answer.place = self._passes.open(answer.tokens)
            except NoRoomError:
                self._full = True
                return
            self._waiting.popleft()
            if answer.reused is None:
                answer.reused = min(answer.place.reused, answer.prompt_tokens)
            self._reading.append(answer)

    def _make_room(self) -> None:
        """Sees to it that every writing answer has room for its next token."""
        for answer in list(self._writing.values()):
            while answer.place is not None:
                try:
                    self._passes.extend(answer.place)
                except NoRoomError:
                    self._preempt()
                else:
                    break

    def _preempt(self) -> None:
        """Takes the place of the answer that began last; it is computed anew when there is room."""
        if self._reading:
            answer = self._reading.pop()
        else:
            _, answer = self._writing.popitem()
        self._leave(answer, keep=False)
        # what made the room is for the one that asked, not for the one that gave
        self._full = True
        self._waiting.appendleft(answer)

    def _leave(self, answer: Answer, *, keep: bool) -> None:
        if answer.place is not None:
            self._passes.close(answer.place, keep=keep)
            answer.place = None
        self._full = False

    def _budget(self) -> int:
        if not self._writing or not self._token_seconds:
            return PREFILL_TOKENS
        fitting = int(STEP_SECONDS / self._token_seconds) // LEAST_TOKENS * LEAST_TOKENS
        return max(LEAST_TOKENS, min(PREFILL_TOKENS, fitting))

    def _pass(self, feeds: Sequence[tuple[Answer, int]]) -> list[StreamEvent]:
        parts = [(_place(answer), _next(answer, size)) for answer, size in feeds]
        begin = time.perf_counter()
        try:
            logits = self._passes.feed(parts)
        except torch.AcceleratorError:
            raise  # the device's context is lost for everybody: only a new process has another
        except Exception as error:  # noqa: BLE001 - whatever the model's code raises
            traceback.print_exception(error)
            return self._failed([answer for answer, _ in feeds], error)
        read = sum(size for _, size in feeds)
        if read >= LEAST_TOKENS + len(self._writing):
            self._token_seconds = (time.perf_counter() - begin) / read
        events: list[StreamEvent] = []
        for (answer, _), row in zip(feeds, logits, strict=True):
            events.extend(self._guarded(answer, self._take_in(answer, row)))
        return events

    def _failed(self, answers: Sequence[Answer], error: Exception) -> list[StreamEvent]:
        """One ends with the error; of many it isn't known whose fault it is: each tries alone."""
        if len(answers) == 1:
            return [self._refuse(answers[0], error)]
        for answer in answers:
            self._passes.recover(_place(answer))
            answer.alone = True
            self._writing.pop(answer.stream, None)
            self._reading.append(answer)
        return []

    def _refuse(self, answer: Answer, error: Exception) -> Refused:
        self._writing.pop(answer.stream, None)
        if answer in self._reading:
            self._reading.remove(answer)
        self._leave(answer, keep=False)
        return Refused(answer.stream, "failed", f"the model failed: {describe(error)}")

    def _guarded(self, answer: Answer, events: Iterator[StreamEvent]) -> list[StreamEvent]:
        try:
            return list(events)
        except Exception as error:  # noqa: BLE001 - what can't be chosen from or decoded ends this answer alone
            traceback.print_exception(error)
            return [self._refuse(answer, error)]

    def _take_in(self, answer: Answer, row: torch.Tensor) -> Iterator[StreamEvent]:
        """Looks at what a pass brought: the prompt goes on, or the next token is there."""
        if answer.stream not in self._writing:
            yield Prefilled(answer.stream, _place(answer).fed, len(answer.tokens))
            if answer.missing:
                self._reading.append(answer)
                return
            self._writing[answer.stream] = answer
        yield from self._take(answer, row)

    def _take(self, answer: Answer, row: torch.Tensor) -> Iterator[StreamEvent]:
        """Chooses the token that follows and says what it means for the answer."""
        token = answer.sampler.choose(row.numpy())
        answer.tokens.append(token)
        if token in self._loaded.end_tokens or token in answer.wishes.stop_token_ids:
            yield self._end(answer, answer.text.finish(), FinishReason.STOP)
            return
        text, calls = answer.text.add(token)
        if answer.text.stop is not None:
            rest, more = answer.text.finish()
            yield self._end(answer, (text + rest, calls + more), FinishReason.STOP)
            return
        told = None
        if answer.wishes.alternatives is not None:
            told = tell(row.numpy(), token, answer.wishes.alternatives, self._name)
        if answer.completion_tokens == answer.max_tokens:
            rest, more = answer.text.finish()
            last = text + rest, calls + more
            if answer.text.stop is not None:
                yield self._end(answer, last, FinishReason.STOP)
            else:
                yield self._end(answer, last, FinishReason.LENGTH, told)
        else:
            yield Produced(answer.stream, text, token, told, calls)

    def _name(self, token: int) -> str:
        return self._loaded.backend.decode([token], skip_special_tokens=False)

    def _end(
        self,
        answer: Answer,
        last: tuple[str, list[Call]],
        reason: FinishReason,
        told: Told | None = None,
    ) -> Completed:
        del self._writing[answer.stream]
        self._leave(answer, keep=True)
        text, calls = last
        if reason is FinishReason.STOP and answer.text.called:
            reason = FinishReason.TOOL_CALLS
        return Completed(
            answer.stream,
            text,
            reason,
            answer.prompt_tokens,
            answer.completion_tokens,
            answer.text.stop,
            answer.reused or 0,
            told,
            calls,
        )

    def _check(self, admit: Admit) -> None:
        """Looks whether the tokens that are named are some of the model's.

        Raises:
            PromptError: They aren't.
        """
        size = self._loaded.facts.vocabulary
        named = {
            "logit_bias": admit.wishes.logit_bias,
            "stop_token_ids": admit.wishes.stop_token_ids,
        }
        for param, ids in named.items():
            if (most := max(ids, default=0)) >= size:
                text = f"{param}: this model has {size} tokens, and none is number {most}"
                raise PromptError(Refused(admit.stream, "invalid", text, param))

    def _grammar(self, stream: int, form: Form | None) -> Grammar | None:
        """Returns what keeps the answer to its form; None if it is free.

        Raises:
            PromptError: The form can't be kept to.
        """
        if form is None:
            return None
        try:
            return self._grammars.begin(form)
        except FormError as error:
            text = f"{form.param}: this model can't keep to it: {error}"
            raise PromptError(Refused(stream, "invalid", text, form.param)) from error

    def _prompt(self, stream: int, messages: list[Turn], tools: list[Turn]) -> list[int]:
        """Returns the tokens that the model's chat template makes of the messages.

        Raises:
            PromptError: The template refuses them or fails on them, or takes no tools.
        """
        if self._loaded.facts.tools is None:
            param = place_of_tools(messages, tools)
            if param is not None:  # the template would leave it out without a word
                text = f"{param}: {NO_TOOLS}"
                raise PromptError(Refused(stream, "invalid", text, param))
        try:
            text = self._loaded.tokenizer.apply_chat_template(
                # what its signature calls texts may be calls of tools as well
                cast("list[dict[str, str]]", messages),
                tools=[*tools] or None,
                add_generation_prompt=True,
                tokenize=False,
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


def _place(answer: Answer) -> Place:
    if answer.place is None:
        raise RuntimeError(f"{answer!r} has no place")
    return answer.place


def _next(answer: Answer, size: int) -> list[int]:
    fed = _place(answer).fed
    return answer.tokens[fed : fed + size]
