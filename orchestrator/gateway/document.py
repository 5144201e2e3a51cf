"""The part of the OpenAPI document that FastAPI can't see: the chat route is raw ASGI."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from orchestrator.gateway.chat import CHAT_PATH
from orchestrator.gateway.chat_request import ChatCompletionRequest

FAILURES = {
    400: "The request is malformed, or the model can't serve it; `param` names the field.",
    404: "No model of that name.",
    413: "The body is too large, or the request exceeds a limit that no waiting cures.",
    422: "A parameter of the path or query is malformed.",
    429: "The queue is full, or the provider limits the rate; Retry-After says for how long.",
    500: "A fault of this program or of the model on this one request.",
    502: "The provider or the worker failed.",
    503: "The deployment is unhealthy or the service is stopping; Retry-After says for how long.",
    504: "A deadline or a step's time passed.",
}

_ERROR_SCHEMA: dict[str, object] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def add_chat_route(document: dict[str, object], routes: Sequence[str]) -> None:
    """Writes the chat route and the shape of errors into an OpenAPI document."""
    _, schemas = msgspec.json.schema_components(
        (ChatCompletionRequest,), ref_template="#/components/schemas/{name}"
    )
    body = cast("dict[str, dict[str, object]]", schemas["ChatCompletionRequest"])
    # a name that is free text keeps schema fuzzers at 404 for ever
    body["properties"]["model"] = {"type": "string", "enum": list(routes)}
    components = cast("dict[str, object]", document.setdefault("components", {}))
    known = cast("dict[str, object]", components.setdefault("schemas", {}))
    known.update(schemas)
    known["Error"] = known["HTTPValidationError"] = _ERROR_SCHEMA
    paths = cast("dict[str, object]", document.setdefault("paths", {}))
    paths[CHAT_PATH] = {"post": _operation()}


def _failure(description: str) -> dict[str, object]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


NO_SUCH_MODEL: dict[int | str, dict[str, Any]] = {404: _failure(FAILURES[404])}
"""For FastAPI's own routes."""


def _operation() -> dict[str, object]:
    succeeded = {
        "description": "The answer; server-sent events if `stream` is true.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    failed = {str(status): _failure(description) for status, description in FAILURES.items()}
    schema = {"$ref": "#/components/schemas/ChatCompletionRequest"}
    return {
        "summary": "Answer a conversation",
        "operationId": "create_chat_completion",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": succeeded, **failed},
    }
