"""The part of the OpenAPI document that FastAPI can't see: what is posted to is raw ASGI."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from orchestrator.gateway.anthropic.failure import SCHEMA as ANTHROPIC_SCHEMA
from orchestrator.gateway.api import Api
from orchestrator.gateway.works import COHERE_SCHEMA

FAILURES = {
    400: "The request is malformed, or the model can't serve it; `param` names the field.",
    401: "The key is missing, unknown or expired.",
    403: "The key may not do this.",
    404: "No model of that name.",
    408: "The request came too slowly.",
    413: "The body is too large, or the request exceeds a limit that no waiting cures.",
    422: "A parameter of the path or query is malformed.",
    429: "The queue is full, or the provider limits the rate; Retry-After says for how long.",
    500: "A fault of this program or of the model on this one request.",
    502: "The provider or the worker failed.",
    503: "The deployment is unhealthy or the service is stopping; Retry-After says for how long.",
    504: "A deadline or a step's time passed.",
}

_ERROR = {
    "type": "object",
    "required": ["message", "type", "param", "code"],
    "properties": {
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"]},
        "code": {"type": "string"},
    },
}
_ERROR_SCHEMA: dict[str, object] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": _ERROR},
}
_EVENT: dict[str, object] = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {"type": "string"},
        "event": {"type": "string"},
        "id": {"type": "string"},
    },
}
"""Each event of a stream."""
_REFERENCE = "#/components/schemas/{name}"


def add_posts(document: dict[str, object], apis: Sequence[Api], routes: Sequence[str]) -> None:
    """Writes all that is posted to, and the shape of errors, into an OpenAPI document.

    Args:
        document: What FastAPI made of its own endpoints.
        apis: What is posted to.
        routes: The names of the models.
    """
    bodies = {api.body.__name__: api.body for api in apis}
    _, schemas = msgspec.json.schema_components(list(bodies.values()), ref_template=_REFERENCE)
    for name in bodies:
        body = cast("dict[str, dict[str, object]]", schemas[name])
        # a name that is free text keeps schema fuzzers at 404 for ever
        body["properties"]["model"] = {"type": "string", "enum": list(routes)}
    components = cast("dict[str, object]", document.setdefault("components", {}))
    known = cast("dict[str, object]", components.setdefault("schemas", {}))
    known.update(schemas)
    known["Error"] = known["HTTPValidationError"] = _ERROR_SCHEMA
    known["AnthropicError"] = ANTHROPIC_SCHEMA
    known["CohereError"] = COHERE_SCHEMA
    paths = cast("dict[str, object]", document.setdefault("paths", {}))
    for api in apis:
        paths[api.path] = {"post": _operation(api)}


def _failure(description: str, schema_name: str = "Error") -> dict[str, object]:
    schema = {"$ref": _REFERENCE.format(name=schema_name)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error answers for FastAPI's own routes."""
    return {status: _failure(FAILURES[status]) for status in statuses}


def _operation(api: Api) -> dict[str, object]:
    content: dict[str, object] = {"application/json": {"schema": {"type": "object"}}}
    if "stream" in api.body.__struct_fields__:
        # as FastAPI and OpenAPI 3.2 say it; before that, a schema means each event or all of them
        content["text/event-stream"] = {"itemSchema": _EVENT}
    answers: dict[str, object] = {
        "200": {
            "description": "The answer; server-sent events if `stream` is true.",
            "content": content,
        }
    }
    schema = {"$ref": _REFERENCE.format(name=api.body.__name__)}
    return {
        "summary": api.summary,
        "operationId": api.path.strip("/").replace("/", "_"),
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": answers
        | {str(status): _failure(text, api.failure_schema) for status, text in FAILURES.items()},
    }
