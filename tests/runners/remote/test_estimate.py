"""Usage of answers whose provider tells none."""

import json

import pytest

from orchestrator import metrics
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import Message
from orchestrator.runners.remote.estimate import prompt_tokens
from orchestrator.runners.remote.pace import at_once
from tests.fakes.sse_server import LAST_CHUNK, Script, Send, SseServer, answer, delta, event
from tests.runners.remote.asking import a_request, asking

DONE = b"data: [DONE]\n\n"


def counted(asked: str) -> float:
    found = metrics.REGISTRY.get_sample_value(
        "orchestrator_estimated_usages_total", {"deployment": asked}
    )
    return found or 0.0


def saying(*events: bytes) -> Script:
    return answer(*events, delta(finish="stop"), DONE)


@pytest.mark.live
async def test_tokens_are_counted_here_and_marked_if_the_provider_tells_none():
    before = counted("acme")
    script = saying(delta("a" * 39), delta("b"))

    async with SseServer(script) as server, asking(server, estimate_usage=True) as asker:
        found = await asker.ask(messages=[Message("user", "你" * 40)])

    usage = Usage(prompt_tokens=30, completion_tokens=10, estimated=True)
    assert found.ending == Finished(FinishReason.STOP, usage)
    assert counted("acme") == before + 1


@pytest.mark.live
async def test_an_answer_has_at_least_as_many_tokens_as_chunks():
    script = saying(*(delta(letter) for letter in "abcde"))

    async with SseServer(script) as server, asking(server, estimate_usage=True) as asker:
        found = await asker.ask()

    assert found.ending is not None
    assert found.ending.usage is not None
    assert found.ending.usage.completion_tokens == 5


@pytest.mark.live
async def test_reasoning_and_arguments_of_calls_are_counted_but_no_logprobs():
    call = {"index": 0, "id": "", "function": {"name": "", "arguments": "x" * 40}}
    logprobs = {"content": [{"token": "z" * 400}]}
    choice = {"index": 0, "delta": {"content": "ab"}, "logprobs": logprobs}
    script = saying(
        delta(reasoning_content="r" * 38), delta(tool_calls=[call]), event({"choices": [choice]})
    )

    async with SseServer(script) as server, asking(server, estimate_usage=True) as asker:
        found = await asker.ask()

    assert found.ending is not None
    assert found.ending.usage is not None
    assert found.ending.usage.completion_tokens == 20


@pytest.mark.live
@pytest.mark.parametrize("wanted", [True, False])
async def test_what_the_provider_tells_is_never_replaced(wanted: bool):
    told = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    script = answer(delta("a"), delta(finish="stop"), told, DONE)

    async with SseServer(script) as server, asking(server, estimate_usage=wanted) as asker:
        found = await asker.ask()

    usage = Usage(prompt_tokens=3, completion_tokens=1)
    assert found.ending == Finished(FinishReason.STOP, usage)


@pytest.mark.live
async def test_nothing_is_counted_unless_it_is_asked_for():
    async with SseServer(saying(delta("a"))) as server, asking(server) as asker:
        found = await asker.ask()

    assert found.ending == Finished(FinishReason.STOP)


@pytest.mark.live
async def test_a_cut_answer_stays_cut_where_tokens_are_counted_here():
    async with (
        SseServer([*saying(delta("a"))[:2], Send(LAST_CHUNK)]) as server,
        asking(server, estimate_usage=True) as asker,
    ):
        found = await asker.ask()

    assert found.chunks == [TokenChunk("a")]
    assert found.ending is None
    assert found.error is not None


def test_a_prompt_has_its_texts_calls_and_tools():
    call = {"id": "", "function": {"name": "", "arguments": "y" * 12}}
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [
        Message("user", [{"type": "text", "text": "a" * 40}, {"type": "image_url"}]),
        Message("assistant", None, {"tool_calls": [call]}),
    ]
    given = a_request(messages=messages, extra={"tools": tools})
    size = 40 + 12 + len(json.dumps(tools, separators=(",", ":")))

    assert at_once(prompt_tokens(given)) == -(-size // 4)
