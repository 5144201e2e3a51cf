"""What is told of the answers to one request, as their events come from the host."""

from collections.abc import Iterable, Iterator, Sequence
from uuid import uuid4

import msgspec

from orchestrator.events import Finished, TokenChunk, Usage
from orchestrator.runners.torch.calls import Call
from orchestrator.runners.torch.seams import LocalChunk
from orchestrator.runners.torch.wire import Completed, Produced, Told

ID_LENGTH = 9
"""Characters of a call's id; Mistral's chat template takes no other length."""


class Telling:
    """One answer.

    Args:
        index: Which of its request's.
        seed: What the request's noise is made from.
        calls: How many calls of tools were told of it before.
    """

    __slots__ = ("_calls", "_chances", "_index", "_seed", "_unseen", "end")

    def __init__(self, index: int, seed: int, calls: int = 0) -> None:
        self._calls = calls
        self._index = index
        self._seed = seed
        self._unseen: list[int] = []
        """Tokens whose text is held back."""
        self._chances: list[Told] = []
        """Of those, if they are to be told."""
        self.end: Completed | None = None
        """How the host ended it; None while it is made."""

    def piece(self, event: Produced) -> TokenChunk | None:
        """The text that a token brought; None if all of it is held back."""
        self._unseen.append(event.token)
        if event.told is not None:
            self._chances.append(event.told)
        if not event.text and not event.calls:
            return None
        ids = tuple(self._unseen)
        self._unseen.clear()
        fields = self._fields(event.calls)
        return LocalChunk(event.text, len(ids), fields, self._index, ids=ids, seed=self._seed)

    def last(self, end: Completed) -> TokenChunk | None:
        """The rest of the text; None if there is none."""
        if end.stop is not None:
            self._chances.clear()  # nothing is told of a stop text's tokens
        if end.told is not None:
            self._chances.append(end.told)
        if not end.text and not self._chances and not end.calls:
            return None
        return TokenChunk(end.text, len(self._unseen) + 1, self._fields(end.calls), self._index)

    def _fields(self, calls: Sequence[Call]) -> dict[str, object] | None:
        """What a chunk tells besides its text, in OpenAI's shape; the chances are told then."""
        fields: dict[str, object] = {}
        if self._chances:
            content: object = msgspec.to_builtins(self._chances)
            fields["logprobs"] = {"content": content, "refusal": None}
            self._chances.clear()
        if calls:
            fields["tool_calls"] = [self._called(call) for call in calls]
        return fields or None

    def _called(self, call: Call) -> dict[str, object]:
        self._calls += 1
        return {
            "index": self._calls - 1,
            "id": uuid4().hex[:ID_LENGTH],
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }


def rest_of(answers: Iterable[Telling]) -> Iterator[TokenChunk | Finished]:
    """What is told once all of a request's answers have ended: the rest of each, and the ending.

    Not before, for whoever goes on for a host that dies makes the rest of all of them again.
    """
    ends: list[Completed] = []
    for answer in answers:
        if answer.end is not None:
            ends.append(answer.end)
            if (chunk := answer.last(answer.end)) is not None:
                yield chunk
    first, *others = ends
    usage = Usage(
        prompt_tokens=first.prompt_tokens,  # it is the same one for all
        completion_tokens=sum(end.completion_tokens for end in ends),
        cached_tokens=first.cached_tokens,
    )
    reasons = tuple(end.finish_reason for end in others)
    yield Finished(first.finish_reason, usage, reasons, first.stop)
