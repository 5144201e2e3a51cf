"""Errors in the shape of Anthropic's Messages API."""

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.gateway.failure import ErrorObject, failure_object, status_of

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status; all else is the API's fault."""


SCHEMA: dict[str, object] = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message", "code", "param"],
            "properties": {
                "type": {"enum": sorted({*TYPES.values(), "api_error"})},
                "message": {"type": "string"},
                "code": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
        },
        "request_id": {"type": ["string", "null"]},
    },
}
"""Of an error, for the published document."""


def in_shape(told: ErrorObject, status: int, request_id: str | None) -> dict[str, object]:
    """An error of OpenAI's shape in Anthropic's; code and parameter are kept."""
    error = told["error"]
    known = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")  # noqa: PLR2004 - from here on it isn't the caller's
    return {"type": "error", "error": {**error, "type": known}, "request_id": request_id}


def failure(error: OrchestratorError, request_id: str) -> dict[str, object]:
    """The body of a refusal."""
    return in_shape(failure_object(error), status_of(error), request_id)


def failure_event(error: OrchestratorError, request_id: str) -> bytes:
    """The last event of a stream that broke off."""
    return b"event: error\ndata: " + msgspec.json.encode(failure(error, request_id)) + b"\n\n"
