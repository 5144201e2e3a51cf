"""What became of a request, for a caller who asks with the header `x-orchestrator-explain: 1`.

`server.explain` may say that all are told, or none.

The response's headers tell the attempts so far, which are all of them where the answer comes whole
or is an error. A stream's headers go out with its first token, so what became of the request is
told once more in a comment before its end. An attempt's time in the queue has its wait for a permit
in it, which is told apart too, and that for the end of a backoff.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from typing_extensions import override

from orchestrator.errors import OrchestratorError, one_line
from orchestrator.events import Finished, TokenChunk
from orchestrator.gateway.api import StreamWriter
from orchestrator.gateway.visit import Visit
from orchestrator.request import AttemptRecord, PriorityRequest

EXPLAIN = b"x-orchestrator-explain"
NO = (b"", b"0", b"false")
EXPLAINED: Mapping[str, bool | None] = MappingProxyType(
    {"on_request": None, "always": True, "never": False}
)
"""By what `server.explain` says."""
ATTEMPTS = "x-orchestrator-attempts"
DEPLOYMENT = "x-orchestrator-deployment"
MAX_ERROR = 160
"""Characters that each attempt's error has."""
MAX_CHARACTERS = 6144
"""Of all attempts; proxies refuse large headers."""


def explain(visit: Visit) -> None:
    """Adds the headers to a response that isn't started yet, if they are wanted."""
    request = visit.request
    if request is None or not (visit.explained or EXPLAIN in visit.headers):
        return
    if not wants_explanation(visit):
        return
    for record in request.attempts:
        if record.outcome in {"done", "running"} and record.first_token_at is not None:
            visit.say(DEPLOYMENT, record.deployment)
    visit.say(ATTEMPTS, attempts_of(request))


def wants_explanation(visit: Visit) -> bool:
    """Whether all are told, or else whether this caller asked."""
    if visit.explained is not None:
        return visit.explained
    return visit.headers.get(EXPLAIN, b"").strip().lower() not in NO


def attempts_of(request: PriorityRequest) -> str:
    """All attempts and refusals as one line of JSON; the oldest are left out if that is long."""
    told: list[dict[str, object]] = [_told(record) for record in request.attempts]
    told.extend({"deployment": name, "refused": code} for name, code in request.passed_over)
    texts = [json.dumps(one, separators=(",", ":")) for one in told]
    left_out = 0
    while sum(map(len, texts)) > MAX_CHARACTERS:
        del texts[0]
        left_out += 1
    if left_out:
        texts.insert(0, f'{{"left_out":{left_out}}}')
    return f"[{','.join(texts)}]"


def _told(record: AttemptRecord) -> dict[str, object]:
    told: dict[str, object] = {
        "deployment": record.deployment,
        "slot": record.worker,
        "queued_ms": round(record.queued_for * 1000, 1),
        "permit_ms": round(record.permit_for * 1000, 1),
        "breaker": record.breaker,
        "first_token_ms": _milliseconds(record, record.first_token_at),
        "total_ms": _milliseconds(record, record.ended_at),
        "hedge": record.hedge or None,
        "resumed_after": record.resumed_after,
        "outcome": record.outcome,
        "error": None if record.error is None else one_line(record.error, MAX_ERROR),
        "decision": record.decision,
    }
    # a wait of 0 ms is told, what was not is left out
    return {name: value for name, value in told.items() if value is not None and value != ""}


def _milliseconds(record: AttemptRecord, at: float | None) -> float | None:
    return None if at is None else round((at - record.started_at) * 1000, 1)


class Explaining(StreamWriter):
    """Writes a stream with the attempts in a comment before its end.

    Args:
        writer: Writes all the rest.
        request: Whose attempts.
    """

    def __init__(self, writer: StreamWriter, request: PriorityRequest) -> None:
        self._writer = writer
        self._request = request

    @override
    def write(self, chunks: Sequence[TokenChunk]) -> bytes:
        return self._writer.write(chunks)

    @override
    def finish(self, finished: Finished) -> bytes:
        return self._comment() + self._writer.finish(finished)

    @override
    def fail(self, error: OrchestratorError) -> bytes:
        return self._comment() + self._writer.fail(error)

    def _comment(self) -> bytes:
        return f": {ATTEMPTS} {attempts_of(self._request)}\n\n".encode()
