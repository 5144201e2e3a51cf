"""Tools in a request to a local model, and the calls in its answers."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs

from orchestrator.errors import InvalidRequestError, WorkerCrashedError
from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.request import Message, SamplingParams
from orchestrator.resume import Resume, Seam
from orchestrator.runners.torch.calls import Call
from orchestrator.runners.torch.checks import to_wire
from orchestrator.runners.torch.engine import Engine
from orchestrator.runners.torch.forms import Form
from orchestrator.runners.torch.loading import LoadedModel
from orchestrator.runners.torch.passes import Plain
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.seams import called_before
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.runners.torch.telling import Telling
from orchestrator.runners.torch.tools import tools_of
from orchestrator.runners.torch.wire import (
    Admit,
    Completed,
    Count,
    Counted,
    Produced,
    Refused,
    StreamEvent,
    Turn,
)
from orchestrator.runners.torch.wishes import Wishes
from tests.runners.torch import tiny
from tests.runners.torch.asking import lease, request

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} <tool_call>{% endfor %}"
    "{% for message in messages %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.arguments.city }}{% endfor %}<end>{% endfor %}"
)
WEATHER: Turn = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}
BROKEN = {"name": "f", "arguments": "{"}
CALL = r'so <tool_call>\{"name": "weather", "arguments": \{"city": "(Bonn|Köln)"\}\}</tool_call>'
ASKED: list[Turn] = [{"role": "user", "content": "some words"}]


@pytest.fixture
def loaded() -> LoadedModel:
    made = tiny.loaded()
    made.tokenizer.chat_template = TEMPLATE
    return replace(made, facts=structs.replace(made.facts, tools="hermes"))


def engine_of(loaded: LoadedModel) -> Engine:
    return Engine(loaded, Plain(loaded.model, context=tiny.CONTEXT, tokens=4096))


def answered(loaded: LoadedModel, *sent: int) -> list[StreamEvent]:
    """All events of an answer that is kept to a call, gone on with after some tokens."""
    engine = engine_of(loaded)
    sampling = SamplingParams(temperature=0, max_tokens=200)
    wishes = Wishes(form=Form("regex", CALL))
    assert engine.admit(Admit(1, ASKED, sampling, 1, sent, wishes, [WEATHER])) == []
    events: list[StreamEvent] = []
    while not engine.idle:
        events += engine.step()
    return events


def calls_of(events: Sequence[StreamEvent]) -> list[Call]:
    told = [event for event in events if isinstance(event, Produced | Completed)]
    return [call for event in told for call in event.calls]


def test_a_call_comes_whole_and_the_answer_ends_with_its_reason(loaded: LoadedModel) -> None:
    events = answered(loaded)

    last = events[-1]
    assert isinstance(last, Completed)
    assert last.finish_reason is FinishReason.TOOL_CALLS
    told = [event for event in events if isinstance(event, Produced | Completed)]
    assert "".join(event.text for event in told) == "so "
    ((call,),) = [event.calls for event in told if event.calls]
    assert call.name == "weather"
    assert json.loads(call.arguments)["city"] in ("Bonn", "Köln")


def test_an_answer_with_a_call_goes_on_from_any_token(loaded: LoadedModel) -> None:
    events = answered(loaded)
    produced = [event for event in events if isinstance(event, Produced)]

    for after in range(0, len(produced), 7):
        rest = answered(loaded, *(event.token for event in produced[:after]))
        told = [e for e in [*produced[:after], *rest] if isinstance(e, Produced | Completed)]
        assert "".join(event.text for event in told) == "so "
        assert calls_of(told) == calls_of(events)


def test_a_prompt_has_its_tools_and_earlier_calls(loaded: LoadedModel) -> None:
    engine = engine_of(loaded)
    call: Turn = {"function": {"name": "weather", "arguments": {"city": "Bonn"}}}
    turns: list[Turn] = [{"role": "user", "content": "ab", "tool_calls": [call]}]

    def length(messages: list[Turn], tools: list[Turn]) -> int:
        (counted,) = engine.count(Count(1, messages, 5, None, tools))
        assert isinstance(counted, Counted)
        return counted.prompt_tokens

    backend = loaded.backend
    assert length(turns, []) == len(backend.encode("abBonn<end>").ids)
    wanted = "weather <tool_call>abBonn<end>"
    assert length(turns, [WEATHER]) == len(backend.encode(wanted).ids)


@pytest.mark.parametrize(
    ("messages", "tools", "param"),
    [
        (ASKED, [WEATHER], "tools"),
        ([{"role": "tool", "content": "4"}], [], "messages[0]"),
        ([*ASKED, {"role": "assistant", "content": "", "tool_calls": []}], [], "messages[1]"),
    ],
)
def test_a_template_that_takes_no_tools_is_given_none(
    messages: list[Turn], tools: list[Turn], param: str
) -> None:
    (refused,) = engine_of(tiny.loaded()).count(Count(1, messages, 5, None, tools))

    assert isinstance(refused, Refused)
    assert (refused.kind, refused.param) == ("invalid", param)
    assert "takes no tools" in refused.message


def test_tools_and_calls_are_told_as_templates_take_them() -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        Message("assistant", None, {"tool_calls": [called]}),
        Message("tool", "4", {"tool_call_id": "c1"}),
    ]
    asked = request(messages=messages, extra={"tools": [WEATHER], "tool_choice": "auto"})

    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert to_wire(asked) == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4", "name": None, "tool_call_id": "c1"},
    ]
    assert tools_of(asked) == [WEATHER]
    assert tools_of(request(extra={"tools": [WEATHER], "tool_choice": "none"})) == []


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            "tools[0].function.strict",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "own": 1}}]},
            "tools[0].function.own",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"functions": [{}]}, "functions"),
    ],
)
def test_what_a_local_model_can_not_be_held_to_is_refused_by_name(
    extra: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        to_wire(request(extra=extra))

    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (Message("user", "x", {"tool_calls": [{}]}), "messages[0].tool_calls"),
        (Message("assistant", "x", {"tool_calls": {}}), None),
        (Message("assistant", "x", {"tool_calls": "f"}), "messages[0].tool_calls"),
        (Message("assistant", "x", {"tool_calls": [3]}), "messages[0].tool_calls[0]"),
        (
            Message("assistant", "x", {"tool_calls": [{"function": BROKEN}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_call_that_is_none_is_refused_by_its_place(message: Message, param: str | None) -> None:
    if param is None:
        assert to_wire(request(messages=[message]))[0]["content"] == "x"
        return
    with pytest.raises(InvalidRequestError) as refusal:
        to_wire(request(messages=[message]))

    assert refusal.value.param == param


def test_calls_are_chunks_in_openais_shape_and_numbered_on_after_a_break() -> None:
    telling = Telling(0, 7)
    first = telling.piece(Produced(1, "", 5, calls=[Call("f", "{}"), Call("g", "{}")]))
    assert first is not None

    fields = cast("dict[str, list[dict[str, object]]]", first.fields)
    assert [call["index"] for call in fields["tool_calls"]] == [0, 1]
    assert fields["tool_calls"][1]["function"] == {"name": "g", "arguments": "{}"}
    assert all(len(str(call["id"])) == 9 for call in fields["tool_calls"])
    asked = request()
    asked.resume = Resume(Seam.EXACT, (first, TokenChunk("x")), WorkerCrashedError("killed"))
    assert called_before(asked) == 2


@pytest.mark.live
async def test_a_real_host_calls_a_tool_and_says_that_its_template_takes_some(
    tmp_path: Path,
) -> None:
    tiny.write_directory(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    made = factory(TorchSettings(model=str(tmp_path)), on_progress=lambda _: None)
    extra: dict[str, object] = {"tools": [WEATHER], "structured_outputs": {"regex": CALL}}
    asked = request("some words", extra=extra, temperature=0.0, max_tokens=200)

    async with asyncio.timeout(60):
        runner = made.create()
        await runner.start()
        assert made.inspect is not None
        checked = made.inspect(asked)
        assert checked is not None
        await checked
        events = [event async for event in runner.generate(asked, lease())]
        await made.aclose()

    last = events[-1]
    assert isinstance(last, Finished)
    assert last.finish_reason is FinishReason.TOOL_CALLS
    told = [event for event in events if isinstance(event, TokenChunk)]
    assert "".join(chunk.text for chunk in told) == "so "
    ((call,),) = [
        cast("list[dict[str, object]]", chunk.fields["tool_calls"])
        for chunk in told
        if chunk.fields is not None
    ]
    assert cast("dict[str, str]", call["function"])["name"] == "weather"
