"""One request's way over the deployments of its route.

A deployment that gives the request up hands it back here; as long as nothing was delivered the next
one gets it, if the rules of the route say so. Each deployment is taken out of those ahead before it
is asked, so none is tried twice, whatever the rules say; and one bound holds for the attempts at
all of them together, so that tries don't multiply. Of that bound one attempt is kept for each
healthy deployment that is still ahead: the first one's retries can't use it up. Where a full queue
has extra places, one of them is asked for after all the others had no room.

After delivery nothing is restarted. An answer goes on where it broke off, if a deployment can do
that; if not, or if that is refused, its end is the error that broke it.
"""

import asyncio
from dataclasses import replace
from functools import partial

from orchestrator.errors import (
    CircuitOpenError,
    EngineError,
    EngineUnhealthyError,
    InternalError,
    OrchestratorError,
    QueueFullError,
)
from orchestrator.events import Failed
from orchestrator.request import AttemptRecord, PriorityRequest
from orchestrator.resume import Resume, Seam
from orchestrator.routing.deployment import Deployment
from orchestrator.routing.explain import story
from orchestrator.routing.hedging import Hedging
from orchestrator.routing.midstream import may_break_off_well, seam_at, successors
from orchestrator.routing.race import Lane, Race
from orchestrator.routing.route import RoutePolicy


class Journey:
    """One request's way.

    Args:
        request: Whose.
        policy: The route's.
        ahead: The deployments that may be able to serve it, the best one first.
        hedging: The route's hedges; None for none.
    """

    __slots__ = ("_ahead", "_errors", "_full", "_hedging", "_policy", "_race", "_request", "_seams")

    def __init__(
        self,
        request: PriorityRequest,
        policy: RoutePolicy,
        ahead: list[Deployment],
        hedging: Hedging | None = None,
    ) -> None:
        self._request = request
        self._hedging = hedging if request.idempotent and len(ahead) > 1 else None
        self._race = self._hedge_later(self._hedging) if self._hedging is not None else None
        self._policy = policy
        self._ahead = ahead
        self._errors: list[OrchestratorError] = []
        self._full: list[Deployment] = []  # and with extra places, in the order of the route
        self._seams: dict[Deployment, Seam] = {}

    def go_on(self) -> None:
        """Gives the request to the next deployment that takes it, or ends it."""
        request = self._request
        while self._ahead and not self._is_spent():
            if request.channel.ending is not None:
                return
            deployment = self._ahead.pop(0)
            refusal = self._offer(deployment)
            if refusal is None:
                return
            request.passed_over.append((deployment.name, refusal.code))
            self._ahead = self._policy.rules.follow(refusal, deployment, self._ahead)
            if isinstance(refusal, QueueFullError) and deployment.inflight.waits:
                self._full.append(deployment)
            else:
                self._errors.append(refusal)
        while self._full and not self._is_spent():
            if request.channel.ending is not None:
                return
            refusal = self._offer(self._full.pop(0), patient=True)
            if refusal is None:
                return
            self._errors.append(refusal)
        self._fail(self._most_telling())

    # --- hedges ---

    def _hedge_later(self, hedging: Hedging) -> Race:
        loop = asyncio.get_running_loop()
        begun, channel = loop.time(), self._request.channel
        delay = hedging.delay()
        if delay is not None:
            channel.watch(loop.call_later(delay, self._hedge, hedging).cancel)

        def won(lane: Lane) -> None:
            hedging.observe(loop.time() - begun)
            running = [one for one in self._request.attempts if one.ended_at is None]
            if len(running) > 1:
                for one in running:
                    one.decision = f"{'won' if one.epoch == lane.epoch else 'lost'} the hedge"
            if lane.hedge:
                hedging.won()

        return Race(channel, won)

    def _hedge(self, hedging: Hedging) -> None:
        """Asks one more deployment, unless a token or an ending came, or it isn't allowed to."""
        race, request = self._race, self._request
        if race is None or race.winner is not None or len(race.lanes) != 1 or self._is_spent():
            return
        deployment = hedging.choose(self._ahead)
        if deployment is None or not hedging.spend():
            return
        self._ahead.remove(deployment)
        request.hedge = True
        refusal = self._offer(deployment)
        request.hedge = False
        if refusal is not None:
            request.passed_over.append((deployment.name, refusal.code))
        elif request.attempts and request.attempts[-1].ended_at is None:
            request.attempts[-1].decision = f"hedged: {deployment.name}"

    def _leg(self, deployment: Deployment) -> PriorityRequest:
        """What is handed to a deployment: the request, or a contender with a lane of its own."""
        if self._race is None:
            return self._request
        lane = self._race.enter(deployment, hedge=self._request.hedge)
        return replace(self._request, channel=lane)

    def _others_run(self, leg: PriorityRequest, error: OrchestratorError) -> bool:
        """Takes over what a contender has learnt; whether the answer is left to another one.

        A hedge that fails never harms the request. Who was asked first may fail in a way that no
        other deployment helps against: then the request is over, as it would be without a hedge.
        """
        race, request, lane = self._race, self._request, leg.channel
        request.first_error = request.first_error or leg.first_error
        request.resume = leg.resume or request.resume
        if race is None or not isinstance(lane, Lane):
            return False
        race.leave(lane)
        others = [one.deployment for one in race.lanes]
        if lane.hedge or error.fails_over:
            return bool(others)
        return bool(self._policy.rules.follow(error, lane.deployment, others))

    # --- on the way ---

    def _offer(
        self, deployment: Deployment, *, patient: bool = False
    ) -> EngineError | QueueFullError | None:
        self._join(deployment)
        self._bound_attempts()
        if not self._request.hedge:
            self._decide(self._way_to(deployment))
        leg = self._leg(deployment)
        try:
            deployment.inflight.accept(
                leg,
                partial(self._given_up, deployment, leg),
                now=asyncio.get_running_loop().time(),
                patient=patient,
            )
        except (EngineError, QueueFullError) as refusal:
            if self._race is not None:
                self._race.leave(leg.channel)
            return refusal
        return None

    def _way_to(self, deployment: Deployment) -> str:
        if self._request.resume is None:
            return f"next: {deployment.name}"
        return f"resumed ({self._request.seam}) at {deployment.name}"

    def _decide(self, decision: str) -> None:
        """Notes what followed at the attempt that failed last; a hedge's loser did not fail."""
        attempts = self._request.attempts
        failed = (one for one in attempts if one.error is not None)
        last = max(failed, key=_ended_at, default=attempts[-1] if attempts else None)
        if last is not None:
            last.decision = decision

    def _is_spent(self) -> bool:
        limit = self._policy.max_attempts
        return limit is not None and self._request.tries >= limit

    def _join(self, deployment: Deployment) -> None:
        """Says how the next deployment may go on with what has been sent, or will have been."""
        request, midstream = self._request, self._policy.midstream
        if request.resume is not None:
            request.seam = self._seams[deployment]
            request.resume = replace(request.resume, seam=request.seam)
            return
        request.seam = seam_at(midstream, deployment, request)
        if request.channel.kept is None and may_break_off_well(
            midstream, request.seam, self._ahead, request
        ):
            request.channel.kept = []

    def _bound_attempts(self) -> None:
        """Tells the attempts at the next deployment what is kept for those after it."""
        request, limit = self._request, self._policy.max_attempts
        others = sum(deployment.healthy() for deployment in self._ahead) if self._ahead else 0
        request.others_ahead = others > 0
        request.attempt_limit = None if limit is None else limit - others
        if request.hedge:
            request.attempt_limit = 0  # it is one attempt, and none after it

    def _given_up(
        self, deployment: Deployment, leg: PriorityRequest, error: OrchestratorError
    ) -> None:
        request = self._request
        self._errors.append(error)
        if leg is not request and self._others_run(leg, error):
            return
        if request.channel.committed:
            self._after_delivery(deployment, error)
            return
        if self._policy.measures and error.is_silence and request.attempts:
            now = asyncio.get_running_loop().time()
            deployment.latency.observe(now - request.attempts[-1].started_at, now)
        ahead = self._policy.rules.follow(error, deployment, self._ahead)
        if (
            not (ahead or error.fails_over)
            or (request.attempts and not request.idempotent)
            or not request.channel.retract()
        ):
            self._fail(error)
            return
        self._ahead = ahead
        self.go_on()

    def _after_delivery(self, deployment: Deployment, error: OrchestratorError) -> None:
        """Goes on where the answer broke off, if the route and another deployment can."""
        request = self._request
        cause = error if request.resume is None else request.resume.cause
        if request.channel.ending is None and error.fails_over and request.idempotent:
            self._seams = successors(self._policy.midstream, request, deployment, self._ahead)
            if self._seams:
                request.resume = Resume(Seam.NONE, request.channel.suspend(), cause)
                self._ahead, self._full = list(self._seams), []
                self.go_on()
                return
        self._fail(cause)

    def _fail(self, error: OrchestratorError) -> None:
        request = self._request
        self._decide("ended")
        if request.channel.ending is None and len(request.attempts) > 1:
            error.add_note(f"attempts: {story(request)}")
        request.channel.end(Failed(error))

    def _most_telling(self) -> OrchestratorError:
        """What an upstream or worker said counts more than a refusal of our own."""
        if self._request.resume is not None:  # what broke the answer, not who couldn't go on
            return self._request.resume.cause
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


def _ended_at(record: AttemptRecord) -> float:
    return record.started_at if record.ended_at is None else record.ended_at
