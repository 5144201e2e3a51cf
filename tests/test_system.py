"""Requests through the real engine, workers and supervisor, over a scripted runner."""

import asyncio

from orchestrator.events import Failed, Finished
from tests.fakes.scripted import DONE, Stage
from tests.fakes.systems import make_request, read, running


async def test_an_answer_comes_whole_and_in_order() -> None:
    stage = Stage(lambda _request, _call: ["a", "b", "c", DONE])

    async with asyncio.timeout(5), running({"m": stage}, slots=2) as system:
        request = make_request()
        system.router.submit(request)
        answer = await read(request)

    assert answer.text == "abc"
    assert answer.ending == DONE


async def test_a_dead_host_costs_only_what_was_delivered() -> None:
    hold = asyncio.Event()
    stage = Stage(
        lambda _request, call: ["a", hold, "b", DONE] if call == 0 else ["x", DONE], local=True
    )

    async with asyncio.timeout(5), running({"m": stage}, slots=2) as system:
        request = make_request()
        system.router.submit(request)
        chunks, _ = await request.channel.receive()
        stage.kill_host(RuntimeError("segfault"))
        answer = await read(request)
        follower = make_request()
        system.router.submit(follower)
        after = await read(follower)

    assert [chunk.text for chunk in chunks] == ["a"]
    assert isinstance(answer.ending, Failed)
    assert answer.ending.error.code == "worker_crashed"
    assert "segfault" in str(answer.ending.error)
    assert isinstance(after.ending, Finished)
    assert after.text == "x"
