"""The runner with a real host and a tiny model, from start to death."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.channel import Channel
from orchestrator.errors import (
    GenerationFailedError,
    InvalidRequestError,
    QueueFullError,
    RequestTooLargeError,
    WorkerCrashedError,
    WorkerStartError,
)
from orchestrator.request import Message, PriorityRequest, SamplingParams, Work
from orchestrator.runners.base import Runner, SlotFactory
from orchestrator.runners.torch.encoders.results import Results
from orchestrator.runners.torch.encoders.room import Room
from orchestrator.runners.torch.encoders.runner import factory
from orchestrator.runners.torch.settings import EncoderSettings, Task, TorchSettings
from orchestrator.runners.torch.wire import Encoded
from tests.runners.torch.asking import answer
from tests.runners.torch.encoders import models

TEXTS = ["a few plain words", "texts", "words of texts that are read"]

pytestmark = pytest.mark.timeout(120)  # each test starts a host that imports torch


def request(work: Work, texts: list[str], **extra: object) -> PriorityRequest:
    return PriorityRequest(
        request_id="r1",
        model="local",
        messages=[Message("user", text) for text in texts],
        sampling=SamplingParams(),
        channel=Channel(),
        extra=extra,
        work=work,
    )


def made(place: str, task: Task, room: Room | None = None) -> SlotFactory:
    settings = TorchSettings(model=place, device="cpu", encoder=EncoderSettings(task=task))
    return factory(
        settings, on_progress=lambda _: None, room=room or Room(items=100, tokens=10_000)
    )


@asynccontextmanager
async def started(place: str, task: Task) -> AsyncGenerator[tuple[SlotFactory, Runner]]:
    slots = made(place, task)
    try:
        runner = slots.create()
        await runner.start()
        yield slots, runner
    finally:
        await slots.aclose()


async def test_documents_come_in_the_order_of_their_scores(tmp_path: Path) -> None:
    place = models.write(tmp_path, labels={0: "score"})
    asked = request(
        Work.RERANK, TEXTS, query="plain texts", top_n=2, return_documents=True, raw_scores=True
    )

    async with started(place, "rerank") as (_, runner), asyncio.timeout(5):
        text, ending = await answer(runner, asked)

    scores = [float(models.logits(place, "plain texts", text)) for text in TEXTS]
    order = sorted(range(3), key=lambda number: -scores[number])[:2]
    told: list[dict[str, Any]] = json.loads(text)
    assert [item["index"] for item in told] == order
    assert [item["document"]["text"] for item in told] == [TEXTS[number] for number in order]
    assert [item["relevance_score"] for item in told] == pytest.approx(
        [scores[number] for number in order], abs=1e-4
    )
    assert ending.usage is not None
    assert ending.usage.prompt_tokens == 26


async def test_a_killed_host_is_told_and_the_next_one_answers(tmp_path: Path) -> None:
    place = models.write(tmp_path)

    async with started(place, "embedding") as (slots, runner):
        (pid,) = slots.processes()
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            cause = await runner.closed()
        again = slots.create()
        await again.start()
        async with asyncio.timeout(5):
            text, _ = await answer(again, request(Work.EMBED, TEXTS))

    assert isinstance(cause, WorkerCrashedError)
    assert "SIGKILL" in cause.message
    assert [item["index"] for item in json.loads(text)] == [0, 1, 2]


async def test_a_model_that_cannot_rank_says_so_at_the_start(tmp_path: Path) -> None:
    place = models.write(tmp_path, labels={0: "a", 1: "b"})

    with pytest.raises(WorkerStartError, match="has 2 outputs; one that ranks has a single one"):
        async with started(place, "rerank"):
            pass


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(Work.EMBED, ["a"], voice="loud"), "voice: this model doesn't know the field"),
        (request(Work.EMBED, [""], input=[1, 2]), "input\\[0\\]: this model takes texts"),
        (request(Work.CLASSIFY, ["a"], raw_scores=1), "raw_scores must be true or false"),
        (request(Work.EMBED, ["\ud83d"]), "input\\[0\\] holds half a character"),
        (request(Work.EMBED, ["a"], dimensions=0), "dimensions must be a whole number above 0"),
    ],
)
def test_what_such_a_model_cannot_do_is_refused_before_the_queue(
    asked: PriorityRequest, message: str
) -> None:
    inspect = made("no/model", "embedding").inspect

    with pytest.raises(InvalidRequestError, match=message):
        inspect(asked)


def test_a_request_with_more_texts_than_fit_is_too_large() -> None:
    slots = made("no/model", "embedding", Room(items=2, tokens=1000))

    with pytest.raises(RequestTooLargeError, match="3 texts of about"):
        slots.inspect(request(Work.EMBED, TEXTS))


def test_room_counts_the_texts_that_come_and_is_given_back() -> None:
    room = Room(items=5, tokens=100)

    with room.taken(3, 10), pytest.raises(QueueFullError), room.taken(3, 10):
        pass
    with room.taken(1, 95), pytest.raises(QueueFullError), room.taken(1, 10):
        pass
    with room.taken(5, 100):
        pass

    assert repr(room) == "<Room 0/5 texts, 0/100 tokens>"


def test_results_that_are_missing_or_doubled_are_never_shifted() -> None:
    results = Results(2)
    results.take(Encoded(0, [1], [b"1"]))

    with pytest.raises(GenerationFailedError, match="1 results for 2 texts"):
        results.all()
    with pytest.raises(GenerationFailedError, match="a second result for text 1"):
        results.take(Encoded(0, [1], [b"1"]))
    with pytest.raises(GenerationFailedError, match="1 results for 2 texts"):
        results.take(Encoded(0, [0, 1], [b"1"]))
