"""Looks on inside the gateway and tells whoever follows what passes, as lines of a journal.

Nobody follows most of the time; then a passage costs one comparison. A follower who doesn't read is
let go, so that nothing piles up here.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from orchestrator.chaos.journal import Event, Journal, Kind
from orchestrator.chaos.simulation.caller import outcome_of
from orchestrator.chaos.simulation.plan import Injection
from orchestrator.chaos.simulation.recorder import Recorder
from orchestrator.deployment import RunningDeployment
from orchestrator.errors import describe
from orchestrator.events import Failed
from orchestrator.points import Passage, Point
from orchestrator.request import PriorityRequest

Tell = Callable[[bytes], None]
_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(slots=True)
class _Expected:
    point: Point
    deployments: frozenset[str]
    left: int


class Witness:
    """The observer of a gateway that may be broken."""

    def __init__(self) -> None:
        self._followers: dict[Tell, None] = {}
        self._watched: set[str] = set()
        self._expected: dict[asyncio.Future[str], _Expected] = {}
        journal = Journal(time.perf_counter, sink=self._tell)
        self._journal = journal
        self._recorder = Recorder(journal, (), _fires_nothing)

    def __repr__(self) -> str:
        return f"<Witness, {len(self._followers)} followers>"

    def watch(self, deployments: Sequence[RunningDeployment]) -> None:
        """Names deployments, once they are built and before they start."""
        self._recorder.watch(deployments)

    def follow(self, tell: Tell) -> Callable[[], None]:
        """Lets someone follow from now on; returns what ends it."""
        self._followers[tell] = None
        return lambda: self._followers.pop(tell, None) and None

    def expect(
        self, point: Point, nth: int, deployments: Sequence[str]
    ) -> tuple[asyncio.Future[str], Callable[[], None]]:
        """Returns what is done when so many have passed a point from now on, and what ends that.

        Args:
            point: Which.
            nth: How many, at least 1.
            deployments: Whose passages count.
        """
        passed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._expected[passed] = _Expected(point, frozenset(deployments), nth)
        return passed, lambda: self._expected.pop(passed, None) and None

    def __call__(self, passage: Passage) -> None:
        """Notes a passage, if anybody follows or waits for it."""
        if self._expected:
            self._count(passage)
        if not self._followers:
            return
        self._recorder(passage)
        if passage.point is Point.SUBMIT_REGISTERED and passage.request is not None:
            request = passage.request
            if request.request_id not in self._watched:  # the first deployment that takes it
                self._watched.add(request.request_id)
                request.channel.watch(lambda: self._ended(request))

    def _count(self, passage: Passage) -> None:
        for passed, expected in self._expected.items():
            if passage.point is expected.point and passage.deployment in expected.deployments:
                expected.left -= 1
                if expected.left <= 0 and not passed.done():
                    passed.set_result(passage.deployment)

    def _ended(self, request: PriorityRequest) -> None:
        ending = request.channel.ending
        self._watched.discard(request.request_id)
        if ending is None:
            return
        more: dict[str, str | int] = {}
        if isinstance(ending, Failed):
            error = ending.error
            more = {
                "code": error.code,
                "scope": error.scope,
                "cause": describe(error.root_cause),
                "attempts": len(request.attempts),
            }
        self._journal.record(
            Kind.TERMINAL, request=request.request_id, more=more, outcome=outcome_of(ending)
        )

    def _tell(self, event: Event) -> None:
        line = _encoder.encode(event) + b"\n"
        for tell in tuple(self._followers):
            tell(line)


def _fires_nothing(_injection: Injection, _request: PriorityRequest | None) -> None:
    """No fault follows a passage here."""
