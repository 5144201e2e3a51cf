"""What a model that reads texts can be asked, decided before a request is queued."""

from collections.abc import Mapping

from orchestrator.errors import InvalidRequestError
from orchestrator.request import PriorityRequest, Work, is_unicode
from orchestrator.runners.torch.checks import UNHEARD
from orchestrator.runners.torch.wire import Encode

FIELDS: Mapping[Work, frozenset[str]] = {
    Work.EMBED: frozenset({"input", "encoding_format", "dimensions"}),
    Work.RERANK: frozenset({"query", "documents", "top_n", "return_documents", "raw_scores"}),
    Work.CLASSIFY: frozenset({"input", "raw_scores"}),
}


def to_wire(request: PriorityRequest, vector: int = 0) -> Encode:
    """Returns what the host is told; the stream's number comes later.

    Args:
        request: What was asked.
        vector: Numbers in the model's vectors; 0 is unknown.

    Raises:
        InvalidRequestError: A field asks for what such a model can't do; `param` names it.
    """
    extra = request.extra
    known = FIELDS[request.work]
    for name, value in extra.items():
        if name not in known and name not in UNHEARD and value is not None:
            raise InvalidRequestError(f"{name}: this model doesn't know the field", param=name)
    query = extra.get("query")
    return Encode(
        stream=0,
        texts=_texts(request),
        query=query if isinstance(query, str) else None,
        dimensions=_dimensions(extra.get("dimensions"), vector),
        base64=extra.get("encoding_format") == "base64",
        raw=_flag(extra, "raw_scores"),
    )


def _texts(request: PriorityRequest) -> list[str]:
    name = "documents" if request.work is Work.RERANK else "input"
    texts = [message.text for message in request.messages]
    for number, text in enumerate(texts):
        if request.work is Work.EMBED and not text:
            raise InvalidRequestError(
                f"{name}[{number}]: this model takes texts, no tokens of another model's",
                param=f"{name}[{number}]",
            )
        if not is_unicode(text):
            raise InvalidRequestError(
                f"{name}[{number}] holds half a character", param=f"{name}[{number}]"
            )
    return texts


def _dimensions(wanted: object, vector: int) -> int | None:
    if wanted is None:
        return None
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise InvalidRequestError("dimensions must be a whole number above 0", param="dimensions")
    if vector and wanted > vector:
        raise InvalidRequestError(
            f"dimensions is {wanted}; this model's vectors have {vector} numbers",
            param="dimensions",
        )
    return wanted


def _flag(extra: Mapping[str, object], name: str) -> bool:
    value = extra.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false", param=name)
    return value
