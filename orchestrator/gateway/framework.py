"""What FastAPI refuses or breaks on, told in the shape of the API whose path it is."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from orchestrator.errors import InternalError, OrchestratorError
from orchestrator.gateway.failure import (
    ErrorObject,
    Headers,
    error_object,
    failure_object,
    retry_after,
    status_of,
)
from orchestrator.gateway.shape import shaped

REQUEST_ID = "orchestrator.request_id"
"""Where a scope has it."""
CODES = {404: "not_found", 405: "method_not_allowed"}


async def failed(request: Request, error: OrchestratorError) -> Response:
    """Answers one of our own errors."""
    headers = as_text(retry_after(error.retry_after))
    return _answer(request, status_of(error), failure_object(error), headers)


async def refused(request: Request, error: HTTPException) -> Response:
    """Answers what no route is there for."""
    code = CODES.get(error.status_code, "invalid_request")
    told = error_object(error.detail, kind="invalid_request_error", code=code)
    return _answer(request, error.status_code, told, error.headers)


async def invalid(request: Request, error: RequestValidationError) -> Response:
    """Answers a parameter that can't be read."""
    first = error.errors()[0]
    param = str(first["loc"][-1])
    text = f"{param}: {first['msg']}"
    told = error_object(text, kind="invalid_request_error", code="invalid_request", param=param)
    return _answer(request, 422, told)


async def broken(request: Request, error: Exception) -> Response:
    """Answers what is a fault of this program."""
    told = InternalError("an internal error; the log has more under the id of this request")
    told.__cause__ = error
    return _answer(request, told.status_code, failure_object(told))


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    OrchestratorError: failed,
    HTTPException: refused,
    RequestValidationError: invalid,
    Exception: broken,
}


def as_text(headers: Headers) -> dict[str, str]:
    """Headers as the framework takes them."""
    return {name.decode(): value.decode() for name, value in headers}


def _answer(
    request: Request, status: int, told: ErrorObject, headers: Mapping[str, str] | None = None
) -> Response:
    body = shaped(request.scope["path"], told, status, request.scope.get(REQUEST_ID))
    return Response(
        msgspec.json.encode(body), status, dict(headers or {}), media_type="application/json"
    )
