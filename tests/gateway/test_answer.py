"""Deltas of a stream, merged into one message."""

import json
from typing import Any

from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.gateway.answer import merge_fields, whole_answer

STOP = Finished(FinishReason.STOP)


def answer(*chunks: TokenChunk, finished: Finished = STOP) -> dict[str, Any]:
    return json.loads(whole_answer(chunks, finished, completion_id="c", model="m", created=1))


def call_piece(index: int, **members: object) -> dict[str, object]:
    return {"tool_calls": [{"index": index} | members]}


def test_tool_calls_are_merged_by_their_index() -> None:
    merged = merge_fields(
        [
            call_piece(0, id="a", type="function", function={"name": "f", "arguments": ""}),
            call_piece(1, id="b", type="function", function={"name": "g", "arguments": '{"x"'}),
            call_piece(0, function={"arguments": '{"y":'}),
            call_piece(1, function={"arguments": ":1}"}),
            call_piece(0, function={"arguments": "2}"}),
        ]
    )

    assert merged["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"y":2}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"x":1}'}},
    ]


def test_names_that_a_provider_repeats_are_not_joined() -> None:
    piece = call_piece(0, id="a", type="function", function={"name": "f", "arguments": "1"})

    merged = merge_fields([piece, piece])

    assert merged["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "11"}}
    ]


def test_reasoning_is_joined_and_lists_are_appended() -> None:
    merged = merge_fields(
        [
            {"reasoning_content": "let me ", "annotations": [1]},
            {"reasoning_content": None, "annotations": [2]},
            {"reasoning_content": "think"},
        ]
    )

    assert merged == {"reasoning_content": "let me think", "annotations": [1, 2]}


def test_logprobs_of_all_chunks_stand_at_the_choice() -> None:
    body = answer(
        TokenChunk("a", 1, {"logprobs": {"content": [1]}}),
        TokenChunk("b", 1, {"logprobs": {"content": [2]}}),
    )

    assert body["choices"][0]["logprobs"] == {"content": [1, 2]}
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "ab"}


def test_an_answer_that_only_calls_tools_has_no_content() -> None:
    body = answer(TokenChunk("", 1, call_piece(0, id="a")))

    assert body["choices"][0]["message"]["content"] is None
    assert body["choices"][0]["message"]["tool_calls"] == [{"id": "a"}]


def test_an_empty_answer_has_an_empty_content_and_no_usage() -> None:
    body = answer()

    assert body["choices"][0]["message"]["content"] == ""
    assert body["usage"] is None


def test_several_answers_are_choices_by_their_place() -> None:
    finished = Finished(FinishReason.STOP, None, (FinishReason.LENGTH, FinishReason.STOP))

    body = answer(TokenChunk("a"), TokenChunk("b", index=1), TokenChunk("c"), finished=finished)

    told = [
        (choice["index"], choice["message"]["content"], choice["finish_reason"])
        for choice in body["choices"]
    ]
    assert told == [(0, "ac", "stop"), (1, "b", "length"), (2, "", "stop")]
