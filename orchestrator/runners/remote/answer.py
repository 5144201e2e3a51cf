"""What is known of an answer while it is read, whoever sends it.

An answer is complete when its finish reason was seen and no error after it. Usage is the greatest
count seen, for some providers send it many times; a usage that nobody sent stays absent, and so
does a number that is negative or beyond 2**53.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar, cast

import msgspec

from orchestrator.errors import (
    InvalidRequestError,
    OrchestratorError,
    UpstreamProtocolError,
    UpstreamTruncatedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.runners.classify import (
    ANY_PROVIDER,
    NOT_JSON,
    Refusals,
    classify_event,
    shorten,
)
from orchestrator.runners.remote.halves import mend
from orchestrator.runners.remote.large_shape import PLAIN, Shape

Told = TypeVar("Told")

MAX_COUNT = 1 << 53
"""Beyond this a JSON number isn't exact any more, and nobody has counted so many tokens."""


class Answer:
    """The state that the readers of all wire formats keep.

    Args:
        provider: The name for people.
        secret: The key that was sent, masked wherever the provider repeats it.
        own: What the provider means by its error codes, where it isn't what all mean.
    """

    __slots__ = (
        "_half",
        "_own",
        "_provider",
        "_secret",
        "_usage",
        "answers",
        "begun",
        "done",
        "events",
        "finish_reason",
        "large",
        "more",
        "others",
        "stop",
        "tokens",
    )

    what: ClassVar[str] = "answer"
    """What is expected, for people."""
    shape: Shape = PLAIN
    """What the events consist of, for those that are large."""

    def __init__(
        self, provider: str, *, secret: str | None = None, own: Refusals = ANY_PROVIDER
    ) -> None:
        self._provider = provider
        self._secret = secret
        self._own = own
        self._usage: Usage | None = None
        self._half = b""
        """The first half of a character whose second one is still to come."""
        self.answers: Sequence[Answer] = ()
        """A reader of each, where the request wants several; this one holds them together."""
        self.begun = False
        """Something of it has come; kept for one of several."""
        self.finish_reason: FinishReason | None = None
        """Set as soon as every answer is complete; usage may still follow."""
        self.others: tuple[FinishReason, ...] = ()
        """Finish reasons of the further answers."""
        self.stop: str | None = None
        """The stop text that ended the answer, where the provider tells."""
        self.more: Sequence[TokenChunk] = ()
        """What the last event with a piece of an answer brought besides it."""
        self.done = False
        """The provider's own end marker was seen; what follows it is ignored."""
        self.events = 0
        self.tokens = 0
        self.large = False
        """A large event is read, in parts."""

    def __repr__(self) -> str:
        state = "done" if self.done else self.finish_reason or "open"
        return f"<{type(self).__name__} {state}, {self.tokens} tokens>"

    def end(self) -> Finished:
        """Returns the ending, now that nothing more will be read.

        Raises:
            UpstreamTruncatedError: No finish reason was seen.
            InvalidRequestError: The provider takes no notice of how many answers are wanted.
        """
        if self.finish_reason is None:
            self._check_missing()
            marker = " though it sent its end marker" if self.done else ""
            raise UpstreamTruncatedError(
                f"{self._provider} ended the stream after {self.tokens} tokens"
                f" without a finish reason{marker}"
            )
        return Finished(self.finish_reason, self._usage, self.others, self.stop)

    def gather(self, found: Sequence[tuple[int, TokenChunk | None]]) -> TokenChunk | None:
        """Puts together what one event brought of several answers.

        Args:
            found: What an answer's reader made of it, by the answer's place.

        Returns:
            The first piece; those after it are in `more`.
        """
        pieces = [
            TokenChunk(piece.text, piece.tokens, piece.fields, index)
            for index, piece in found
            if piece is not None
        ]
        self.tokens += sum(piece.tokens for piece in pieces)
        self.more = pieces[1:]
        reasons = [answer.finish_reason for answer in self.answers]
        told = [reason for reason in reasons if reason is not None]
        if len(told) == len(reasons):
            self.finish_reason, *others = told
            self.others = tuple(others)
        return pieces[0] if pieces else None

    def _check_missing(self) -> None:
        begun = [answer for answer in self.answers if answer.begun]
        whole = begun and all(answer.finish_reason is not None for answer in begun)
        if self.done and whole and len(begun) < len(self.answers):
            raise InvalidRequestError(
                f"{self._provider} gave {len(begun)} of {len(self.answers)} answers", param="n"
            )

    def count(self, found: Usage) -> None:
        """Takes a usage that the provider told; one of nothing but zeros was not counted."""
        known = self._usage
        if found.total_tokens == 0:
            return
        self._usage = found if known is None else _greatest(found, known)

    def broke_off(self, reason: str, error: type[OrchestratorError]) -> OrchestratorError:
        """Returns the error of a finish reason that says that the answer is not complete."""
        return error(
            f"{self._provider} broke off after {self.tokens} tokens: {shorten(reason)}",
            upstream_code=shorten(reason),
        )

    def failure(self, data: bytes) -> OrchestratorError:
        """Returns what an error within the stream means."""
        try:
            payload = cast("object", msgspec.json.decode(data))
        except NOT_JSON:  # an error must be told either way
            payload = data[:1024].decode(errors="replace")
        return classify_event(payload, self._provider, secret=self._secret, own=self._own)

    def mended(
        self, decoder: msgspec.json.Decoder[Told], data: bytes, error: Exception, what: str
    ) -> Told:
        """Reads an event that its decoder has refused, in case a character was cut in two.

        Args:
            decoder: The decoder.
            data: What came.
            error: What the decoder said.
            what: What should have come.

        Raises:
            UpstreamProtocolError: It is nothing that can be read.
        """
        whole = mend(data, self._half)
        if whole is not None:
            with contextlib.suppress(*NOT_JSON):
                told = decoder.decode(whole[0])
                self._half = whole[1]
                return told
        unreadable = self.no_answer(what, data, error)
        raise unreadable from error

    def unreadable(self, data: bytes, error: Exception) -> UpstreamProtocolError:
        """Returns the error of an event that is no JSON.

        Args:
            data: The event.
            error: Why it is none.
        """
        return self.no_answer(self.what, data, error)

    def no_answer(self, what: str, data: bytes, error: Exception) -> UpstreamProtocolError:
        """Returns the error of an event that can't be read; whoever raises it names the cause.

        Args:
            what: What should have come.
            data: What came.
            error: What the JSON decoder said.
        """
        text = shorten(data[:1024].decode(errors="replace"), self._secret)
        return UpstreamProtocolError(f"{self._provider} sent no {what} ({error}): {text}")


def counted(number: int | None) -> int:
    """Returns a count of tokens; 0 if it wasn't told, or can't be one."""
    return number if number is not None and 0 <= number <= MAX_COUNT else 0


def joined(pieces: Sequence[TokenChunk]) -> TokenChunk | None:
    """Returns all pieces of one answer that came at once as one; None if there are none."""
    if not pieces:
        return None
    fields: dict[str, object] = {}
    for piece in pieces:
        _add(fields, piece.fields or {})
    text = "".join(piece.text for piece in pieces)
    tokens = sum(piece.tokens for piece in pieces)
    return TokenChunk(text, tokens, fields or None, pieces[0].index)


def _add(known: dict[str, object], found: Mapping[str, object]) -> None:
    """Puts what came later to what is known: lists, texts and members are continued."""
    for name, value in found.items():
        before = known.get(name)
        if isinstance(before, list) and isinstance(value, list):
            known[name] = [*cast("list[object]", before), *cast("list[object]", value)]
        elif isinstance(before, dict) and isinstance(value, dict):
            members = dict(cast("dict[str, object]", before))
            _add(members, cast("dict[str, object]", value))
            known[name] = members
        else:
            known[name] = f"{before}{value}" if isinstance(before, str) else value


def _greatest(one: Usage, other: Usage) -> Usage:
    return Usage(
        prompt_tokens=max(one.prompt_tokens, other.prompt_tokens),
        completion_tokens=max(one.completion_tokens, other.completion_tokens),
        cached_tokens=max(one.cached_tokens, other.cached_tokens),
        reasoning_tokens=max(one.reasoning_tokens, other.reasoning_tokens),
    )
