"""Events of a stream in OpenAI's shape."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.gateway.chunks import ChunkWriter
from tests.gateway.serving import events, text_of

STOP = Finished(FinishReason.STOP)


def make_writer(*, include_usage: bool = False) -> ChunkWriter:
    return ChunkWriter(completion_id="c1", model="m", created=5, include_usage=include_usage)


def deltas(stream: bytes) -> list[dict[str, object]]:
    told = [event for event in events(stream.decode()) if event != "[DONE]"]
    return [choice["delta"] for event in told for choice in event["choices"]]


def test_the_first_chunk_carries_the_role_and_no_other_does() -> None:
    stream = make_writer().write([TokenChunk("a"), TokenChunk("b")])

    assert deltas(stream) == [{"role": "assistant", "content": "a"}, {"content": "b"}]


def test_every_chunk_has_id_model_and_time() -> None:
    writer = make_writer()
    stream = writer.write([TokenChunk("a"), TokenChunk("b")]) + writer.finish(STOP)

    for event in events(stream.decode())[:-1]:
        assert (event["id"], event["model"], event["created"]) == ("c1", "m", 5)
        assert event["object"] == "chat.completion.chunk"
        assert "usage" not in event


def test_fields_of_a_chunk_are_members_of_its_delta() -> None:
    calls = [{"index": 0, "id": "t1", "function": {"name": "f", "arguments": ""}}]
    writer = make_writer()
    stream = writer.write([TokenChunk("a"), TokenChunk("", 1, {"tool_calls": calls})])

    assert deltas(stream)[1] == {"tool_calls": calls}


def test_logprobs_belong_to_the_choice_and_not_to_the_delta() -> None:
    stream = make_writer().write([TokenChunk("a", 1, {"logprobs": {"content": []}})])
    event = events(stream.decode())[0]

    assert event["choices"][0]["logprobs"] == {"content": []}
    assert "logprobs" not in event["choices"][0]["delta"]


def test_an_empty_answer_still_tells_its_role() -> None:
    stream = make_writer().finish(STOP)

    assert deltas(stream) == [{"role": "assistant", "content": ""}, {}]


def test_usage_that_nobody_counted_is_null_and_never_zero() -> None:
    stream = make_writer(include_usage=True).finish(STOP)

    assert events(stream.decode())[-2]["usage"] is None


def test_usage_has_its_details_in_the_shape_of_the_api() -> None:
    usage = Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=2, reasoning_tokens=1)
    stream = make_writer(include_usage=True).finish(Finished(FinishReason.STOP, usage))

    assert events(stream.decode())[-2]["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


@settings(deadline=None)
@given(st.lists(st.lists(st.text()), max_size=5))
def test_any_texts_come_out_as_they_went_in(batches: list[list[str]]) -> None:
    writer = make_writer()
    stream = b"".join(writer.write([TokenChunk(text) for text in batch]) for batch in batches)
    stream += writer.finish(STOP)

    assert text_of(stream.decode()) == "".join(text for batch in batches for text in batch)
    for line in stream.split(b"\n\n")[:-2]:
        msgspec.json.decode(line.removeprefix(b"data: "))


def test_each_of_several_answers_has_its_role_its_texts_and_its_finish_reason() -> None:
    writer = ChunkWriter(
        completion_id="c1", model="m", created=5, include_usage=False, several=True
    )
    stream = writer.write([TokenChunk("a"), TokenChunk("b", index=1), TokenChunk("c")])
    stream += writer.write([TokenChunk("d", index=1)])
    stream += writer.finish(Finished(FinishReason.STOP, None, (FinishReason.LENGTH,)))

    told = [event["choices"][0] for event in events(stream.decode())[:-1]]
    assert [(choice["index"], choice["delta"]) for choice in told] == [
        (0, {"role": "assistant", "content": "a"}),
        (1, {"role": "assistant", "content": "b"}),
        (0, {"content": "c"}),
        (1, {"content": "d"}),
        (0, {}),
        (1, {}),
    ]
    assert [choice["finish_reason"] for choice in told] == [None] * 4 + ["stop", "length"]


def test_an_answer_of_several_that_is_empty_still_tells_its_role() -> None:
    writer = ChunkWriter(
        completion_id="c1", model="m", created=5, include_usage=False, several=True
    )
    stream = writer.write([TokenChunk("a")])
    stream += writer.finish(Finished(FinishReason.STOP, None, (FinishReason.STOP,)))

    assert {"role": "assistant", "content": ""} in deltas(stream)


def test_a_usage_that_was_counted_here_is_marked_as_such() -> None:
    usage = Usage(prompt_tokens=1, completion_tokens=2, estimated=True)
    stream = make_writer(include_usage=True).finish(Finished(FinishReason.STOP, usage))

    assert events(stream.decode())[-2]["usage"]["estimated"] is True
