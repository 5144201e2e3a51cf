"""Errors as a whole response and as one event of a stream; OpenAI's shape is the default."""

import math
import re
from collections.abc import Sequence

import msgspec
from starlette.types import Send

from orchestrator.errors import (
    AuthenticationError,
    BudgetExceededError,
    EngineDrainingError,
    InternalError,
    OrchestratorError,
    describe,
)

GONE = 499
"""The caller went away: for logs only, it has no reader."""
MAX_CAUSE_TEXT = 500
MAX_TEXT = 2000
MAX_PARAM = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Headers = Sequence[tuple[bytes, bytes]]
ErrorObject = dict[str, dict[str, str | None]]
"""`{"error": {"message", "type", "param", "code"}}`."""


def error_object(message: str, *, kind: str, code: str, param: str | None = None) -> ErrorObject:
    """An error in OpenAI's shape."""
    place = None if param is None else _plain(param, MAX_PARAM)
    return {
        "error": {"message": _plain(message, MAX_TEXT), "type": kind, "param": place, "code": code}
    }


def _plain(text: str, longest: int) -> str:
    # what a caller has sent may be quoted in it, and whoever prints it must get one line; a file's
    # name in an error may hold half a character, which no encoding takes
    encoded = text[:longest].encode("utf-8", "replace").decode()
    return _CONTROL.sub(_escaped, encoded)


def _escaped(control: re.Match[str]) -> str:
    return control[0].encode("unicode_escape").decode()


def failure_object(error: OrchestratorError) -> ErrorObject:
    """One of our errors in OpenAI's shape, its root cause told."""
    return error_object(_told(error), kind=error.kind, code=error.code, param=error.param)


def status_of(error: OrchestratorError) -> int:
    """The status for a caller who is still there."""
    return InternalError.status_code if error.status_code == GONE else error.status_code


def retry_after(seconds: float | None) -> Headers:
    """Retry-After in whole seconds, rounded up (RFC 9110, 10.2.3)."""
    if seconds is None or not 0 < seconds < math.inf:
        return ()
    return ((b"retry-after", b"%d" % math.ceil(seconds)),)


def advice(error: OrchestratorError) -> Headers:
    """WWW-Authenticate, which a 401 has to have (RFC 9110, 11.6.1); what official clients heed."""
    if isinstance(error, AuthenticationError):
        return ((b"www-authenticate", b"Bearer"),)
    # they would try a 429 again within seconds, and a budget is used up for hours
    return ((b"x-should-retry", b"false"),) if isinstance(error, BudgetExceededError) else ()


async def send_json(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """Sends a whole JSON response."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_failure(
    send: Send, error: OrchestratorError, headers: Headers, body: object
) -> None:
    """Sends an error as a whole response.

    Args:
        send: ASGI's.
        error: What the status and the headers are made of.
        headers: Of every response.
        body: The error in the API's shape.
    """
    closing = ((b"connection", b"close"),) if isinstance(error, EngineDrainingError) else ()
    await send_json(
        send,
        status_of(error),
        msgspec.json.encode(body),
        (*headers, *retry_after(error.retry_after), *advice(error), *closing),
    )


def failure_event(error: OrchestratorError) -> bytes:
    """The last event of a stream that broke off: nothing follows it, no `[DONE]` either."""
    return b"data: " + msgspec.json.encode(failure_object(error)) + b"\n\n"


def _told(error: OrchestratorError) -> str:
    root = error.root_cause
    text = error.message
    # a foreign cause may quote a prompt or a key; who lets it out has put it into the message
    if isinstance(root, OrchestratorError) and root.message not in text:
        text = f"{text} (cause: {describe(root)[:MAX_CAUSE_TEXT]})"
    if error.attempts > 1 and " attempts" not in text:
        text = f"{text} ({error.attempts} attempts)"
    return text
