"""In which shape an error is told where no API has read the request: the path says it."""

from collections.abc import Mapping

from orchestrator.gateway.anthropic.failure import in_shape
from orchestrator.gateway.failure import ErrorObject

ANTHROPIC = "/v1/messages"
"""This path and all below it are Anthropic's."""
COHERE = frozenset(("/rerank", "/v1/rerank", "/v2/rerank"))
"""These are Cohere's; all others have OpenAI's errors."""


def shaped(
    path: str, told: ErrorObject, status: int, request_id: str | None
) -> Mapping[str, object]:
    """An error in the shape of the API that a path belongs to.

    Args:
        path: As it was asked for; empty if nothing of it came.
        told: In OpenAI's shape.
        status: The response's.
        request_id: None before there is one.
    """
    if path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/"):
        return in_shape(told, status, request_id)
    if path in COHERE:
        return {"id": request_id or "", "message": told["error"]["message"], **told}
    return told
