"""Every way a request can fail, as one tree.

What an error means stands on its class and is read as one attribute by the retry policy, the
breaker, routing and the gateway; nobody writes an `isinstance` ladder or a status table. Scopes
never grow by themselves: an error of scope `request` can't end a worker, one of scope `worker`
can't end an engine.

    OrchestratorError
    ├── ConfigError                       the YAML is wrong; never reaches a request
    ├── RequestError                      scope request: the caller's own
    │   ├── InvalidRequestError           400 ── ContextLengthExceededError, ContentFilteredError
    │   ├── RequestTooLargeError          413
    │   ├── AuthenticationError           401
    │   ├── PermissionDeniedError         403
    │   ├── ModelNotFoundError, StreamGoneError  404
    │   ├── IdempotencyConflictError, ReloadRefusedError  422
    │   ├── CallerLimitedError            429
    │   ├── QueueFullError                429 ── QueueRejectedError
    │   ├── BudgetExceededError           429
    │   ├── LedgerUnavailableError        503
    │   ├── DeadlineExceededError         504
    │   ├── RequestCanceledError          499
    │   ├── SlowConsumerError             499
    │   └── GenerationFailedError         500
    ├── UpstreamError                     scope upstream: one attempt at a provider failed
    │   ├── UpstreamConnectError, UpstreamServerError, UpstreamOverloadedError
    │   ├── UpstreamTimeoutError, UpstreamTruncatedError, UpstreamProtocolError,
    │   │   UpstreamConflictError
    │   └── UpstreamRateLimitedError, UpstreamQuotaExceededError, UpstreamAuthenticationError,
    │       UpstreamPermissionError, UpstreamNotFoundError
    ├── CircuitOpenError                  scope upstream: refused here, the provider wasn't asked
    ├── WorkerError                       scope worker: a slot or its model host failed
    │   └── WorkerCrashedError, WorkerHungError, WorkerStartError
    └── EngineError                       scope engine
        └── EngineUnhealthyError, EngineDrainingError, LoopBlockedError, InternalError
"""

import re
from typing import ClassVar, Literal

Scope = Literal["request", "upstream", "worker", "engine"]

MAX_UPSTREAM_TEXT = 200


class OrchestratorError(Exception):
    """A request failed, or could not be accepted."""

    status_code: ClassVar[int] = 500
    """The HTTP status that a caller of the gateway gets before the first token."""
    code: ClassVar[str] = "internal_error"
    """A stable name for programs; the gateway sends it as `error.code`."""
    kind: ClassVar[str] = "server_error"
    """OpenAI's `error.type`."""
    scope: ClassVar[Scope] = "engine"
    retryable: ClassVar[bool] = False
    """Whether the same deployment may be tried again while nothing was delivered."""
    fails_over: ClassVar[bool] = False
    """Whether the next deployment of the route may be tried while nothing was delivered."""
    trips_breaker: ClassVar[bool] = False
    retry_cost: ClassVar[int] = 1
    """Of the retry budget, what trying again costs; 0 if no upstream was reached."""
    is_overload: ClassVar[bool] = False
    """Whether fewer attempts at the same time may be the cure."""
    is_silence: ClassVar[bool] = False
    """Whether a step made no progress in time; the next deployment is better than another try."""
    blames_key: ClassVar[bool] = False
    """Whether it is about the key that was sent, so that another key may do better."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        upstream_status: int | None = None,
        upstream_code: str | None = None,
    ) -> None:
        """Keeps what a program may want to know besides the text.

        Args:
            message: One sentence: what was wrong, where, and what to do.
            param: The request's field or the config's key path at fault.
            retry_after: Seconds until trying again can make sense.
            upstream_status: The provider's HTTP status.
            upstream_code: The provider's own error code.
        """
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.upstream_status = upstream_status
        self.upstream_code = upstream_code
        self.attempts = 0
        """Of the request that it ended, if it ended one."""

    @property
    def root_cause(self) -> BaseException:
        """The first error of the chain of causes, which may be this one."""
        error: BaseException = self
        seen = {id(error)}
        while error.__cause__ is not None and id(error.__cause__) not in seen:
            error = error.__cause__
            seen.add(id(error))
        return error


def describe(error: BaseException) -> str:
    """Returns class and text of an error; survives an error whose `__str__` raises."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything, the error must still be told
        text = "<its text could not be made>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(text: str, limit: int = 1000) -> str:
    """A text that may hold anything, as one line of a log: control characters escaped, cut."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)
    return line if len(line) <= limit else f"{line[:limit]}..."


class ConfigError(OrchestratorError):
    """The configuration can't be used; the message has a line for each fault."""

    code = "invalid_config"


class RequestError(OrchestratorError):
    """The request itself can't be served; nobody else is concerned."""

    status_code = 400
    kind = "invalid_request_error"
    scope = "request"


class InvalidRequestError(RequestError):
    """A field of the request is missing, malformed or out of range; `param` names it."""

    code = "invalid_request"


class ContextLengthExceededError(InvalidRequestError):
    """Prompt and answer don't fit into the model's context."""

    code = "context_length_exceeded"


class ContentFilteredError(InvalidRequestError):
    """A provider refused the prompt by its content rules."""

    code = "content_filter"


class RequestTooLargeError(RequestError):
    """One request above a limit that no waiting cures."""

    status_code = 413
    code = "request_too_large"


class AuthenticationError(RequestError):
    """The key or token is missing, unknown, expired or revoked."""

    status_code = 401
    code = "invalid_api_key"
    kind = "authentication_error"


class PermissionDeniedError(RequestError):
    """The key is valid, but not for this."""

    status_code = 403
    code = "permission_denied"
    kind = "permission_error"


class CallerLimitedError(RequestError):
    """The key's own limits are reached; come back after `retry_after` seconds."""

    status_code = 429
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"


class IdempotencyConflictError(RequestError):
    """The Idempotency-Key was used for another request."""

    status_code = 422
    code = "idempotency_conflict"


class ReloadRefusedError(RequestError):
    """The configuration was read anew and can't be taken over; all goes on as before."""

    status_code = 422
    code = "reload_refused"


class StreamGoneError(RequestError):
    """No stream can be gone on with after that event: ask anew."""

    status_code = 404
    code = "stream_gone"


class ModelNotFoundError(RequestError):
    """No route of that name."""

    status_code = 404
    code = "model_not_found"


class QueueFullError(RequestError):
    """The deployment's queue has no room; come back after `retry_after` seconds."""

    status_code = 429
    code = "queue_full"
    kind = "rate_limit_error"
    fails_over = True


class QueueRejectedError(QueueFullError):
    """As above, of a queue that wants no other deployment to be asked (`on_full: reject`)."""

    fails_over = False


class BudgetExceededError(RequestError):
    """What the caller, the route or the deployment may spend is spent until `retry_after`."""

    status_code = 429
    code = "budget_exceeded"
    kind = "insufficient_quota"


class LedgerUnavailableError(RequestError):
    """The usage ledger can't be written, and the configuration says to serve nothing then."""

    status_code = 503
    code = "ledger_unavailable"
    kind = "server_error"


class DeadlineExceededError(RequestError):
    """The request's own deadline passed; says nothing about health."""

    status_code = 504
    code = "deadline_exceeded"
    kind = "timeout_error"


class RequestCanceledError(RequestError):
    """The caller canceled or went away."""

    status_code = 499
    code = "canceled"


class SlowConsumerError(RequestError):
    """The caller didn't read while its buffer filled up; only this request ends."""

    status_code = 499
    code = "slow_consumer"


class GenerationFailedError(RequestError):
    """The local model failed on this request alone; its host and its neighbours go on."""

    status_code = 500
    code = "generation_failed"
    kind = "server_error"
    fails_over = True


class UpstreamError(OrchestratorError):
    """One attempt at a provider failed."""

    status_code = 502
    code = "upstream_error"
    kind = "upstream_error"
    scope = "upstream"
    retryable = True
    fails_over = True
    trips_breaker = True


class UpstreamConnectError(UpstreamError):
    """No connection could be made: nothing was sent."""

    code = "upstream_unreachable"
    retry_cost = 0


class UpstreamServerError(UpstreamError):
    """The provider answered 5xx."""

    code = "upstream_server_error"


class UpstreamOverloadedError(UpstreamError):
    """The provider is over its capacity (503 or 529 with its own code)."""

    status_code = 503
    code = "upstream_overloaded"
    is_overload = True


class UpstreamTimeoutError(UpstreamError):
    """A step at the provider (connect, first token, next token) took longer than its limit."""

    status_code = 504
    code = "upstream_timeout"
    retry_cost = 2
    is_overload = True
    is_silence = True


class UpstreamTruncatedError(UpstreamError):
    """The stream ended without a finish reason."""

    code = "upstream_truncated"


class UpstreamProtocolError(UpstreamError):
    """The provider's bytes are no answer: broken JSON, HTML, an oversized event."""

    code = "upstream_protocol_error"


class UpstreamConflictError(UpstreamError):
    """409 or 425: the provider wants the same request again; says nothing about its health."""

    code = "upstream_conflict"
    trips_breaker = False


class UpstreamRateLimitedError(UpstreamError):
    """429: the key pauses, the breaker doesn't move."""

    status_code = 429
    code = "upstream_rate_limited"
    is_overload = True
    kind = "rate_limit_error"
    trips_breaker = False
    blames_key = True


class UpstreamQuotaExceededError(UpstreamError):
    """The provider account has no credit left; trying again is no cure."""

    status_code = 429
    code = "insufficient_quota"
    kind = "insufficient_quota"
    retryable = False
    trips_breaker = False
    blames_key = True


class UpstreamAuthenticationError(UpstreamError):
    """The provider refused the deployment's key; the caller's own key is not at fault."""

    code = "upstream_authentication"
    retryable = False
    trips_breaker = False
    blames_key = True


class UpstreamPermissionError(UpstreamError):
    """The deployment's key may not use this model or feature."""

    code = "upstream_permission_denied"
    retryable = False
    trips_breaker = False


class UpstreamNotFoundError(UpstreamError):
    """The provider doesn't know the deployment's model or path."""

    code = "upstream_not_found"
    retryable = False
    trips_breaker = False


class CircuitOpenError(OrchestratorError):
    """The breaker refused the attempt; the provider was not asked."""

    status_code = 503
    code = "circuit_open"
    kind = "overloaded_error"
    scope = "upstream"
    fails_over = True
    retry_cost = 0


class WorkerError(OrchestratorError):
    """A worker failed under this request."""

    status_code = 502
    code = "worker_error"
    scope = "worker"
    retryable = True
    fails_over = True


class WorkerCrashedError(WorkerError):
    """The worker or its model host died."""

    code = "worker_crashed"


class WorkerHungError(WorkerError):
    """A local step made no progress within its lease; the worker is replaced."""

    status_code = 504
    code = "worker_hung"
    is_silence = True


class WorkerStartError(WorkerError):
    """A worker could not be started: its model didn't load, or not in time."""

    status_code = 503
    code = "worker_start_failed"


class EngineError(OrchestratorError):
    """The whole deployment is concerned."""

    status_code = 503
    kind = "overloaded_error"
    fails_over = True


class EngineUnhealthyError(EngineError):
    """The engine is poisoned; `__cause__` is the first fault's cause."""

    code = "engine_unhealthy"


class EngineDrainingError(EngineError):
    """The service is stopping and takes nothing new, or its drain limit ended this request."""

    code = "draining"


class LoopBlockedError(EngineError):
    """The event loop did not answer for more than a second; what it watched was unwatched."""

    code = "loop_blocked"

    def __init__(self, seconds: float) -> None:
        """Tells for how many seconds."""
        super().__init__(f"the event loop was blocked for {seconds:.1f} s")


class InternalError(EngineError):
    """A fault of this program; the log has the traceback."""

    status_code = 500
    code = "internal_error"
    kind = "server_error"
    fails_over = False
