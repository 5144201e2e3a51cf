"""What became of a request, in one line: the deployments it was at, and what came of it there."""

from orchestrator.errors import one_line
from orchestrator.request import AttemptRecord, PriorityRequest

MAX_ERROR = 160
"""Characters that each attempt's error has."""


def story(request: PriorityRequest) -> str:
    """All attempts and refusals, for people: `a/0.1 UpstreamServerError: 500; b/0.1 done`."""
    refused = [f"{deployment} refused ({code})" for deployment, code in request.passed_over]
    return "; ".join([*map(_told, request.attempts), *refused])


def _told(record: AttemptRecord) -> str:
    if record.error is None:
        return f"{record.worker} {record.outcome}"
    return f"{record.worker} {one_line(record.error, MAX_ERROR)}"
