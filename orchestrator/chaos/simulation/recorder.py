"""Looks on at every point, writes the journal, and lets planned faults follow a passage."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.chaos.journal import NOTHING, Journal, Kind, Scalar
from orchestrator.chaos.simulation.plan import Injection
from orchestrator.deployment import RunningDeployment
from orchestrator.errors import OrchestratorError, describe
from orchestrator.points import Passage, Point
from orchestrator.request import PriorityRequest

Fire = Callable[[Injection, PriorityRequest | None], None]

RESUME = {"resume": True}


@dataclass(slots=True)
class _Planned:
    injection: Injection
    left: int
    """Passages that go by before it strikes; below 0 it has."""


class Recorder:
    """The observer of a simulated run.

    Args:
        journal: Told of every passage that the checks can judge.
        injections: The plan's faults at points.
        fire: Does what an injection says.
    """

    def __init__(self, journal: Journal, injections: Sequence[Injection], fire: Fire) -> None:
        self.poisons: Counter[str] = Counter()
        """Poisons so far, by deployment."""
        self._journal = journal
        self._fire = fire
        self._deployments: dict[str, RunningDeployment] = {}
        self._queued: set[tuple[str, str]] = set()  # request, deployment in whose queue it waits
        self._roots: list[BaseException] = []
        self._planned: dict[tuple[str, Point], list[_Planned]] = {}
        for injection in injections:
            if injection.point is not None:
                place = self._planned.setdefault((injection.deployment, injection.point), [])
                place.append(_Planned(injection, injection.nth))

    def watch(self, deployments: Sequence[RunningDeployment]) -> None:
        """Names deployments, once they are built and before they start."""
        self._deployments |= {deployment.plan.name: deployment for deployment in deployments}

    def stop(self) -> None:
        """Lets no further fault follow a passage."""
        self._planned.clear()

    def __call__(self, passage: Passage) -> None:
        """Notes a passage."""
        self._write(passage)
        planned = self._planned.get((passage.deployment, passage.point))
        if planned is None:
            return
        now = asyncio.get_running_loop().time()
        for one in planned:
            if now < one.injection.since:
                continue
            if one.left == 0:
                self._fire(one.injection, passage.request)
            one.left -= 1

    def _write(self, passage: Passage) -> None:
        match passage.point:
            case (
                Point.SUBMIT_REGISTERED
                | Point.SUBMIT_REFUSED
                | Point.REQUEST_SHED
                | Point.REQUEST_LEFT
            ):
                self._write_queueing(passage)
            case (
                Point.DISPATCH_RECORDED
                | Point.ATTEMPT_BEGUN
                | Point.ATTEMPT_ADMITTED
                | Point.ATTEMPT_SETTLED
                | Point.RETRY_QUEUED
            ):
                self._write_attempt(passage)
            case (
                Point.WORKER_STARTED
                | Point.WORKER_ENDED
                | Point.BREAKER_MOVED
                | Point.POISON_PUBLISHED
                | Point.ENGINE_SERVES
            ):
                self._write_life(passage)
            case _:
                pass

    def _write_queueing(self, passage: Passage) -> None:
        request, name = passage.request, passage.deployment
        if request is None:
            return
        match passage.point:
            case Point.SUBMIT_REGISTERED:
                self._queued.add((request.request_id, name))
                self._journal.record(
                    Kind.ACCEPT,
                    request=request.request_id,
                    deployment=name,
                    priority=int(request.priority),
                    caller=request.caller,
                    deadline=request.deadline,
                    depth=len(self._deployments[name].queue),
                    more=_hedge_or_limit(request, None),
                )
            case Point.REQUEST_SHED:
                by = passage.by.request_id if passage.by is not None else ""
                self._journal.record(Kind.SHED, request=request.request_id, deployment=name, by=by)
            case Point.SUBMIT_REFUSED:
                error = passage.error
                self._journal.record(
                    Kind.REJECT,
                    request=request.request_id,
                    deployment=name,
                    code=error.code if isinstance(error, OrchestratorError) else "",
                    depth=len(self._deployments[name].queue),
                )
            case _:
                self._dequeue(request, name)

    def _dequeue(self, request: PriorityRequest, name: str) -> None:
        if (request.request_id, name) in self._queued:
            self._queued.remove((request.request_id, name))
            self._journal.record(Kind.DEQUEUE, request=request.request_id, deployment=name)

    def _write_attempt(self, passage: Passage) -> None:
        request, name = passage.request, passage.deployment
        if request is None:
            return
        who, worker, epoch = request.request_id, passage.worker, passage.epoch
        match passage.point:
            case Point.DISPATCH_RECORDED:
                self._dequeue(request, name)
                adapts = self._deployments[name].gates.concurrency
                self._journal.record(
                    Kind.DISPATCH,
                    request=who,
                    worker=worker,
                    epoch=epoch,
                    deployment=name,
                    more=_hedge_or_limit(request, None if adapts is None else adapts.limit),
                )
            case Point.ATTEMPT_BEGUN:
                self._journal.record(
                    Kind.ATTEMPT_START,
                    request=who,
                    attempt=len(request.attempts),
                    worker=worker,
                    epoch=epoch,
                    deployment=name,
                    more=NOTHING if request.resume is None else RESUME,
                )
            case Point.ATTEMPT_ADMITTED:
                self._journal.record(
                    Kind.ADMIT,
                    request=who,
                    worker=worker,
                    epoch=epoch,
                    deployment=name,
                    state=passage.state,
                )
            case Point.ATTEMPT_SETTLED:
                self._journal.record(
                    Kind.ATTEMPT_END,
                    request=who,
                    worker=worker,
                    epoch=epoch,
                    deployment=name,
                    verdict=_verdict(passage),
                )
            case _:
                self._queued.add((who, name))
                self._journal.record(
                    Kind.RETRY,
                    request=who,
                    deployment=name,
                    not_before=passage.not_before,
                    depth=len(self._deployments[name].queue),
                )

    def _write_life(self, passage: Passage) -> None:
        record, name = self._journal.record, passage.deployment
        match passage.point:
            case Point.WORKER_STARTED:
                record(Kind.WORKER_START, worker=passage.worker, deployment=name)
            case Point.WORKER_ENDED:
                self._write_death(passage)
            case Point.BREAKER_MOVED:
                record(Kind.BREAKER, deployment=name, state=passage.state)
            case Point.POISON_PUBLISHED:
                self.poisons[name] += 1
                record(Kind.POISON, deployment=name, cause=describe(_root(passage.error)))
            case _:
                generation = self._deployments[name].inflight.generation
                record(Kind.ENGINE_START, deployment=name, generation=generation)

    def _write_death(self, passage: Passage) -> None:
        root = _root(passage.error)
        # the supervisor ends a worker by a cancel or a stop; nothing here dies of one by itself
        deliberate = passage.error is None or isinstance(passage.error, asyncio.CancelledError)
        self._journal.record(
            Kind.WORKER_DEAD,
            worker=passage.worker,
            deployment=passage.deployment,
            deliberate=deliberate,
            fault=self._number_of(root),
            cause=describe(root),
        )

    def _number_of(self, root: BaseException) -> int:
        # those who died of one host share the very object; there are few deaths in a run
        for number, known in enumerate(self._roots):
            if known is root:
                return number
        self._roots.append(root)
        return len(self._roots) - 1


def _hedge_or_limit(request: PriorityRequest, limit: int | None) -> dict[str, Scalar]:
    told: dict[str, Scalar] = {"hedge": True} if request.hedge else {}
    return told if limit is None else told | {"limit": limit}


def _verdict(passage: Passage) -> str:
    if isinstance(passage.error, OrchestratorError) and passage.error.trips_breaker:
        return "failure"
    whole = passage.request is not None and any(
        record.epoch == passage.epoch and record.outcome == "done"
        for record in passage.request.attempts
    )
    return "success" if whole and passage.error is None else "none"


def _root(error: BaseException | None) -> BaseException:
    if error is None:
        return RuntimeError("stopped")
    return error.root_cause if isinstance(error, OrchestratorError) else error
