"""Makes a failing plan as small as it can be while it fails in the same way.

Everything that will happen stands in the plan, so whatever is taken out of it is gone from the run.
Taken out are, in this order, callers, injections and weather, halves first, then one by one; then
what is left is made plainer. It ends where nothing more can go, or the runs are used up.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from orchestrator.chaos.simulation.plan import Caller, Dice, Plan, Shape
from orchestrator.chaos.simulation.trial import Report, run_plan

T = TypeVar("T")
MAX_RUNS = 2000
Progress = Callable[[int, Plan], None]


def signs_of(report: Report) -> frozenset[str]:
    """What a run fails by: ids of invariants, and the class of what stopped it."""
    signs = {violation.id for violation in report.violations}
    if report.failure is not None:
        signs.add(type(report.failure).__name__)
    return frozenset(signs)


def size_of(plan: Plan) -> int:
    """How much happens in a plan."""
    dice = sum(len(caller.dice) for caller in plan.callers)
    return len(plan.callers) + dice + len(plan.injections) + len(plan.weather)


class Shrinker:
    """Shrinks one plan.

    Args:
        plan: One that fails.
        on_progress: Told of every smaller plan, with the number of runs so far.
        max_runs: So many runs at most.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        on_progress: Progress = lambda _runs, _plan: None,
        max_runs: int = MAX_RUNS,
    ) -> None:
        self._plan = plan
        self._signs = signs_of(run_plan(plan))
        self._on_progress = on_progress
        self._left = max_runs
        self.runs = 1

    @property
    def signs(self) -> frozenset[str]:
        """What it fails by; empty if it doesn't, and then there is nothing to shrink."""
        return self._signs

    def shrink(self) -> Plan:
        """Returns the smallest plan that was found."""
        before = None
        while self._signs and before != self._plan and self._left > 0:
            before = self._plan
            self._thin(self._plan.callers, lambda plan, kept: _with(plan, callers=kept))
            self._thin(self._plan.injections, lambda plan, kept: _with(plan, injections=kept))
            self._thin(self._plan.weather, lambda plan, kept: _with(plan, weather=kept))
            for plainer in _plainer(self._plan):
                self._try(plainer)
            for place in range(len(self._plan.callers)):
                self._plainer_caller(place)
        return self._plan

    def _plainer_caller(self, place: int) -> None:
        for caller in _plainer_callers(self._plan.callers[place]):
            callers = self._plan.callers
            self._try(_with(self._plan, callers=(*callers[:place], caller, *callers[place + 1 :])))

    def _thin(self, items: Sequence[T], rebuilt: Callable[[Plan, tuple[T, ...]], Plan]) -> None:
        """Takes out what can go, in ever smaller pieces."""
        kept = tuple(items)
        piece = len(kept)
        while piece and self._left > 0:
            place = 0
            while place < len(kept):
                fewer = (*kept[:place], *kept[place + piece :])
                if self._try(rebuilt(self._plan, fewer)):
                    kept = fewer
                else:
                    place += piece
            piece //= 2

    def _try(self, plan: Plan) -> bool:
        if plan == self._plan or self._left <= 0:
            return False
        self._left -= 1
        self.runs += 1
        if not signs_of(run_plan(plan)) & self._signs:
            return False
        self._plan = plan
        self._on_progress(self.runs, plan)
        return True


def _with(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, **changes)


def _plainer(plan: Plan) -> Iterator[Plan]:
    yield _with(plan, grid=0.0, shuffle=False)
    for slots in (1, 2):
        yield _with(plan, shapes=tuple(_narrower(shape, slots) for shape in plan.shapes))
    if len(plan.shapes) > 1:
        used = {caller.route for caller in plan.callers}
        used |= {name for route in used for name in plan.routes.get(route, ())}
        used |= {injection.deployment for injection in plan.injections}
        yield _with(
            plan,
            shapes=tuple(shape for shape in plan.shapes if shape.name in used),
            routes={route: names for route, names in plan.routes.items() if set(names) <= used},
        )


def _narrower(shape: Shape, slots: int) -> Shape:
    return msgspec.structs.replace(shape, slots=min(shape.slots, slots))


def _plainer_callers(caller: Caller) -> Iterator[Caller]:
    replace = msgspec.structs.replace
    if caller.dice:
        yield replace(caller, dice=())
        yield replace(caller, dice=caller.dice[: len(caller.dice) // 2])
        for place, dice in enumerate(caller.dice):
            if dice != Dice():
                spared = (*caller.dice[:place], Dice(), *caller.dice[place + 1 :])
                yield replace(caller, dice=spared)
    yield replace(caller, at=0.0)
    yield replace(caller, tokens=min(caller.tokens, 2))
    yield replace(caller, cancel_after=None, cancel_delay=0.0)
    yield replace(caller, pace="eager", buffer_tokens=None)
    yield replace(caller, held=False, idempotent=True, priority=1)
