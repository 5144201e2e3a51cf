"""Calls of tools in the text of a model."""

import json

import pytest

from orchestrator.runners.torch.calls import Call, CallReader, Family, family_of

WEATHER = Call("weather", '{"city": "Köln"}')
TIME = Call("time", "{}")
WROTE = '{"name": "weather", "arguments": {"city": "Köln"}}'
ANSWERS: list[tuple[Family, str, str, list[Call]]] = [
    ("hermes", f"<tool_call>\n{WROTE}\n</tool_call>", "", [WEATHER]),
    (
        "hermes",
        f'Let me look. <tool_call>{WROTE}</tool_call>\n<tool_call>{{"name": "time"}}</tool_call>',
        "Let me look. \n",
        [WEATHER, TIME],
    ),
    ("hermes", "1 < 2 and <tool_cal is nothing", "1 < 2 and <tool_cal is nothing", []),
    ("hermes", "<tool_call>{broken</tool_call> so", "<tool_call>{broken</tool_call> so", []),
    ("hermes", f"<tool_call>{WROTE}", "", [WEATHER]),
    ("hermes", '<tool_call>{"name": "wea', '<tool_call>{"name": "wea', []),
    ("hermes", '{"name": "weather", "arguments": {}}', '{"name": "weather", "arguments": {}}', []),
    ("mistral", f"[TOOL_CALLS] [{WROTE}]", "", [WEATHER]),
    ("mistral", f'[TOOL_CALLS][{WROTE}, {{"name": "time"}}]', "", [WEATHER, TIME]),
    ("mistral", "[TOOL_CALLS] no", "[TOOL_CALLS] no", []),
    ("mistral", "a [TOOL] of mine", "a [TOOL] of mine", []),
    ("llama", '{"name": "weather", "parameters": {"city": "Köln"}}', "", [WEATHER]),
    ("llama", '<|python_tag|>{"name": "time", "parameters": {}}', "", [TIME]),
    (
        "llama",
        '{"name": "weather", "parameters": {"city": "Köln"}}; {"name": "time", "parameters": {}}',
        "",
        [WEATHER, TIME],
    ),
    ("llama", '{"name": "time", "parameters": "{}"}', "", [TIME]),
    ("llama", '{"city": "Köln"}', '{"city": "Köln"}', []),
    ("llama", "A brace { in a text", "A brace { in a text", []),
]


def read(family: Family, pieces: list[str]) -> tuple[str, list[Call], bool]:
    reader = CallReader(family)
    told, calls = "", list[Call]()
    for text, found in [*map(reader.add, pieces), reader.finish()]:
        told += text
        calls += found
    return told, calls, reader.called


@pytest.mark.parametrize(("family", "answer", "text", "calls"), ANSWERS)
def test_calls_are_told_from_text_however_the_answer_is_cut(
    family: Family, answer: str, text: str, calls: list[Call]
) -> None:
    expected = (text, calls, bool(calls))

    assert read(family, [answer]) == expected
    assert read(family, list(answer)) == expected
    for at in range(len(answer)):
        assert read(family, [answer[:at], answer[at:]]) == expected


def test_text_before_a_call_is_not_held_back() -> None:
    reader = CallReader("hermes")

    assert reader.add("Let me look. <tool") == ("Let me look. ", [])
    assert reader.add("_call>" + WROTE) == ("", [])
    assert reader.add("</tool_call>") == ("", [WEATHER])
    assert json.loads(WEATHER.arguments) == {"city": "Köln"}


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ('{% if tools %}{"name": x, "parameters": y}{% endif %} ipython', "llama"),
        ("{% if tools %}something of its own{% endif %}", None),
        ("{{ messages[0].content }} <tool_call>", None),
    ],
)
def test_the_family_is_known_by_the_template(template: str, family: Family | None) -> None:
    assert family_of(template) == family
