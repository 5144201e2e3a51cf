"""What a provider's refusal means: status, headers and body in, one typed error out.

A table, read in this order: the provider's own code, its type, the HTTP status. A provider that
means something of its own by a code, or says what is wrong in words only, has a table of its own
that goes before (`Refusals`). Codes are matched
whole, for `insufficient_quota` is no rate limit and a text that merely mentions a filter is no
filter. What the provider said is kept, cut to 200 characters and with its secrets masked; a body
that isn't JSON keeps its status.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import cast

import msgspec

from orchestrator.errors import (
    MAX_UPSTREAM_TEXT,
    ContentFilteredError,
    ContextLengthExceededError,
    InvalidRequestError,
    OrchestratorError,
    RequestTooLargeError,
    UpstreamAuthenticationError,
    UpstreamConflictError,
    UpstreamNotFoundError,
    UpstreamOverloadedError,
    UpstreamPermissionError,
    UpstreamProtocolError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTimeoutError,
)

CODES: Mapping[str, type[OrchestratorError]] = {
    name: error
    for error, names in {
        UpstreamQuotaExceededError: (
            "insufficient_quota billing_hard_limit_reached billing_not_active billing_error"
            " insufficient_credits insufficient_balance credit_balance_exhausted Arrearage"
        ),
        UpstreamRateLimitedError: (
            "rate_limit_exceeded rate_limit_error rate_limit_reached too_many_requests"
            " RateLimitReached RESOURCE_EXHAUSTED"
        ),
        UpstreamOverloadedError: (
            "overloaded_error overloaded server_overloaded engine_overloaded model_overloaded"
            " engine_overloaded_error service_unavailable unavailable_error capacity_exceeded"
            " slow_down UNAVAILABLE"
        ),
        ContextLengthExceededError: (
            "context_length_exceeded string_above_max_length exceed_context_size_error"
            " model_max_prompt_tokens_exceeded context_window_exceeded"
        ),
        ContentFilteredError: (
            "content_filter content_policy_violation ResponsibleAIPolicyViolation"
            " content_filtered moderation_blocked data_inspection_failed"
        ),
        UpstreamAuthenticationError: (
            "invalid_api_key authentication_error invalid_authentication_error"
            " account_deactivated UNAUTHENTICATED"
        ),
        UpstreamPermissionError: (
            "permission_denied permission_error insufficient_permissions model_not_allowed"
            " unsupported_country_region_territory PERMISSION_DENIED"
        ),
        UpstreamNotFoundError: (
            "model_not_found not_found_error DeploymentNotFound model_not_available NOT_FOUND"
        ),
        UpstreamTimeoutError: "timeout request_timeout timeout_error DEADLINE_EXCEEDED",
        RequestTooLargeError: "request_too_large",
    }.items()
    for name in names.split()
}
"""Codes and types that say what is wrong whatever the status is."""

VAGUE_CODES: Mapping[str, type[OrchestratorError]] = {
    name: error
    for error, names in {
        InvalidRequestError: (
            "invalid_request_error invalid_request BadRequestError bad_request invalid_prompt"
            " validation INVALID_ARGUMENT FAILED_PRECONDITION invalid_value unsupported_value"
        ),
        UpstreamServerError: (
            "server_error internal_error internal_server_error InternalServerError api_error"
            " INTERNAL"
        ),
    }.items()
    for name in names.split()
}
"""Codes and types that count only where there is no HTTP status to ask: within a stream."""

STATUSES: Mapping[int, type[OrchestratorError]] = {
    400: InvalidRequestError,
    401: UpstreamAuthenticationError,
    402: UpstreamQuotaExceededError,
    403: UpstreamPermissionError,
    404: UpstreamNotFoundError,
    405: UpstreamNotFoundError,
    407: UpstreamAuthenticationError,
    408: UpstreamTimeoutError,
    409: UpstreamConflictError,
    410: UpstreamNotFoundError,
    413: RequestTooLargeError,
    424: UpstreamServerError,  # TGI: the generation failed
    425: UpstreamConflictError,
    429: UpstreamRateLimitedError,
    498: UpstreamOverloadedError,  # Groq: no room in the flex tier
    503: UpstreamOverloadedError,
    504: UpstreamTimeoutError,
    522: UpstreamTimeoutError,
    524: UpstreamTimeoutError,
    529: UpstreamOverloadedError,
}

# vLLM and its kin say so in words only: "This model's maximum context length is 4096 tokens..."
CONTEXT_TEXT = re.compile(
    r"context (?:length|window|size)|maximum model length|max_model_len"
    r"|`inputs` (?:tokens \+|must have less)",  # TGI, and Together before it
    re.IGNORECASE,
)
# One request that is larger than a minute's tokens: no pause helps (OpenAI, and Groq with 413).
REQUEST_TOO_LARGE_TEXT = re.compile("^Request too large for")

MAX_SEARCHED_TEXT = 4096
MAX_HINT = 1e9
"""Seconds, 30 years: a longer wait is no hint but a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """What one provider means where the tables for all don't know it or know it otherwise."""

    codes: Mapping[str, type[OrchestratorError]] = field(
        default_factory=dict[str, type[OrchestratorError]]
    )
    """Codes, types and reasons that go before everything else."""
    texts: Sequence[tuple[type[OrchestratorError], re.Pattern[str], type[OrchestratorError]]] = ()
    """(what it seems to be, what its text says, what it is)"""


ANY_PROVIDER = Refusals()

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises; broken UTF-8 and a nesting without end have kinds of their own."""

SECRETS = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|nvapi|key)[-_][\w*.-]{6,}"
    r"|\bAIza[\w-]{20,}"
    r"|(?<=bearer )[^\s\"',]+"
    r"|(?<=api[ _-]key[=:])[ ]?[^\s\"',]+",
    re.IGNORECASE,
)


NAME = re.compile(r"[A-Za-z_]{1,64}")


class _Refusal(msgspec.Struct):
    """What could be read of an error body; a part that isn't there is empty."""

    text: str = ""
    code: str | None = None
    kind: str | None = None
    inner: str | None = None
    """Azure's `innererror.code`."""
    param: str | None = None
    numbers: str = ""
    """Prompt and context size, where the provider gives them as numbers."""
    reasons: tuple[str, ...] = ()
    """Google's finer codes: the reasons and the quotas in the error's details."""
    retry_after: float | None = None
    """Seconds to wait, where the body tells them."""

    @property
    def name(self) -> str | None:
        """The code for people: Google's is the HTTP status, with the name beside it."""
        numeric = self.code is not None and self.code.isdecimal()
        return (self.kind or self.code) if numeric else (self.code or self.kind)


def classify(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    provider: str,
    *,
    secret: str | None = None,
    own: Refusals = ANY_PROVIDER,
) -> OrchestratorError:
    """Returns the error that a provider's answer other than a success means.

    Args:
        status: The HTTP status.
        headers: By lower-case name, or any mapping that ignores case.
        body: As much of the body as was read.
        provider: The name for people.
        secret: The key that was sent, masked wherever the provider repeats it.
        own: The provider's own table.
    """
    try:
        refusal = _read(msgspec.json.decode(body))
    except NOT_JSON:
        refusal = _Refusal(text=body[:MAX_SEARCHED_TEXT].decode(errors="replace"))
    text = shorten(refusal.text, secret)
    error = (
        _by_code(refusal, own.codes) or _by_code(refusal, CODES) or _by_status(status, refusal.text)
    )
    if error is UpstreamRateLimitedError and REQUEST_TOO_LARGE_TEXT.search(refusal.text):
        error = RequestTooLargeError
    asked = retry_after(headers)
    return _by_text(error, refusal, own)(
        f"{provider} answered {status}{_tail(text, refusal)}",
        param=_short(refusal.param, secret),
        retry_after=refusal.retry_after if asked is None else asked,
        upstream_status=status,
        upstream_code=_short(refusal.name, secret),
    )


def classify_event(
    payload: object,
    provider: str,
    *,
    secret: str | None = None,
    own: Refusals = ANY_PROVIDER,
) -> OrchestratorError:
    """Returns the error that a provider sent within a stream it had begun with 200.

    Args:
        payload: The event's decoded JSON, or its text if it was none.
        provider: The name for people.
        secret: The key that was sent, masked wherever the provider repeats it.
        own: The provider's own table.
    """
    refusal = _read(payload)
    status = int(refusal.code) if refusal.code and re.fullmatch(r"[45]\d\d", refusal.code) else None
    error = _by_code(refusal, own.codes) or _by_code(refusal, CODES)
    if error is None and status is not None:
        error = _by_status(status, refusal.text)
    if error is None:
        error = _by_code(refusal, VAGUE_CODES) or UpstreamServerError
    if error is InvalidRequestError and CONTEXT_TEXT.search(refusal.text):
        error = ContextLengthExceededError
    text = shorten(refusal.text, secret)
    return _by_text(error, refusal, own)(
        f"{provider} sent an error within the stream{_tail(text, refusal)}",
        param=_short(refusal.param, secret),
        retry_after=refusal.retry_after,
        upstream_status=status,
        upstream_code=_short(refusal.name, secret),
    )


def shorten(text: str, secret: str | None = None) -> str:
    """Returns a foreign text on one line, its secrets masked, cut to 200 characters."""
    if secret:
        text = text.replace(secret, "***")
    text = SECRETS.sub("***", " ".join(text[:MAX_SEARCHED_TEXT].split()))
    return text if len(text) <= MAX_UPSTREAM_TEXT else text[: MAX_UPSTREAM_TEXT - 3] + "..."


def _short(name: str | None, secret: str | None) -> str | None:
    """A code or a path is as foreign as a text, but for `key_limit_exceeded`, which is no key."""
    if name is None or (name != secret and NAME.fullmatch(name)):
        return name
    return shorten(name, secret)


def utc_now() -> float:
    """Seconds since 1970, for what a provider says in points of time."""
    return datetime.now(UTC).timestamp()  # noqa: TID251 - a date in a header is on the wall clock


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = utc_now) -> float | None:
    """Returns the seconds a provider asks to wait (RFC 9110, 10.2.3, and the millisecond kinds).

    None if it asks nothing or nothing sensible: negative, beyond 1e9, no number, no date. A date in
    the past is 0. The answer's own `Date` is the clock for a date, so that a wrong clock here
    doesn't matter.

    Args:
        headers: By lower-case name, or any mapping that ignores case.
        now: Seconds since 1970, asked only for a date in an answer that has no `Date`.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        seconds = _seconds(headers.get(name, ""), units=1000)
        if seconds is not None:
            return seconds
    text = headers.get("retry-after", "")
    seconds = _seconds(text)
    if seconds is not None:
        return seconds
    until = _date(text)
    if until is None:
        return None
    today = _date(headers.get("date", ""))
    return _sensible(max(0.0, until - (now() if today is None else today)))


def _seconds(text: str, *, units: int = 1) -> float | None:
    """Reads a number of so many units to the second."""
    try:
        return _sensible(float(text) / units)
    except ValueError:
        return None


def _sensible(seconds: float) -> float | None:
    return seconds if 0 <= seconds <= MAX_HINT else None  # never true of nan


def _date(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return date.timestamp()


def _by_code(
    refusal: _Refusal, table: Mapping[str, type[OrchestratorError]]
) -> type[OrchestratorError] | None:
    for name in (*refusal.reasons, refusal.inner, refusal.code, refusal.kind):
        if name is not None and name in table:
            return table[name]
    return None


def _by_text(
    error: type[OrchestratorError], refusal: _Refusal, own: Refusals
) -> type[OrchestratorError]:
    text = " ".join((refusal.text[:MAX_SEARCHED_TEXT], *refusal.reasons))
    for seeming, pattern, meant in own.texts:
        if error is seeming and pattern.search(text):
            return meant
    return error


def _by_status(status: int, text: str) -> type[OrchestratorError]:
    error = STATUSES.get(status)
    if error is None:
        if status >= 500:  # noqa: PLR2004 - the class of server errors
            return UpstreamServerError
        # Below 400 stands a redirect or an empty success: no answer, and no refusal either.
        error = InvalidRequestError if status >= 400 else UpstreamProtocolError  # noqa: PLR2004 - the class of client errors
    if error in (InvalidRequestError, RequestTooLargeError) and CONTEXT_TEXT.search(text):
        return ContextLengthExceededError
    return error


def _tail(text: str, refusal: _Refusal) -> str:
    return (f": {text}" if text else "") + refusal.numbers


def _read(payload: object) -> _Refusal:
    """Finds the error object in the shapes that providers use."""
    first = _first(payload)
    if not isinstance(first, dict):
        return _Refusal(text=_text(first))
    outer = cast("dict[str, object]", first)
    error = outer.get("error")
    if isinstance(error, str):
        kind = _name(outer.get("type")) or _name(outer.get("error_type"))  # the latter is TGI's
        return _Refusal(text=error, code=_name(outer.get("code")), kind=kind)
    body = cast("dict[str, object]", error) if isinstance(error, dict) else outer
    inner = body.get("innererror")
    used, room = body.get("n_prompt_tokens"), body.get("n_ctx")  # llama.cpp's server
    reasons, seconds = _details(body.get("details"))
    if "flagged_input" in _object(body.get("metadata")):  # OpenRouter's moderation, with status 403
        reasons = (*reasons, "content_filter")
    return _Refusal(
        text=_text(body.get("message") or body.get("detail") or cast("object", body)),
        code=_name(body.get("code")) or _name(body.get("status")),
        kind=_name(body.get("type")) or _name(body.get("status")),
        inner=_name(cast("dict[str, object]", inner).get("code"))
        if isinstance(inner, dict)
        else None,
        param=_name(body.get("param")),
        numbers=f" (prompt of {used} tokens, context of {room})"
        if isinstance(used, int) and isinstance(room, int)
        else "",
        reasons=reasons,
        retry_after=seconds,
    )


def _details(value: object) -> tuple[tuple[str, ...], float | None]:
    """Reads Google's error details: reasons, quotas that were used up, seconds to wait."""
    reasons: list[str] = []
    seconds: float | None = None
    for detail in map(_object, _list(value)):
        names = [detail.get("reason")]
        names += [_object(quota).get("quotaId") for quota in _list(detail.get("violations"))]
        reasons += [name for name in names if isinstance(name, str)]
        delay = detail.get("retryDelay")
        if isinstance(delay, str):
            seconds = _seconds(delay.removesuffix("s"))
    return tuple(reasons), seconds


def _object(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _first(payload: object) -> object:
    """Takes Gemini's error out of the list that it comes in."""
    items = cast("list[object]", payload) if isinstance(payload, list) else [payload]
    return items[0] if items else None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _name(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    return str(value)
