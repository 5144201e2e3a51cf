"""Embeddings, ranking and classification at a server that speaks OpenAI's, Cohere's or Infinity's.

The caller's fields go through untouched under the provider's name of the model. The list that comes
back is not looked into but counted: a server that answers too little, or too much, has mixed up
whose answer is whose.
"""

from collections.abc import Mapping

import msgspec

from orchestrator.errors import UpstreamProtocolError
from orchestrator.events import FinishReason, TokenChunk, Usage
from orchestrator.request import PriorityRequest, Work
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.answer import Answer, counted
from orchestrator.runners.remote.asking import Asking
from orchestrator.runners.remote.openai_request import OpenAISettings, endpoint, own_headers
from orchestrator.runners.remote.pace import in_one_step
from orchestrator.runners.remote.provider import Dialect
from orchestrator.runners.remote.sse import ServerSentEvent
from orchestrator.runners.remote.translation import list_in

PATHS: Mapping[Work, str] = {
    Work.EMBED: "/embeddings",
    Work.RERANK: "/rerank",
    Work.CLASSIFY: "/classify",
}


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens: int | None = None


class _Told(msgspec.Struct):
    data: list[msgspec.Raw] | None = None
    results: list[msgspec.Raw] | None = None
    usage: object = None
    error: object = None


class _Item(msgspec.Struct):
    index: int | None = None


_answers = msgspec.json.Decoder(_Told)
_items = msgspec.json.Decoder(_Item)


class ListReader(Answer):
    """Reads one answer: a list, and what it cost.

    Args:
        request: What was asked.
        provider: See `Answer`.
        secret: See `Answer`.
    """

    __slots__ = ("_asked", "_work")

    def __init__(self, request: PriorityRequest, provider: str, *, secret: str | None) -> None:
        super().__init__(provider, secret=secret)
        self._work = request.work
        self._asked = asked_for(request)

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads an event, which has to be all there is."""
        return self.take_whole(event.data)

    def take_whole(self, body: bytes) -> TokenChunk:
        """Returns the list as the text of a chunk.

        Raises:
            UpstreamProtocolError: There is no list, or not of as many items as were asked for.
            OrchestratorError: It is an error, by its kind.
        """
        self.events += 1
        try:
            told = _answers.decode(body)
        except NOT_JSON as error:
            unreadable = self.no_answer(f"answer to {self._work}", body, error)
            raise unreadable from error
        if told.error is not None:
            failure = self.failure(body)
            raise failure
        items = told.results if told.data is None else told.data
        if items is None:
            mistake = TypeError("neither `data` nor `results`")
            unreadable = self.no_answer(f"answer to {self._work}", body, mistake)
            raise unreadable
        self._check(items)
        self._count(told.usage)
        self.done = True
        self.finish_reason = FinishReason.STOP
        return TokenChunk("[" + b",".join(map(bytes, items)).decode() + "]", 0)

    def _check(self, items: list[msgspec.Raw]) -> None:
        """Looks whether each input has its item.

        Raises:
            UpstreamProtocolError: One has none, or two.
        """
        few = self._work is Work.RERANK and len(items) <= self._asked  # only the best are told
        if len(items) != self._asked and not few:
            raise UpstreamProtocolError(
                f"{self._provider} sent {len(items)} results for {self._asked} inputs",
                upstream_code="result_count_mismatch",
            )
        if self._work is Work.CLASSIFY:
            return
        places = [self._place(item, place) for place, item in enumerate(items)]
        if len(set(places)) != len(places) or not all(0 <= at < self._asked for at in places):
            raise UpstreamProtocolError(
                f"{self._provider} sent results whose indexes are not those of the inputs",
                upstream_code="result_count_mismatch",
            )

    def _place(self, item: msgspec.Raw, place: int) -> int:
        try:
            index = _items.decode(item).index
        except NOT_JSON as error:
            unreadable = self.no_answer(f"result of {self._work}", bytes(item), error)
            raise unreadable from error
        return place if index is None else index

    def _count(self, told: object) -> None:
        try:
            usage = msgspec.convert(told, _Usage)
        except msgspec.ValidationError:
            return  # a usage in a shape of its own is no reason to lose an answer
        prompt = counted(usage.prompt_tokens) or counted(usage.input_tokens)
        self.count(Usage(prompt_tokens=prompt or counted(usage.total_tokens), completion_tokens=0))


def asked_for(request: PriorityRequest) -> int:
    """Returns how many inputs or documents a request has."""
    given = list_in(request.extra.get("documents" if request.work is Work.RERANK else "input"))
    if not given or isinstance(given[0], int):  # a text, or the tokens of one
        return 1
    return len(given)


def other_works(settings: OpenAISettings) -> Mapping[Work, Dialect]:
    """Returns how what isn't a chat is asked and understood."""
    return {work: _dialect(settings, path) for work, path in PATHS.items()}


def _dialect(settings: OpenAISettings, path: str) -> Dialect:
    url = endpoint(settings, path)

    def own(secret: str | None) -> Mapping[str, str]:
        return {"accept": "application/json", **own_headers(settings, secret)}

    def payload(request: PriorityRequest) -> Mapping[str, object]:
        return {**settings.extra_body, **request.extra, "model": settings.model}

    return Dialect(
        settings=settings,
        host=url.host,
        ask=Asking(settings, url, own, in_one_step(payload)),
        read=lambda request, secret: ListReader(request, settings.provider, secret=secret),
    )
