"""From token ids to text that never has to be taken back.

Two things hold text back: a character whose bytes aren't all there yet, and an ending that may turn
out to be the beginning of a stop text. What is handed out is final.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from orchestrator.runners.torch.calls import MARKS, Call, CallReader, Family

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns the ids of one answer into text, whole characters at a time."""

    __slots__ = ("_ids", "_sent_length", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._sent_length = 0

    def add(self, token: int) -> str:
        """Returns the text that became certain with this token."""
        self._ids.append(token)
        text = self._stream.step(self._tokenizer, token) or ""
        self._sent_length += len(text)
        return text

    def flush(self) -> str:
        """Returns what the stream still holds back, without a character that is incomplete."""
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        rest = whole[self._sent_length :].rstrip(REPLACEMENT)
        self._sent_length += len(rest)
        return rest


class StopGuard:
    """Lets text through up to the first stop text.

    Args:
        stops: None of them empty.
    """

    __slots__ = ("_held", "_stops", "stop")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stop: str | None = None
        """The stop text that was met; nothing comes through after it."""

    def add(self, text: str) -> str:
        """Returns what may be handed out now."""
        if self.stop is not None or not self._stops:
            return text if self.stop is None else ""
        text = self._held + text
        # as if the text came character by character: the stop that is complete first counts, and
        # of two that are complete at once the longer, so that the split into tokens can't matter
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, at = min(found)
            self.stop = text[at:end]
            self._held = ""
            return text[:at]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Returns what was held back for a stop text that never came."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest ending of `text` that begins `stop` without being all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0


class AnswerText:
    """The text of one answer: detokenised, cut at its stop texts, without its calls of tools.

    Args:
        tokenizer: The model's.
        stops: Stop texts.
        family: How calls are written, if the answer may have some.
    """

    __slots__ = ("_calls", "_detokenizer", "_guard", "_marks")

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], family: Family | None = None
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._guard = StopGuard(stops)
        self._calls = None if family is None else CallReader(family)
        self._marks: dict[int | None, str] = {}
        """Marks of calls that are special tokens, of which no text comes."""
        for mark in () if family is None else MARKS[family]:
            token = tokenizer.token_to_id(mark)
            if token is not None and not tokenizer.decode([token], skip_special_tokens=True):
                self._marks[token] = mark

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return self._calls is not None and self._calls.called

    @property
    def stop(self) -> str | None:
        """The stop text that was met, if there was one."""
        return self._guard.stop

    def add(self, token: int) -> tuple[str, list[Call]]:
        """Returns the text that may be handed out after this token, and calls that are whole."""
        text = self._detokenizer.add(token)
        if self._calls is None:
            return self._guard.add(text), []
        return self._calls.add(self._guard.add(text + self._marks.get(token, "")))

    def finish(self) -> tuple[str, list[Call]]:
        """Returns the last piece and the last calls; may still find a stop text in it."""
        last = self._guard.add(self._detokenizer.flush())
        if self._guard.stop is None:
            last += self._guard.flush()
        if self._calls is None:
            return last, []
        text, calls = self._calls.add(last)
        rest, more = self._calls.finish()
        return text + rest, calls + more
