import pytest

from orchestrator.errors import ContextLengthExceededError, InvalidRequestError
from orchestrator.request import Message
from orchestrator.runners.torch.checks import may_exceed, to_wire
from tests.fakes.model_host import FACTS
from tests.runners.torch.asking import request


def test_messages_become_roles_and_texts() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [
        Message("developer", "be kind"),
        Message("user", parts, {"name": "ann"}),
        Message("assistant", None, {"refusal": None}),
    ]

    assert to_wire(request(messages=messages)) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "one two"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (Message("function", "42"), "messages[0].role"),
        (Message("user", None), "messages[0].content"),
        (Message("user", [{"type": "image_url", "image_url": {}}]), "messages[0].content[0]"),
        (Message("user", [{"type": "text", "text": 3}]), "messages[0].content[0]"),
        (Message("user", "x", {"tool_call_id": "c"}), "messages[0].tool_call_id"),
        (Message("user", "x", {"colour": "red"}), "messages[0].colour"),
        (Message("user", "half \ud83d"), "messages[0].content"),
    ],
)
def test_a_message_that_is_more_than_text_is_refused_by_its_place(
    message: Message, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        to_wire(request(messages=[message]))

    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"functions": [{"name": "f"}]}, "takes tools instead"),
        ({"n": 2}, "can't do that"),
        ({"modalities": ["audio"]}, "can't do that"),
        ({"warmth": 3}, "doesn't know the field"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(
    extra: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as refusal:
        to_wire(request(extra=extra))

    assert refusal.value.param == next(iter(extra))


def test_there_is_an_end_of_the_answers_that_a_local_model_gives_at_once() -> None:
    to_wire(request(n=16))
    with pytest.raises(InvalidRequestError, match="n must be at most 16") as refusal:
        to_wire(request(n=17))

    assert refusal.value.param == "n"


def test_fields_that_ask_for_nothing_are_let_through() -> None:
    extra: dict[str, object] = {
        "n": 1,
        "user": "ann",
        "tools": None,
        "logprobs": False,
        "tool_choice": "auto",
    }

    assert to_wire(request("hi", extra=extra)) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("size", "max_tokens", "verdict"),
    [(100, 300, False), (500, None, True), (100, 500, True), (9000, None, True)],
)
def test_only_prompts_that_could_be_too_long_need_counting(
    size: int, max_tokens: int | None, verdict: bool
) -> None:
    messages = to_wire(request("x" * size))

    assert may_exceed(messages, max_tokens, FACTS) is verdict


def test_a_prompt_no_tokenizer_could_fit_is_refused_without_counting() -> None:
    messages = to_wire(request("x" * 9_991))

    with pytest.raises(ContextLengthExceededError, match="at least 1000 tokens"):
        may_exceed(messages, 2, FACTS)
