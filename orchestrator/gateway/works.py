"""Embeddings in OpenAI's shape, ranking in Cohere's and Infinity's, classification in Infinity's.

What is asked goes the same way as a chat: queue, permit, breaker, retries, failover. A deployment
says in its configuration which of them its model can do. Fields that aren't known here are passed
on.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal, cast

import msgspec

from orchestrator.channel import Channel
from orchestrator.errors import InvalidRequestError, OrchestratorError
from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.api import Api, Call
from orchestrator.gateway.failure import failure_object
from orchestrator.gateway.members import (
    TIMEOUT_HEADER,
    Anything,
    Members,
    check_bounds,
    members,
    shorter,
)
from orchestrator.gateway.visit import Visit
from orchestrator.request import (
    BYTES_PER_TOKEN,
    Message,
    Priority,
    PriorityRequest,
    SamplingParams,
    Work,
)
from orchestrator.runners.remote.pace import in_one_step

MAX_INPUTS = 2048
"""OpenAI's own limit; of documents, too."""


class _Common(msgspec.Struct, kw_only=True):
    model: str
    stream: bool | None = None
    priority: str | None = None
    """`background`, `normal`, `high` or `critical`; an extension."""
    deadline: float | None = None
    """Seconds for everything, waiting included; an extension."""


class EmbeddingsRequest(_Common, kw_only=True):
    """Texts, or their tokens, to make vectors of."""

    input: str | list[Anything]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class RerankRequest(_Common, kw_only=True):
    """Documents to bring into the order of their use for a query."""

    query: str
    documents: Annotated[
        list[Anything],
        msgspec.Meta(extra_json_schema={"items": {"type": "string"}, "minItems": 1}),
    ]
    top_n: int | None = None
    return_documents: bool | None = None


class ClassifyRequest(_Common, kw_only=True):
    """Texts to be put into classes."""

    input: str | list[str]


Request = EmbeddingsRequest | RerankRequest | ClassifyRequest


def read_embeddings(body: Members, visit: Visit) -> Call:
    """Reads a body of `/v1/embeddings`.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = members(body, EmbeddingsRequest)
    inputs = [given.input] if isinstance(given.input, str) else given.input
    if given.dimensions is not None and given.dimensions < 1:
        raise InvalidRequestError("dimensions must be at least 1", param="dimensions")
    if inputs and all(isinstance(item, int) for item in inputs):
        tokens, texts = len(inputs), [""]
    else:
        tokens, texts = _texts_or_tokens(inputs)
    return _call(given, extra, Work.EMBED, visit, texts, tokens=tokens)


def read_rerank(body: Members, visit: Visit) -> Call:
    """Reads a body of `/rerank`.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = members(body, RerankRequest)
    if given.top_n is not None and given.top_n < 1:
        raise InvalidRequestError("top_n must be at least 1", param="top_n")
    texts = [_document(document, number) for number, document in enumerate(given.documents)]
    return _call(given, extra, Work.RERANK, visit, texts, query=given.query)


def read_classify(body: Members, visit: Visit) -> Call:
    """Reads a body of `/classify`.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = members(body, ClassifyRequest)
    texts = [given.input] if isinstance(given.input, str) else given.input
    return _call(given, extra, Work.CLASSIFY, visit, texts)


def _texts_or_tokens(inputs: Sequence[object]) -> tuple[int, list[str]]:
    tokens, texts = 0, list[str]()
    for number, item in enumerate(inputs):
        if isinstance(item, str) and item:
            texts.append(item)
        elif (count := len(_tokens(item))) > 0:
            tokens += count
            texts.append("")
        else:
            param = f"input[{number}]"
            raise InvalidRequestError(
                f"{param} must be a text that isn't empty, or a list of tokens", param=param
            )
    return tokens, texts


def _tokens(item: object) -> list[object]:
    found = cast("list[object]", item) if isinstance(item, list) else []
    return found if all(type(token) is int for token in found) else []


def _document(document: object, number: int) -> str:
    if isinstance(document, str):
        return document
    if isinstance(document, dict):
        text = cast("dict[str, object]", document).get("text")
        if isinstance(text, str):
            return text
    param = f"documents[{number}]"
    raise InvalidRequestError(f"{param} must be a text, or an object with one", param=param)


def _call(
    given: Request,
    extra: dict[str, object],
    work: Work,
    visit: Visit,
    texts: Sequence[str],
    *,
    tokens: int = 0,
    query: str = "",
) -> Call:
    """Makes the request, once its inputs are known to be some.

    Raises:
        InvalidRequestError: There are none or too many, or a stream is wanted.
    """
    name = "documents" if work is Work.RERANK else "input"
    if not 0 < len(texts) <= MAX_INPUTS:
        raise InvalidRequestError(
            f"{name} has {len(texts)} items; 1 to {MAX_INPUTS} are taken", param=name
        )
    if given.stream:
        raise InvalidRequestError("stream: there is no stream of this", param="stream")
    check_bounds(given.model, extra)
    own = {
        name: value
        for name in given.__struct_fields__
        if name not in _Common.__struct_fields__
        and (value := cast("object", getattr(given, name))) is not None
    }
    request = PriorityRequest(
        request_id=visit.request_id,
        model=given.model,
        messages=[Message("user", text) for text in texts],
        sampling=SamplingParams(),
        channel=Channel(held=True),
        timeout=shorter(given.deadline, visit.header(TIMEOUT_HEADER)),
        priority=Priority.NORMAL if given.priority is None else Priority.of(given.priority),
        priority_named=given.priority is not None,
        extra={**extra, **own},
        work=work,
    )
    # a query is read beside each of the documents
    request.estimated_prompt_tokens += tokens + len(texts) * len(query) // BYTES_PER_TOKEN
    return Call(request=request, stream=None, whole=partial(_whole, request))


def _whole(request: PriorityRequest, chunks: Sequence[TokenChunk], finished: Finished) -> bytes:
    items = msgspec.Raw("".join(chunk.text for chunk in chunks).encode())
    usage: Mapping[str, object] = {
        "prompt_tokens": request.estimated_prompt_tokens,
        "total_tokens": request.estimated_prompt_tokens,
        "estimated": True,
    }
    if finished.usage is not None:
        counted = finished.usage.prompt_tokens
        usage = {"prompt_tokens": counted, "total_tokens": counted}
    told: dict[str, object] = {"model": request.model, "usage": usage}
    match request.work:
        case Work.RERANK:
            told |= {"object": "rerank", "id": request.request_id, "results": items}
        case Work.CLASSIFY:
            told |= {"object": "classify", "data": items}
        case _:
            told |= {"object": "list", "data": items}
    return msgspec.json.encode(told)


EMBEDDINGS = Api(
    path="/v1/embeddings",
    summary="Make vectors of texts",
    body=EmbeddingsRequest,
    read=in_one_step(read_embeddings),
)


def cohere_failure(error: OrchestratorError, request_id: str) -> dict[str, object]:
    """A refusal as Cohere tells it, and as all other APIs here do."""
    told = failure_object(error)
    return {"id": request_id, "message": told["error"]["message"], **told}


COHERE_SCHEMA: dict[str, object] = {
    "type": "object",
    "required": ["id", "message", "error"],
    "properties": {
        "id": {"type": "string"},
        "message": {"type": "string"},
        "error": {"type": "object"},
    },
}
"""Of such a refusal, for the published document."""
RERANKS = tuple(
    Api(
        path=path,
        summary="Order documents by a query",
        body=RerankRequest,
        read=in_one_step(read_rerank),
        failure=cohere_failure,
        failure_schema="CohereError",
    )
    for path in ("/rerank", "/v1/rerank", "/v2/rerank")
)
CLASSIFIES = tuple(
    Api(
        path=path,
        summary="Put texts into classes",
        body=ClassifyRequest,
        read=in_one_step(read_classify),
    )
    for path in ("/classify", "/v1/classify")
)
