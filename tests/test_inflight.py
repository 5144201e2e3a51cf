"""The linearisation point: no request slips between accept and poison, no reason gets lost."""

import asyncio
import random
import sys
import threading
from collections.abc import Iterator

import pytest

from orchestrator.actors.supervisor import Supervision
from orchestrator.errors import (
    EngineDrainingError,
    EngineUnhealthyError,
    OrchestratorError,
    QueueFullError,
    RequestCanceledError,
)
from orchestrator.events import Failed
from orchestrator.inflight import Draining, Fault, Inflight, Poisoned, Serving, Stopped, Ticket
from orchestrator.plan import DeploymentPlan
from orchestrator.policies.queue import PriorityQueue
from orchestrator.sdk import Orchestrator
from orchestrator.stream import TokenStream
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Stage
from tests.fakes.systems import make_request

TRIALS = 1000
SUBMITTERS = 2
EACH = 3
SPINS = 20_000


class Unspeakable(Exception):  # noqa: N818 - a foreign class
    """Its text can't be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Registry:
    """An inflight over a real queue, and all that it told."""

    def __init__(self, capacity: int = 10) -> None:
        self.queue = PriorityQueue("m", capacity)
        self.given_up: list[OrchestratorError] = []
        self.gone: list[Ticket] = []
        self.changes = 0
        self.inflight = Inflight(
            deployment="m",
            enqueue=self.queue.push,
            dequeue=self.queue.discard,
            on_accepted=lambda: None,
            on_gone=self.gone.append,
            slots=2,
        )
        self.inflight.observe(self.changed)

    def changed(self) -> None:
        self.changes += 1

    def accept(self, count: int = 1) -> list[Ticket]:
        before = list(self.inflight._tickets)
        for _ in range(count):
            self.inflight.accept(make_request(), self.given_up.append, now=0.0)
        return [ticket for ticket in self.inflight._tickets if ticket not in before]


def fault(cause: BaseException | None = None, number: int = 1) -> Fault:
    return Fault(
        scope="engine",
        stage="step",
        worker="m/0.1",
        epoch=7,
        cause=cause or RuntimeError("CUDA error"),
        at=1.0,
        fault_id=f"m-1-{number}",
    )


def test_a_poison_tells_everyone_with_an_error_of_his_own_and_one_shared_cause() -> None:
    registry = Registry()
    registry.accept(5)
    first = fault()

    assert registry.inflight.poison(first)

    assert len(registry.given_up) == 5
    assert len({id(error) for error in registry.given_up}) == 5
    assert {id(error.__cause__) for error in registry.given_up} == {id(first.cause)}
    assert all("CUDA error" in str(error) for error in registry.given_up)
    assert (len(registry.inflight), len(registry.queue)) == (0, 0)


def test_a_second_fault_is_noted_and_never_replaces_the_first() -> None:
    registry = Registry()
    first, second = fault(), fault(OSError("a consequence"), 2)

    registry.inflight.poison(first)
    assert registry.inflight.poison(second) is False

    assert registry.inflight.state == Poisoned(first)
    assert registry.inflight.secondary == [second]
    assert "CUDA error" in str(registry.inflight.refusal())


def test_nothing_is_accepted_after_a_poison_and_the_refusal_says_why() -> None:
    registry = Registry()
    registry.inflight.restart_after = 2.0
    registry.inflight.poison(fault())

    with pytest.raises(EngineUnhealthyError, match=r"m-1-1 \(step\).*CUDA error") as caught:
        registry.inflight.accept(make_request(), registry.given_up.append, now=1.0)

    assert (caught.value.status_code, caught.value.retry_after) == (503, 2.0)
    assert registry.inflight.accepted_total == 0


def test_the_time_to_come_back_counts_down_and_has_the_last_start_in_it() -> None:
    registry = Registry()
    registry.inflight.restart_after, registry.inflight.start_seconds = 2.0, 30.0
    registry.inflight.poison(fault())

    assert [registry.inflight.back_in(now) for now in (1.0, 11.0, 33.0)] == [32.0, 22.0, 1.0]
    registry.inflight.restart_after = None
    assert registry.inflight.back_in(1.0) is None


def test_state_and_reason_are_seen_together_by_whoever_is_told() -> None:
    registry = Registry()
    seen: list[object] = []

    def give_up(_error: OrchestratorError) -> None:
        seen.append(registry.inflight.state)

    registry.inflight.accept(make_request(), give_up, now=0.0)
    first = fault()

    registry.inflight.poison(first)

    assert seen == [Poisoned(first)]


def test_one_who_submits_anew_while_he_is_told_is_refused() -> None:
    registry = Registry()
    refused: list[OrchestratorError] = []

    def submit_again(_error: OrchestratorError) -> None:
        try:
            registry.accept()
        except EngineUnhealthyError as error:
            refused.append(error)

    registry.inflight.accept(make_request(), submit_again, now=0.0)
    registry.inflight.poison(fault())

    assert len(refused) == 1
    assert len(registry.inflight) == 0


def test_a_cause_whose_text_cannot_be_made_survives_to_the_caller() -> None:
    registry = Registry()
    cause = Unspeakable()
    registry.accept()

    registry.inflight.poison(fault(cause))

    (error,) = registry.given_up
    assert "Unspeakable: <its text could not be made>" in str(error)
    assert error.root_cause is cause


def test_a_very_long_cause_is_cut_and_the_root_of_a_chain_is_told() -> None:
    outer = EngineDrainingError("outer")
    outer.__cause__ = OSError("x" * 5000)

    text = fault(outer).describe()

    assert text.startswith("m-1-1 (step): OSError: xxx")
    assert len(text) < 600


def test_a_full_queue_refuses_and_registers_nothing() -> None:
    registry = Registry(capacity=2)
    registry.accept(2)

    with pytest.raises(QueueFullError):
        registry.accept()

    assert (len(registry.inflight), registry.inflight.accepted_total) == (2, 2)


def test_a_request_that_ended_before_it_came_leaves_at_once() -> None:
    registry = Registry()
    request = make_request()
    request.channel.end(Failed(RequestCanceledError("gone")))

    registry.inflight.accept(request, registry.given_up.append, now=0.0)

    assert (len(registry.inflight), len(registry.queue)) == (0, 0)
    assert registry.given_up == []


def test_a_cancel_in_the_queue_frees_the_place_and_tells_no_engine() -> None:
    registry = Registry(capacity=1)
    (ticket,) = registry.accept()

    ticket.request.channel.end(Failed(RequestCanceledError("gone")))

    assert registry.gone == []
    assert registry.accept() != [ticket]


def test_a_cancel_while_it_runs_is_told_to_the_engine_once() -> None:
    registry = Registry()
    (ticket,) = registry.accept()
    registry.queue.pop(ticket)

    ticket.request.channel.end(Failed(RequestCanceledError("gone")))

    assert registry.gone == [ticket]
    assert not registry.inflight.leave(ticket)


def test_an_answer_that_is_whole_leaves_without_a_word_to_the_engine() -> None:
    registry = Registry()
    (ticket,) = registry.accept()
    registry.queue.pop(ticket)

    ticket.request.channel.end(DONE)

    assert registry.gone == []
    assert len(registry.inflight) == 0


def test_a_request_is_given_up_at_most_once() -> None:
    registry = Registry()
    (ticket,) = registry.accept()
    error = QueueFullError("no")

    registry.inflight.give_up(ticket, error)
    registry.inflight.give_up(ticket, error)
    registry.inflight.poison(fault())

    assert registry.given_up == [error]


def test_a_stop_ends_what_is_left_as_draining_and_for_ever() -> None:
    registry = Registry()
    tickets = registry.accept(3)

    registry.inflight.stop()
    registry.inflight.serve()

    endings = [ticket.request.channel.ending for ticket in tickets]
    assert [type(e.error) for e in endings if isinstance(e, Failed)] == [EngineDrainingError] * 3
    assert registry.inflight.state == Stopped()
    assert registry.inflight.poison(fault()) is False


def test_a_drain_refuses_the_new_and_keeps_the_old() -> None:
    registry = Registry()
    registry.accept(2)
    idle: list[str] = []

    registry.inflight.drain()
    registry.inflight.when_idle(lambda: idle.append("now"))
    with pytest.raises(EngineDrainingError):
        registry.accept()
    assert (registry.inflight.state, idle) == (Draining(), [])
    for ticket in list(registry.inflight._tickets):
        registry.inflight.leave(ticket)

    assert idle == ["now"]


def test_a_drain_is_as_one_way_as_a_poison() -> None:
    registry = Registry()
    registry.inflight.poison(fault())

    registry.inflight.drain()
    registry.inflight.begin_generation()
    registry.inflight.serve()

    assert registry.inflight.state == Draining()


def test_only_a_new_generation_serves_after_a_poison() -> None:
    registry = Registry()
    registry.inflight.count_slots(2)
    assert registry.inflight.ready
    registry.inflight.poison(fault())
    registry.inflight.count_slots(2)  # a late word of the old engine heals nothing
    assert not registry.inflight.ready

    assert registry.inflight.begin_generation() == 2
    registry.inflight.serve()

    assert registry.inflight.state == Serving()
    assert registry.changes >= 4


def test_a_deployment_without_a_live_slot_is_never_ready() -> None:
    registry = Registry()

    assert registry.inflight.state == Serving()
    assert not registry.inflight.ready


# --- the race of infinity's pull request, through the real thing ---------------------------------


@pytest.fixture
def frantic_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Race:
    """Submitters on threads of their own against a poison on the loop, again and again."""

    def __init__(self) -> None:
        stage = Stage(lambda _request, _call: ["a", DONE])
        plan = DeploymentPlan(
            name="m",
            factory=stage.factory(),
            slots=2,
            supervision=Supervision(on_poison="stay"),
        )
        self.orchestrator = Orchestrator.over(
            System([plan], monitored=False), default_model="m", drain=0.0
        )
        self.inflight = self.orchestrator.system.deployments["m"].inflight
        self.barrier = threading.Barrier(SUBMITTERS + 1, timeout=30)
        self.streams: list[list[TokenStream]] = [[] for _ in range(SUBMITTERS)]
        self.codes: dict[str, int] = {}

    def submitter(self, number: int) -> None:
        for _ in range(TRIALS):
            self.barrier.wait()
            self.streams[number] = [
                self.orchestrator.submit("hi", deadline=60.0) for _ in range(EACH)
            ]
            self.barrier.wait()

    def flip(self, trial: int) -> None:
        """Poisons the registry alone, and heals it for the next trial: no actor takes part."""
        self.inflight.poison(fault(number=trial))

    def read(self) -> None:
        for stream in [stream for streams in self.streams for stream in streams]:
            try:
                code = stream.result().finish_reason.value
            except OrchestratorError as error:
                code = error.code
            self.codes[code] = self.codes.get(code, 0) + 1

    def run(self) -> None:
        chance = random.Random(668)
        threads = [
            threading.Thread(target=self.submitter, args=(number,)) for number in range(SUBMITTERS)
        ]
        with self.orchestrator:
            home = self.orchestrator._loop
            assert home is not None
            for thread in threads:
                thread.start()
            for trial in range(TRIALS):
                self.barrier.wait()
                for _ in range(chance.randrange(SPINS)):
                    pass  # the poison comes at a random moment of the submits
                home.call_soon_threadsafe(self.flip, trial)
                self.barrier.wait()
                self.read()
                asyncio.run_coroutine_threadsafe(self.heal(), home).result(5)
            for thread in threads:
                thread.join(30)

    async def heal(self) -> None:
        self.inflight.serve()
        self.inflight.count_slots(2)


@pytest.mark.usefixtures("frantic_threads")
def test_no_request_is_lost_when_threads_submit_into_a_poison() -> None:
    race = Race()

    race.run()

    assert sum(race.codes.values()) == TRIALS * SUBMITTERS * EACH
    assert set(race.codes) <= {"stop", "engine_unhealthy"}
    assert min(race.codes["engine_unhealthy"], race.codes["stop"]) > TRIALS // 10
