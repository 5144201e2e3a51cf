"""The parent's side, against a host that breaks on cue."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from orchestrator.errors import (
    ContextLengthExceededError,
    GenerationFailedError,
    WorkerCrashedError,
    WorkerError,
    WorkerHungError,
    WorkerStartError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.runners.base import Runner, SlotFactory
from orchestrator.runners.lease import Step
from orchestrator.runners.torch import process
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings
from tests.fakes import model_host
from tests.runners.torch.asking import answer, lease, pid_of, process_of, request


def ignore(_line: str) -> None:
    pass


@asynccontextmanager
async def slots(
    count: int = 1,
    model: str = "fake",
    progress: list[str] | None = None,
    load_timeout: float = 60.0,
    load_silence: float = 30.0,
) -> AsyncGenerator[tuple[SlotFactory, list[Runner]]]:
    made = factory(
        TorchSettings(model=model, load_timeout=load_timeout, load_silence=load_silence),
        on_progress=ignore if progress is None else progress.append,
        chance=random.Random(0),
        program=model_host.PROGRAM,
    )
    try:
        yield made, [made.create() for _ in range(count)]
    finally:
        await made.aclose()


@asynccontextmanager
async def started(
    count: int = 1, progress: list[str] | None = None
) -> AsyncGenerator[tuple[SlotFactory, list[Runner]]]:
    async with asyncio.timeout(5), slots(count, progress=progress) as (made, runners):
        await asyncio.gather(*(runner.start() for runner in runners))
        yield made, runners


def gone(pid: int) -> bool:
    """Whether the process was reaped: a zombie still has its entry."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def children() -> list[str]:
    """Process ids of this thread's children, zombies included."""
    return Path("/proc/thread-self/children").read_text(encoding="utf-8").split()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def text_of(event: TokenChunk | Finished) -> str:
    assert isinstance(event, TokenChunk)
    return event.text


async def test_an_answer_is_chunks_and_then_one_finish_with_usage() -> None:
    async with started() as (_, (runner,)):
        events = [event async for event in runner.generate(request("say 3"), lease())]

    pieces = [(event.text, event.tokens) for event in events if isinstance(event, TokenChunk)]
    assert pieces == [("0 ", 1), ("1 ", 1), ("end", 1)]
    assert events[3:] == [
        Finished(FinishReason.STOP, Usage(prompt_tokens=3, completion_tokens=3)),
    ]


async def test_several_answers_come_side_by_side_and_end_as_one() -> None:
    async with started() as (made, (runner,)):
        asked = request("say 3", n=2)
        events = [event async for event in runner.generate(asked, lease())]
        left = made.processes()

    for index in (0, 1):
        told = [
            event.text for event in events if isinstance(event, TokenChunk) and event.index == index
        ]
        assert told == ["0 ", "1 ", "end"]
    usage = Usage(prompt_tokens=3, completion_tokens=6)
    assert events[-1] == Finished(FinishReason.STOP, usage, (FinishReason.STOP,))
    assert len(left) == 1


async def test_leaving_several_answers_early_frees_the_place_of_each() -> None:
    async with started() as (_, (runner,)):
        async with aclosing(runner.generate(request("wait", n=3), lease())) as told:
            async for _ in told:
                break

        assert (await answer(runner, request("count")))[0] == "0"


async def test_all_slots_of_a_deployment_share_one_host() -> None:
    progress: list[str] = []
    async with started(8, progress=progress) as (_, runners):
        pids = {pid_of(runner) for runner in runners}

        answers = await asyncio.gather(*(answer(runner, request("say 4")) for runner in runners))

    assert len(pids) == 1
    assert progress.count("pretending") == 1
    assert {text for text, _ in answers} == {"0 1 2 end"}


async def test_leaving_a_stream_early_frees_its_place_in_the_host() -> None:
    async with started(2) as (_, (leaver, asker)):
        async with aclosing(leaver.generate(request("wait"), lease())) as events:
            assert text_of(await anext(events)) == "first"
            assert (await answer(asker, request("count")))[0] == "1"

        assert (await answer(asker, request("count")))[0] == "0"


async def test_cancelling_the_reading_task_frees_its_place_in_the_host() -> None:
    async with started(2) as (_, (leaver, asker)):
        reading = asyncio.create_task(answer(leaver, request("wait")))
        while (await answer(asker, request("count")))[0] != "1":
            pass

        reading.cancel()
        await asyncio.wait([reading])

        assert reading.cancelled()
        assert (await answer(asker, request("count")))[0] == "0"


async def test_a_killed_host_fails_every_stream_once_with_one_error() -> None:
    async with started(3) as (_, (first, second, killer)):
        async with (
            aclosing(first.generate(request("wait"), lease())) as one,
            aclosing(second.generate(request("wait"), lease())) as other,
        ):
            await anext(one)
            await anext(other)

            with pytest.raises(WorkerCrashedError) as killed:
                await answer(killer, request("kill"))
            with pytest.raises(WorkerCrashedError) as crash:
                await anext(one)
            with pytest.raises(WorkerCrashedError) as same:
                await anext(other)

        causes = [await runner.closed() for runner in (first, second, killer)]

    assert "SIGKILL" in crash.value.message
    assert "3 writing" in crash.value.message
    assert {id(error) for error in (killed.value, crash.value, same.value, *causes)} == {
        id(crash.value)
    }


async def test_what_a_host_said_before_it_died_is_delivered_first() -> None:
    async with (
        started() as (_, (runner,)),
        aclosing(runner.generate(request("kill"), lease())) as events,
    ):
        assert text_of(await anext(events)) == "first"
        with pytest.raises(WorkerCrashedError):
            await anext(events)


async def test_a_crash_tells_exit_code_and_last_words() -> None:
    async with started() as (_, (runner,)):
        with pytest.raises(WorkerCrashedError) as crash:
            await answer(runner, request("exit"))

    assert "exited with code 3" in crash.value.message
    assert "these are my last words" in crash.value.message


async def test_a_dead_host_is_reaped_and_started_anew_on_the_next_start() -> None:
    async with started() as (made, (runner,)):
        dead = pid_of(runner)
        with pytest.raises(WorkerCrashedError):
            await answer(runner, request("kill"))
        await process_of(runner).reaped()
        assert gone(dead)

        successor = made.create()
        await successor.start()

        assert pid_of(successor) != dead
        assert (await answer(successor, request("say 1")))[0] == "end"


async def test_a_request_to_a_dead_host_fails_with_the_cause_of_its_death() -> None:
    async with started() as (_, (runner,)):
        with pytest.raises(WorkerCrashedError) as crash:
            await answer(runner, request("kill"))

        with pytest.raises(WorkerCrashedError) as later:
            await answer(runner, request("say 1"))

    assert later.value is crash.value


async def test_a_frozen_host_is_killed_when_a_step_missed_its_lease() -> None:
    async with started(2) as (made, (frozen, other)):
        async with (
            aclosing(frozen.generate(request("freeze"), lease())) as events,
            aclosing(other.generate(request("wait"), lease())) as neighbours,
        ):
            await anext(events)
            cause = WorkerHungError("no token in 20 s")

            frozen.hung(cause)

            successor = made.create()
            await successor.start()
            assert pid_of(successor) != pid_of(frozen)
            with pytest.raises(WorkerCrashedError) as crash:
                await anext(neighbours)
        assert await frozen.closed() is crash.value
        assert gone(pid_of(frozen))

    assert crash.value.__cause__ is cause
    assert "a step missed its lease" in crash.value.message


async def test_a_host_that_sends_no_frames_is_killed_for_it() -> None:
    async with started() as (_, (runner,)):
        with pytest.raises(WorkerCrashedError, match="what is no report"):
            await answer(runner, request("babble"))


async def test_a_request_the_model_fails_on_fails_alone() -> None:
    async with (
        started(2) as (_, (failing, other)),
        aclosing(other.generate(request("wait"), lease())) as events,
    ):
        await anext(events)

        with pytest.raises(GenerationFailedError, match="on cue"):
            await answer(failing, request("refuse"))

        assert (await answer(failing, request("count")))[0] == "1"


async def test_reading_a_prompt_is_progress_and_the_first_token_arms_the_next_step() -> None:
    watched = lease()
    seen: list[Step | None] = []
    async with started() as (_, (runner,)):
        async with aclosing(runner.generate(request("wait"), watched)) as events:
            await anext(events)
            seen.append(watched.step)
        seen.append(watched.step)

    assert seen == [Step.NEXT_TOKEN, None]


async def test_a_missing_model_is_told_to_every_slot_as_one_error() -> None:
    async with asyncio.timeout(5), slots(3, model="missing") as (_, runners):
        results = await asyncio.gather(
            *(runner.start() for runner in runners), return_exceptions=True
        )

    assert len({id(result) for result in results}) == 1
    assert isinstance(results[0], WorkerStartError)
    assert results[0].message == "there is no such model"


async def test_a_host_that_dies_while_loading_says_how_it_died() -> None:
    async with asyncio.timeout(5), slots(model="dies") as (_, (runner,)):
        with pytest.raises(WorkerStartError) as failure:
            await runner.start()

    assert "exited with code 7 while loading (pretending)" in failure.value.message
    assert "no memory left" in failure.value.message


async def test_a_load_that_gets_no_further_is_ended() -> None:
    async with asyncio.timeout(5), slots(model="wedged", load_timeout=0.5) as (_, (runner,)):
        with pytest.raises(WorkerStartError, match="loading got no further"):
            await runner.start()


@pytest.mark.parametrize("model", ["stopped", "wedged"])
async def test_a_loading_host_without_a_sign_of_life_is_ended_long_before_the_load(
    model: str,
) -> None:
    async with asyncio.timeout(20), slots(model=model, load_silence=1.0) as (_, (runner,)):
        with pytest.raises(WorkerStartError, match="no sign of life for 1 s while: pretending"):
            await runner.start()


@pytest.mark.parametrize("model", ["computes", "reads"])
async def test_a_host_that_works_without_a_word_is_left_to_load(model: str) -> None:
    async with asyncio.timeout(20), slots(model=model, load_silence=1.0) as (_, (runner,)):
        await runner.start()

        assert (await answer(runner, request("say 1")))[0] == "end"


async def test_what_a_host_warns_of_is_one_warning_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asyncio.timeout(20), slots(2, model="warns") as (_, runners):
        await asyncio.gather(*(runner.start() for runner in runners))

    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warnings == ["model warns: something is odd"]


async def told_while(model: str) -> list[str]:
    told: list[str] = []
    async with asyncio.timeout(20), slots(model=model, progress=told) as (_, (runner,)):
        await runner.start()
    return told


async def test_a_stage_that_lasts_is_told_again_only_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seldom = await told_while("computes")

    monkeypatch.setattr(process, "REPEAT_SECONDS", 1.0)
    oftener = await told_while("computes")

    assert seldom == ["pretending"]
    assert any(line.startswith("pretending (") for line in oftener)


async def test_a_program_that_does_not_exist_is_a_failed_start() -> None:
    made = factory(TorchSettings(model="fake"), on_progress=ignore, program=["/no/such/program"])

    async with asyncio.timeout(5):
        with pytest.raises(WorkerStartError, match="no model host could be started"):
            await made.create().start()
        await made.aclose()


async def test_a_slot_that_stops_waiting_leaves_the_start_to_the_others() -> None:
    async with asyncio.timeout(5), slots(2) as (_, (leaver, stayer)):
        leaving = asyncio.create_task(leaver.start())
        staying = asyncio.create_task(stayer.start())
        await asyncio.sleep(0)

        leaving.cancel()
        await staying

        assert leaving.cancelled()
        assert (await answer(stayer, request("say 1")))[0] == "end"


async def test_closing_while_the_model_loads_leaves_no_process() -> None:
    async with asyncio.timeout(5):
        progress = asyncio.Event()
        made = factory(
            TorchSettings(model="wedged"),
            on_progress=lambda _: progress.set(),
            program=model_host.PROGRAM,
        )
        starting = asyncio.create_task(made.create().start())
        await progress.wait()
        assert len(children()) == 1

        await made.aclose()
        await asyncio.wait([starting])

    assert children() == []


async def test_a_host_that_does_not_listen_is_killed_on_close() -> None:
    async with asyncio.timeout(5):
        async with slots() as (_, (runner,)):
            await runner.start()
            os.kill(pid_of(runner), signal.SIGSTOP)

        assert gone(pid_of(runner))


async def test_an_orderly_close_is_no_death() -> None:
    async with started() as (made, (runner,)):
        watching = asyncio.create_task(runner.closed())
        await asyncio.sleep(0)

        await made.aclose()
        await asyncio.sleep(0)

        assert not watching.done()
        watching.cancel()


async def test_no_descriptor_is_left_open_after_crashes_and_closes() -> None:
    async def round_trip() -> None:
        async with started() as (made, (runner,)):
            with pytest.raises(WorkerCrashedError):
                await answer(runner, request("kill"))
            await made.create().start()

    await round_trip()
    before = descriptors()

    await round_trip()

    assert descriptors() == before


async def test_a_seed_is_drawn_where_the_request_names_none() -> None:
    async with started() as (_, (runner,)):
        drawn = {(await answer(runner, request("echo")))[0] for _ in range(3)}
        named = (await answer(runner, request("echo", seed=17)))[0]

    assert len(drawn) == 3
    assert named == "17"


async def test_a_long_prompt_is_counted_by_the_host_before_it_is_queued() -> None:
    async with started() as (made, _):
        short = made.inspect(request("say 1"))
        counted = made.inspect(request("x" * 900))

        assert short is None
        assert counted is not None
        await counted
        with pytest.raises(ContextLengthExceededError, match="context of 1000 tokens"):
            made.inspect(request("x" * 20_000))


async def test_a_runner_that_was_not_started_says_so() -> None:
    async with asyncio.timeout(5), slots() as (_, (runner,)):
        with pytest.raises(WorkerError, match="isn't started"):
            await answer(runner, request())


def test_the_same_runner_works_on_uvloop() -> None:
    async def talk() -> None:
        async with started(2) as (made, (runner, killer)):
            assert (await answer(runner, request("say 3")))[0] == "0 1 end"
            with pytest.raises(WorkerCrashedError, match="SIGKILL"):
                await answer(killer, request("kill"))
            successor = made.create()
            await successor.start()
            assert (await answer(successor, request("say 1")))[0] == "end"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(talk())


PARENT = """
import asyncio
from orchestrator.runners.torch.process import HostProcess
from orchestrator.runners.torch.settings import TorchSettings
from tests.fakes import model_host

async def main() -> None:
    host = HostProcess.spawn(
        TorchSettings(model="fake"), on_progress=print, program=model_host.PROGRAM
    )
    await host.ready()
    print(host.pid, flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


async def test_a_host_does_not_outlive_a_parent_that_was_killed() -> None:
    async with asyncio.timeout(5):
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PARENT), stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        assert await parent.stdout.readline() == b"pretending\n"
        host = os.pidfd_open(int(await parent.stdout.readline()))
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(host, ended.set)

        parent.kill()
        await parent.wait()

        await ended.wait()
        loop.remove_reader(host)
        os.close(host)


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


@pytest.mark.parametrize("own", [None, "glibc.malloc.check=1"])
async def test_a_host_has_large_pages_unless_the_tunables_are_somebodys_own(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", own)

    async with started() as (_, (runner,)):
        environment = environment_of(pid_of(runner))

    assert b"GLIBC_TUNABLES=" + (own or "glibc.malloc.hugetlb=1").encode() in environment
