"""A character that is cut in two between two events is one character again."""

import itertools
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UpstreamProtocolError
from orchestrator.runners.remote.anthropic_answer import MessageDecoder
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.gemini_answer import GeminiDecoder
from orchestrator.runners.remote.ollama import OllamaDecoder
from orchestrator.runners.remote.reader import Reader
from orchestrator.runners.remote.responses import ResponsesDecoder
from orchestrator.runners.remote.sse import ServerSentEvent


def chat(text: str) -> object:
    return {"choices": [{"delta": {"content": text}}]}


def responses(text: str) -> object:
    return {"type": "response.output_text.delta", "delta": text}


def anthropic(text: str) -> object:
    delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def gemini(text: str) -> object:
    return {"candidates": [{"content": {"parts": [{"text": text}]}}]}


def ollama(text: str) -> object:
    return {"message": {"content": text}}


PROVIDERS: dict[str, tuple[Callable[[], Reader], Callable[[str], object]]] = {
    "openai": (lambda: ChatDecoder("acme"), chat),
    "openai-responses": (lambda: ResponsesDecoder("acme"), responses),
    "anthropic": (lambda: MessageDecoder("acme"), anthropic),
    "gemini": (lambda: GeminiDecoder("acme"), gemini),
    "ollama": (lambda: OllamaDecoder("acme"), ollama),
}


def in_utf16(text: str) -> list[str]:
    """The text as a program sees it that counts in UTF-16: halves are characters of their own."""
    units = text.encode("utf-16-le")
    return [
        units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)
    ]


def told(provider: str, *texts: str) -> str:
    make, event = PROVIDERS[provider]
    reader = make()
    found = [reader.take(ServerSentEvent(json.dumps(event(text)).encode())) for text in texts]
    return "".join(chunk.text for chunk in found if chunk is not None)


@pytest.mark.parametrize("provider", PROVIDERS)
@given(
    text=st.text(st.sampled_from('😀🎉\\"u:,[ a你'), max_size=8),
    cuts=st.lists(st.integers(0, 16), max_size=4),
)
@settings(deadline=None, max_examples=60)
def test_a_text_cut_between_any_two_halves_is_read_whole(provider: str, text: str, cuts: list[int]):
    units = in_utf16(text)
    places = sorted({0, len(units), *(min(cut, len(units)) for cut in cuts)})
    pieces = ["".join(units[one:other]) for one, other in itertools.pairwise(places)]

    assert told(provider, *pieces) == text


def test_what_comes_between_the_two_halves_is_not_held_back():
    reader = ChatDecoder("acme")
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    events = [chat("a\ud83d"), {"choices": [{"delta": {"tool_calls": [call]}}]}, chat("\ude00b")]

    found = [reader.take(ServerSentEvent(json.dumps(event).encode())) for event in events]

    assert found[0] is not None
    assert found[0].text == "a"
    assert found[1] is not None
    assert found[1].fields == {"tool_calls": [call]}
    assert found[2] is not None
    assert found[2].text == "😀b"


@pytest.mark.parametrize("text", ["\ude00", "a\ud83db", "\ude00\ud83d"])
def test_a_half_that_stands_alone_within_a_text_is_still_refused(text: str):
    with pytest.raises(UpstreamProtocolError):
        told("openai", text)


def test_a_second_half_without_a_first_one_is_refused_after_a_whole_character():
    with pytest.raises(UpstreamProtocolError):
        told("openai", "\ud83d", "\ude00", "\ude00")
