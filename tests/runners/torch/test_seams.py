"""An answer goes on at the next host after what the one that died had sent."""

import asyncio
import random
from dataclasses import replace

from orchestrator.errors import WorkerCrashedError
from orchestrator.plan import DeploymentPlan
from orchestrator.request import MAX_SEED, PriorityRequest
from orchestrator.resume import Resume, Seam
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.seams import LocalChunk, kin, seed_at, seed_of, sent_before
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.sdk import Orchestrator
from orchestrator.wiring import System
from tests.fakes import model_host
from tests.runners.torch.asking import request

SENT = (LocalChunk("a", 2, ids=(5, 6), seed=9), LocalChunk("b", ids=(7,), seed=9))


def broken(seed: int | None = None) -> PriorityRequest:
    asked = request(seed=seed)
    asked.resume = Resume(Seam.EXACT, SENT, WorkerCrashedError("killed"))
    return asked


def test_the_next_host_is_told_all_tokens_that_were_sent() -> None:
    assert sent_before(broken()) == (5, 6, 7)
    assert sent_before(request()) == ()


def test_an_answer_keeps_its_noise_whoever_chose_it() -> None:
    chance = random.Random(1)

    assert seed_of(broken(), chance) == 9
    assert seed_of(broken(seed=3), chance) == 3
    assert seed_of(request(), chance) == random.Random(1).randint(0, MAX_SEED)


def test_only_the_same_model_in_the_same_numbers_goes_on_exactly() -> None:
    one = TorchSettings(model="m", threads=1)

    assert kin(one) == kin(TorchSettings(model="m", spare=True))
    others = [
        replace(one, model="n"),
        replace(one, dtype="bfloat16"),
        replace(one, revision="2"),
        replace(one, device="cuda:0"),
    ]
    assert kin(one) not in set(map(kin, others))


async def test_the_reader_of_a_torn_answer_sees_one_answer() -> None:
    made = factory(
        TorchSettings(model="fake"), on_progress=lambda _: None, program=model_host.PROGRAM
    )
    system = System([DeploymentPlan(name="m", factory=made, slots=1)])
    orchestrator = Orchestrator.over(system, default_model="m", drain=0.0)

    async with asyncio.timeout(20), orchestrator:
        stream = orchestrator.submit("torn 5")
        chunks = [chunk async for chunk in stream]

    assert "".join(chunk.text for chunk in chunks) == "0 1 2 3 end"
    assert [chunk.tokens for chunk in chunks] == [1] * 5
    assert stream.usage is not None
    assert stream.usage.completion_tokens == 5
    assert [attempt.resumed_after for attempt in stream.attempts] == [None, 2]


def test_each_of_several_answers_goes_on_after_its_own_tokens() -> None:
    asked = request(n=2)
    other = LocalChunk("c", 1, None, 1, ids=(8, 4), seed=9)
    asked.resume = Resume(Seam.EXACT, (*SENT, other), WorkerCrashedError("killed"))

    assert [sent_before(asked, index) for index in (0, 1, 2)] == [(5, 6, 7), (8, 4), ()]


def test_every_answer_has_a_noise_of_its_own_and_the_first_the_requests() -> None:
    seeds = [seed_at(17, index) for index in range(16)]

    assert seeds[0] == 17
    assert len(set(seeds)) == 16
    assert all(0 <= seed <= MAX_SEED for seed in seeds)


async def test_the_reader_of_two_torn_answers_sees_each_of_them_once() -> None:
    made = factory(
        TorchSettings(model="fake"), on_progress=lambda _: None, program=model_host.PROGRAM
    )
    system = System([DeploymentPlan(name="m", factory=made, slots=1)])
    orchestrator = Orchestrator.over(system, default_model="m", drain=0.0)

    async with asyncio.timeout(20), orchestrator:
        stream = orchestrator.submit("torn 5", n=2)
        chunks = [chunk async for chunk in stream]

    for index in (0, 1):
        text = "".join(chunk.text for chunk in chunks if chunk.index == index)
        assert text == "0 1 2 3 end", index
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (3, 10)
    assert [attempt.resumed_after for attempt in stream.attempts] == [None, 2, 6]
