"""The actor that watches: it starts engine and workers, restarts slots, and poisons.

    supervisor
    ├── engine       one per generation; its death poisons
    └── worker x N   one for one: a death restarts that slot from the slot factory

Only this one level restarts. A death costs the restart budget once per cause: when a model host
dies, all its slots die of one fault. Above the budget the engine is poisoned: the fault becomes the
state, intake closes, every request gets its ending, the workers and the engine are ended; then a
new generation is started after a backoff, or the deployment stays down (`on_poison`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, assert_never

from typing_extensions import override

from orchestrator import metrics
from orchestrator.actors.messages import (
    AttemptEnded,
    EngineDied,
    Poison,
    Shutdown,
    SlotLost,
    SlotReady,
    StartGeneration,
    StartSlot,
    SupervisorMessage,
    WorkerDied,
    WorkerReady,
)
from orchestrator.actors.runtime import LoopActor, OnDeath, Ref, ended, gone, kill, tell
from orchestrator.errors import OrchestratorError, Scope, WorkerCrashedError, describe
from orchestrator.inflight import Fault, Inflight, Poisoned

logger = logging.getLogger(__name__)

FIRST_GENERATION_BACKOFF = 1.0
MAX_GENERATION_BACKOFF = 60.0
REMEMBERED_CAUSES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """When to restart, and when to stop trying."""

    max_restarts: int = 5
    """Faults within `within` seconds that are answered by a restart; one more poisons."""
    within: float = 30.0
    """Seconds."""
    initial_backoff: float = 0.1
    """Seconds before a slot is started again; doubled with each further fault in the time."""
    max_backoff: float = 5.0
    """Seconds."""
    on_poison: Literal["restart", "stay"] = "restart"


@dataclass(slots=True)
class _Cause:
    """What killed workers, and in which slots: in the same slot again it is a new fault."""

    root: BaseException
    slots: set[int]


StartWorker = Callable[[str, Callable[[], None], Callable[[AttemptEnded], None], OnDeath], Ref]
"""Makes the worker with that id from the slot factory and starts it: (id, on_ready, on_ended,
on_death)."""
StartEngine = Callable[[OnDeath], Ref]


class Supervisor(LoopActor):
    """Supervises one deployment, over all generations of its engine.

    Args:
        inflight: The deployment's registry, with the poison switch.
        supervision: The rules.
        start_engine: Makes and starts an engine.
        start_worker: Makes and starts a worker.
        on_death: Told when the supervisor itself ends, with the cause.
    """

    def __init__(
        self,
        inflight: Inflight,
        supervision: Supervision,
        *,
        start_engine: StartEngine,
        start_worker: StartWorker,
        on_death: OnDeath,
    ) -> None:
        super().__init__(on_death=on_death)
        self._inflight = inflight
        self._rules = supervision
        self._start_engine = start_engine
        self._start_worker = start_worker
        self._engine: Ref | None = None
        self._workers: dict[str, Ref] = {}
        self._slot_of: dict[str, int] = {}
        self._lives = [0] * inflight.slots
        self._faults: deque[float] = deque()
        self._causes: deque[_Cause] = deque(maxlen=REMEMBERED_CAUSES)
        self._fault_count = 0
        self._poisoned_generation = 0
        self._failed_generations = 0
        self._served_since: float | None = None
        self._began = 0.0
        self._timers: set[asyncio.TimerHandle] = set()
        self._ending: list[Ref] = []
        self._meters = metrics.for_deployment(inflight.deployment)

    @override
    def on_start(self) -> None:
        """Starts the first generation."""
        self._start_generation()

    @override
    async def on_receive(self, message: SupervisorMessage) -> None:
        """Handles one message."""
        if isinstance(message, WorkerReady | WorkerDied | EngineDied | StartSlot) and (
            message.generation != self._inflight.generation
        ):
            self._meters.stale()
            return
        match message:
            case WorkerReady(worker):
                self._worker_is_ready(worker)
            case WorkerDied(worker, _, cause):
                self._worker_died(worker, cause)
            case EngineDied(_, cause):
                if self._engine is not None:  # else it was ended here
                    self._poison("engine", "dispatch", cause)
            case StartSlot(slot):
                self._start_slot(slot)
            case StartGeneration(generation):
                if generation == self._inflight.generation:
                    self._inflight.begin_generation()
                    self._start_generation()
            case Poison(fault):
                self._poison_with(fault)
            case Shutdown():
                self._inflight.stop()
                await self._shut_down()
            case _:
                assert_never(message)

    @override
    async def release(self) -> None:
        """Ends what is left, if the supervisor itself ends first."""
        if not isinstance(self._inflight.state, Poisoned):  # its reason must survive
            self._inflight.stop()
        await self._shut_down()

    # --- slots ---

    def _start_generation(self) -> None:
        generation = self._inflight.generation
        self._faults.clear()
        self._served_since = None
        self._began = asyncio.get_running_loop().time()
        self._engine = self._start_engine(
            lambda cause: self._hear(EngineDied(generation, cause)),
        )
        for slot in range(self._inflight.slots):
            self._start_slot(slot)

    def _start_slot(self, slot: int) -> None:
        generation, engine = self._inflight.generation, self._engine
        if engine is None:
            return
        self._lives[slot] += 1
        worker = f"{self._inflight.deployment}/{slot}.{self._lives[slot]}"

        def on_death(cause: BaseException | None) -> None:
            tell(engine, SlotLost(worker, cause))
            self._hear(WorkerDied(worker, generation, cause))

        self._slot_of[worker] = slot
        self._workers[worker] = self._start_worker(
            worker,
            lambda: self._hear(WorkerReady(worker, generation)),
            lambda message: _pass_on(engine, message),
            on_death,
        )

    def _worker_is_ready(self, worker: str) -> None:
        ref = self._workers.get(worker)
        if ref is None or self._engine is None:
            return
        if self._served_since is None:
            self._served_since = asyncio.get_running_loop().time()
            self._inflight.start_seconds = self._served_since - self._began
            logger.info(
                "deployment %s serves (generation %s)",
                self._inflight.deployment,
                self._inflight.generation,
            )
        self._inflight.serve()
        tell(self._engine, SlotReady(worker, ref))

    def _worker_died(self, worker: str, cause: BaseException | None) -> None:
        ref = self._workers.pop(worker, None)
        if ref is None:
            return
        # it may go on freeing what it held for a while; those that are done are forgotten
        self._ending = [*(other for other in self._ending if not gone(other)), ref]
        slot = self._slot_of.pop(worker)
        now = asyncio.get_running_loop().time()
        error = cause if cause is not None else WorkerCrashedError(f"worker {worker} stopped")
        root = self._inflight.last_fault = _root(error)
        if self._is_new(root, slot):
            self._faults.append(now)
            self._meters.fault("worker", type(root).__name__)
            logger.warning("worker %s died: %s", worker, describe(root), exc_info=error)
        while self._faults and self._faults[0] <= now - self._rules.within:
            self._faults.popleft()
        if len(self._faults) > self._rules.max_restarts:
            self._poison("worker", "restart budget", error, worker=worker)
            return
        self._meters.restart()
        self._later(
            min(
                self._rules.initial_backoff * 2 ** max(0, len(self._faults) - 1),
                self._rules.max_backoff,
            ),
            StartSlot(slot, self._inflight.generation),
        )

    def _is_new(self, root: BaseException, slot: int) -> bool:
        """Whether a death counts as a fault: a host's end kills all slots, but each only once."""
        for cause in self._causes:
            if cause.root is root and slot not in cause.slots:
                cause.slots.add(slot)
                return False
        self._causes = deque(
            (cause for cause in self._causes if cause.root is not root), maxlen=REMEMBERED_CAUSES
        )
        self._causes.append(_Cause(root, {slot}))
        return True

    # --- poison ---

    def _poison(
        self, scope: Scope, stage: str, cause: BaseException | None, *, worker: str | None = None
    ) -> None:
        self._fault_count += 1
        self._poison_with(
            Fault(
                scope=scope,
                stage=stage,
                worker=worker,
                epoch=None,
                cause=cause or WorkerCrashedError(f"{stage} stopped without being asked"),
                at=asyncio.get_running_loop().time(),
                fault_id=f"{self._inflight.deployment}-{self._inflight.generation}-"
                f"{self._fault_count}",
            )
        )

    def _poison_with(self, fault: Fault) -> None:
        generation = self._inflight.generation
        if self._poisoned_generation == generation:
            self._inflight.poison(fault)  # which keeps the first and notes this one
            logger.warning("a later fault of a poisoned engine: %s", fault.describe())
            return
        # a generation that fails before it served finds the poison of the one before it in place,
        # and is followed by another all the same
        self._poisoned_generation = generation
        delay = self._generation_backoff(fault.at)
        self._inflight.restart_after = delay
        self._inflight.poison(fault)
        self._meters.poisoned(type(_root(fault.cause)).__name__)
        logger.error(
            "engine of %s is poisoned by %s; %s",
            self._inflight.deployment,
            fault.describe(),
            "it stays down" if delay is None else f"next generation in {delay:g} s",
            exc_info=fault.cause,
        )
        self._end_children()
        if delay is not None:
            self._later(delay, StartGeneration(self._inflight.generation))

    def _generation_backoff(self, now: float) -> float | None:
        """Seconds until the next generation; None if the deployment stays down."""
        if self._rules.on_poison == "stay":
            return None
        served = self._served_since is not None and now - self._served_since >= self._rules.within
        self._failed_generations = 1 if served else self._failed_generations + 1
        if self._failed_generations > self._rules.max_restarts:
            return None
        return min(
            FIRST_GENERATION_BACKOFF * 2 ** (self._failed_generations - 1), MAX_GENERATION_BACKOFF
        )

    def _end_children(self) -> None:
        for ref in self._workers.values():
            kill(ref)
            self._ending.append(ref)
        self._workers.clear()
        self._slot_of.clear()
        if self._engine is not None:
            kill(self._engine)
            self._ending.append(self._engine)
            self._engine = None
        self._ending = [ref for ref in self._ending if not gone(ref)]

    async def _shut_down(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._end_children()
        for ref in self._ending:
            await ended(ref)

    # --- time ---

    def _later(self, delay: float, message: SupervisorMessage) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self._hear(message)

        timer = asyncio.get_running_loop().call_later(delay, due)
        self._timers.add(timer)

    def _hear(self, message: SupervisorMessage) -> None:
        tell(self.actor_ref, message)


def _root(error: BaseException) -> BaseException:
    return error.root_cause if isinstance(error, OrchestratorError) else error


def _pass_on(ref: Ref, message: AttemptEnded) -> None:
    tell(ref, message)
