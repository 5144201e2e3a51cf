"""Bugs of routing: of what follows a failure, of hedges, and of the seam in a broken answer."""

from collections.abc import Sequence

from typing_extensions import override

from orchestrator.channel import Channel
from orchestrator.errors import OrchestratorError
from orchestrator.events import TokenChunk
from orchestrator.request import PriorityRequest
from orchestrator.routing.deployment import Deployment
from orchestrator.routing.hedging import Hedging
from orchestrator.routing.journey import Journey
from orchestrator.routing.race import Lane, Race

ENOUGH = 6


class BothWrite(Race):
    """The loser of a race writes as well."""

    @override
    def is_won_by(self, lane: Lane, epoch: int) -> bool:
        self.channel.begin(epoch)
        return True


class ResumesOneTooEarly(Channel):
    """Forgets the last chunk that was sent, so it is sent again."""

    @override
    def suspend(self) -> Sequence[TokenChunk]:
        self._epoch = 0
        return tuple(self.kept or ())[:-1]


class LoopsOver(Journey):
    """A deployment that gave a request up is asked again after the others."""

    @override
    def _given_up(
        self, deployment: Deployment, leg: PriorityRequest, error: OrchestratorError
    ) -> None:
        if len(self._errors) < ENOUGH:  # a loop without an end would find only itself
            self._ahead.append(deployment)
        super()._given_up(deployment, leg, error)


class NeverSpent(Journey):
    """Every deployment has all its attempts, whatever the others have used."""

    @override
    def _is_spent(self) -> bool:
        return False


def tries_on(_request: PriorityRequest, _error: OrchestratorError) -> bool:
    """No attempt elsewhere counts."""
    return False


class HedgesAll(Hedging):
    """A second attempt whenever there is time for one."""

    @override
    def spend(self) -> bool:
        super().spend()
        return True
