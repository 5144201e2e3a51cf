"""Real processes are broken through a pidfd, and only those that were meant."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orchestrator.chaos.live.guardian import Guardian, continuing, undo, unlimited
from orchestrator.chaos.live.hand import Hand
from orchestrator.chaos.processes import Held, NotOursError, ProcessId, descends, state_of
from orchestrator.chaos.scenario.reading import parse_scenario
from orchestrator.chaos.scenario.sections import Fault

pytestmark = pytest.mark.live

SLEEPER = (sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()")


@pytest.fixture
def child() -> Iterator[ProcessId]:
    process = subprocess.Popen(SLEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    process.stdout.readline()
    yield ProcessId.of(process.pid)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def fault(words: str) -> Fault:
    yaml = f"version: 1\nname: x\nabout: y\nsteady: {{}}\nfaults: [{{{words}}}]\n"
    return parse_scenario(yaml).faults[0]


async def strike(process: ProcessId, words: str, guardian: Guardian) -> list[str]:
    async def hosts() -> list[tuple[str, ProcessId]]:
        return [("local", process)]

    landed: list[str] = []
    hand = Hand(os.getpid(), hosts, guardian, random.Random(1))
    await hand.strike(fault(words), lambda name, evidence: landed.append(f"{name}: {evidence}"))
    return landed


async def test_a_crash_has_landed_when_the_process_is_gone(child: ProcessId) -> None:
    with Guardian() as guardian:
        async with asyncio.timeout(5):
            landed = await strike(child, "worker: any, do: crash", guardian)

    assert landed == ["local: the process ended"]


async def test_a_stopped_process_goes_on_afterwards(child: ProcessId) -> None:
    with Guardian() as guardian:
        async with asyncio.timeout(5):
            landed = await strike(child, "worker: any, do: stop, for: 10ms", guardian)

        assert landed == ["local: state T in /proc"]
        assert state_of(child.pid) != "T"


async def test_a_fault_that_finds_nobody_of_that_name_has_not_landed(
    child: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.chaos.live.hand.START_SECONDS", 0.0)

    with Guardian() as guardian:
        async with asyncio.timeout(5):
            landed = await strike(child, "worker: another, do: crash", guardian)

    assert landed == []
    assert state_of(child.pid) in ("S", "R")


def test_a_recycled_number_is_never_hit(child: ProcessId) -> None:
    with pytest.raises(NotOursError), Held(ProcessId(child.pid, child.started + 1)):
        pass


def test_a_process_outside_of_the_tree_is_never_hit(child: ProcessId) -> None:
    with pytest.raises(NotOursError), Held(ProcessId.of(os.getppid()), below=os.getpid()):
        pass
    assert descends(child.pid, os.getpid())
    assert not descends(os.getppid(), os.getpid())


def test_what_a_killed_run_left_stopped_is_continued_by_the_guardian(child: ProcessId) -> None:
    program = (
        "import os, signal, sys\n"
        "from orchestrator.chaos.live.guardian import Guardian, continuing\n"
        "from orchestrator.chaos.processes import ProcessId\n"
        f"child = ProcessId({child.pid}, {child.started})\n"
        "with Guardian() as guardian:\n"
        "    guardian.remember(continuing(child))\n"
        "    os.kill(child.pid, signal.SIGSTOP)\n"
        "    print(guardian.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE)
    assert run.stdout is not None
    guardian = int(run.stdout.readline())
    try:
        with Held(ProcessId.of(guardian)) as held:
            assert held.ended(within=10.0)
    except (NotOursError, ProcessLookupError):
        pass  # it was quicker than this test
    run.wait()
    run.stdout.close()

    assert state_of(child.pid) != "T"


def test_an_undo_that_was_done_is_forgotten_and_others_are_not(child: ProcessId) -> None:
    os.kill(child.pid, signal.SIGSTOP)

    with Guardian() as guardian:
        guardian.remember(unlimited(child, 1, 1))
        guardian.forget(unlimited(child, 1, 1))
        guardian.remember(continuing(child))

    assert state_of(child.pid) != "T"


def test_undos_for_processes_that_are_gone_do_nothing(child: ProcessId) -> None:
    undo([continuing(ProcessId(child.pid, 1)), unlimited(ProcessId(child.pid, 1), 5, 5)])

    assert state_of(child.pid) in ("S", "R")
