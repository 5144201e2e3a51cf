"""One request's way over the deployments of its route.

Those that are ready come first, in the configured order; the others are tried after them, for one
that is about to be back is better than none. A deployment that gives a request up hands it back
here; as long as nothing was delivered the next one gets it, if the error is of a kind that another
deployment may not share. No deployment is tried twice.
"""

import asyncio
from collections.abc import Sequence

from orchestrator.errors import (
    CircuitOpenError,
    EngineError,
    EngineUnhealthyError,
    InternalError,
    OrchestratorError,
    QueueFullError,
)
from orchestrator.events import Failed
from orchestrator.request import PriorityRequest
from orchestrator.routing.route import Deployment


class Journey:
    """One request's way over the deployments of its route."""

    __slots__ = ("_ahead", "_errors", "_request")

    def __init__(self, request: PriorityRequest, able: Sequence[Deployment]) -> None:
        self._request = request
        self._ahead = iter(sorted(able, key=_not_ready) if len(able) > 1 else able)
        self._errors: list[OrchestratorError] = []

    def go_on(self) -> None:
        """Gives the request to the next deployment that takes it, or ends it."""
        channel = self._request.channel
        for deployment in self._ahead:
            if channel.ending is not None:
                return
            try:
                deployment.inflight.accept(
                    self._request, self._given_up, now=asyncio.get_running_loop().time()
                )
            except (EngineError, QueueFullError) as refusal:
                self._errors.append(refusal)
            else:
                return
        channel.end(Failed(self._most_telling()))

    def _given_up(self, error: OrchestratorError) -> None:
        request = self._request
        self._errors.append(error)
        tried = bool(request.attempts)
        if (
            not error.fails_over
            or not request.channel.retract()
            or (tried and not request.idempotent)
        ):
            request.channel.end(Failed(error))
            return
        self.go_on()

    def _most_telling(self) -> OrchestratorError:
        """What an upstream or worker said counts more than a refusal of our own."""
        if self._request.first_error is not None:  # an attempt failed before anybody refused
            return self._request.first_error
        for error in self._errors:
            if error.scope in {"upstream", "worker"} and not isinstance(error, CircuitOpenError):
                return error
        if self._request.attempts:  # a poison that ended an attempt tells more than who refused
            for error in self._errors:
                if isinstance(error, EngineUnhealthyError):
                    return error
        return self._errors[0] if self._errors else InternalError("the route has no deployment")


def _not_ready(deployment: Deployment) -> bool:
    return not deployment.ready()
