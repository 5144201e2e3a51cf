"""Ollama's chat API: what is read, and that Ollama's own client reads the same."""

import json
from collections.abc import Sequence
from typing import Any

import ollama
import pytest

from orchestrator.errors import (
    OrchestratorError,
    UpstreamNotFoundError,
    UpstreamProtocolError,
    UpstreamServerError,
    UpstreamTruncatedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.gateway.answer import merge_fields
from orchestrator.runners.remote.ollama import OllamaDecoder, factory
from orchestrator.runners.remote.settings import RemoteSettings
from orchestrator.runners.remote.sse import ServerSentEvent
from tests.fakes.sse_server import (
    LAST_CHUNK,
    Close,
    Reset,
    Script,
    Send,
    SseServer,
    Step,
    framed,
    head,
    refusal,
)
from tests.runners.remote.asking import Answer, asking
from tests.runners.remote.cutting import check_every_cut

pytestmark = pytest.mark.live

NDJSON = "application/x-ndjson"
COUNTED = Usage(prompt_tokens=26, completion_tokens=8)


def line(message: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    said: dict[str, Any] = (
        {"message": {"role": "assistant", "content": "", **message}} if message else {}
    )
    return {
        "model": "qwen3",
        "created_at": "2025-10-17T23:14:07.4Z",
        **said,
        "done": False,
        **others,
    }


def last(reason: str | None = "stop", **others: Any) -> dict[str, Any]:
    told = {"done": True, **({"done_reason": reason} if reason else {})}
    counts = {"total_duration": 5, "prompt_eval_count": 26, "eval_count": 8, "eval_duration": 3}
    return line({"content": ""}, **{**told, **counts, **others})


def call(name: str, arguments: object, **others: Any) -> dict[str, Any]:
    return {**others, "function": {"name": name, "arguments": arguments}}


def wire(lines: Sequence[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in lines]


def streamed(lines: Sequence[dict[str, Any]]) -> Script:
    return [
        Send(head(content_type=NDJSON)),
        *(Send(framed(data)) for data in wire(lines)),
        Send(LAST_CHUNK),
    ]


TEXT = [
    line({"thinking": "Hm."}),
    line({"content": "Once"}),
    line({"content": " 你好\n😀"}),
    last(),
]
TOOLS = [
    line({"tool_calls": [call("f", {"a": [1, "é"]}, id="call_9"), call("g", {})]}),
    line({"tool_calls": [call("f", {"a": 2})]}),
    last(),
]
LENGTH = [line({"content": "a"}), last("length")]


async def asked(server: SseServer, **settings: Any) -> Answer:
    url = server.url.removesuffix("/v1")
    async with asking(url, kind=RemoteSettings, make=factory, **settings) as asker:
        return await asker.ask()


async def by_client(server: SseServer) -> list[ollama.ChatResponse]:
    client: Any = ollama.AsyncClient(host=server.url.removesuffix("/v1"))
    try:
        stream = await client.chat(model="m", messages=[], stream=True)
        return [part async for part in stream]
    finally:
        await client._client.aclose()  # it has no public way to close


@pytest.mark.parametrize("lines", [TEXT, TOOLS, LENGTH], ids=["text", "tools", "length"])
async def test_the_official_client_and_the_runner_read_the_same(lines: list[dict[str, Any]]):
    async with SseServer(streamed(lines)) as server:
        parts = await by_client(server)
        found = await asked(server)

    fields = merge_fields([chunk.fields for chunk in found.chunks if chunk.fields])
    ours: Any = fields.get("tool_calls", [])
    theirs = [called for part in parts for called in part.message.tool_calls or []]
    assert found.text == "".join(part.message.content or "" for part in parts)
    assert fields.get("reasoning_content", "") == "".join(
        part.message.thinking or "" for part in parts
    )
    assert [
        (each["function"]["name"], json.loads(each["function"]["arguments"])) for each in ours
    ] == [(each.function.name, each.function.arguments) for each in theirs]
    assert found.ending is not None
    assert found.ending.usage == COUNTED
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (26, 8)


@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
async def test_a_stream_cut_at_any_byte_loses_no_token_and_is_never_an_answer(end: Step):
    lines: list[dict[str, Any]] = [
        {"message": {"thinking": "Hm."}, "done": False},
        {"message": {"content": "Once"}},
        {"message": {"content": " 你好 😀", "tool_calls": [call("f", {"a": "é"}, id="c")]}},
        {"message": {"content": ""}, "done": True, "done_reason": "stop", "eval_count": 8},
        {"message": {"content": "later"}},
    ]
    recorded = wire(lines)

    await check_every_cut(
        recorded,
        [ServerSentEvent(data.strip()) for data in recorded],
        lambda: OllamaDecoder("acme"),
        end,
        content_type=NDJSON,
        kind=RemoteSettings,
        make=factory,
    )


def read(*lines: object) -> tuple[list[TokenChunk], OllamaDecoder]:
    decoder = OllamaDecoder("acme")
    sent = [ServerSentEvent(json.dumps(each).encode()) for each in lines]
    chunks = [chunk for event in sent if (chunk := decoder.take(event)) is not None]
    return chunks, decoder


def test_a_number_that_no_model_can_have_counted_is_left_out():
    _, decoder = read(last(prompt_eval_count=-1, eval_count=8))

    assert decoder.end().usage == Usage(prompt_tokens=0, completion_tokens=8)


def test_a_call_keeps_its_id_or_gets_one_of_its_own():
    chunks, decoder = read(*TOOLS)

    told: list[Any] = [(chunk.fields or {})["tool_calls"] for chunk in chunks]
    calls = [each for pieces in told for each in pieces]
    assert [each["index"] for each in calls] == [0, 1, 2]
    assert calls[0]["id"] == "call_9"
    assert len({each["id"] for each in calls}) == 3
    assert decoder.end() == Finished(FinishReason.TOOL_CALLS, COUNTED)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b'{"a": 1.0,  "b":2}', '{"a": 1.0,  "b":2}'),
        (b'"{\\"a\\": 1}"', '{"a": 1}'),
        (b"null", "{}"),
    ],
)
def test_arguments_are_handed_on_as_they_were_written(sent: bytes, told: str):
    data = b'{"message": {"tool_calls": [{"function": {"name": "f", "arguments": ' + sent + b"}}]}}"

    chunk: Any = OllamaDecoder("acme").take(ServerSentEvent(data))

    assert chunk.fields["tool_calls"][0]["function"]["arguments"] == told


def test_arguments_that_are_no_text_are_a_typed_error():
    # found by the fuzzer: nobody looks at the UTF-8 of what is passed on raw
    call = b'{"function": {"name": "f", "arguments": {"a": "\xc3p"}}}'
    event = ServerSentEvent(b'{"message": {"tool_calls": [' + call + b"]}}")

    with pytest.raises(UpstreamProtocolError, match="no line of an answer"):
        OllamaDecoder("acme").take(event)


@pytest.mark.parametrize(
    ("reason", "meant"),
    [
        ("stop", FinishReason.STOP),
        (None, FinishReason.STOP),
        ("load", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("limit", FinishReason.LENGTH),
    ],
)
def test_every_reason_to_be_done_has_its_finish_reason(reason: str | None, meant: FinishReason):
    _, decoder = read(last(reason), line({"content": "later"}))

    assert decoder.done
    assert decoder.tokens == 0
    assert decoder.end().finish_reason is meant


def test_counts_that_nobody_told_stay_absent():
    _, decoder = read({"done": True})

    assert decoder.end() == Finished(FinishReason.STOP, None)


def test_logprobs_come_in_a_chat_completions_shape():
    logprobs = [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]

    chunks, _ = read(line({"content": "ab"}, logprobs=logprobs))

    assert chunks == [TokenChunk("ab", 2, {"logprobs": {"content": logprobs, "refusal": None}})]


async def test_a_model_that_is_not_there_is_told_as_such():
    absent = refusal(404, {"error": 'model "m" not found, try pulling it first'})

    async with SseServer(absent) as server:
        found = await asked(server)

    assert isinstance(found.error, UpstreamNotFoundError)
    assert "try pulling it first" in str(found.error)


@pytest.mark.parametrize("before", [0, 1, 3])
async def test_an_error_within_the_stream_is_one_whatever_stands_before_it(before: int):
    broken = {"error": "an error was encountered while running the model: CUDA error"}

    async with SseServer(streamed([*TEXT[:before], broken])) as server:
        found = await asked(server)

    assert isinstance(found.error, UpstreamServerError)
    assert "CUDA error" in str(found.error)
    assert len(found.chunks) == before
    assert found.ending is None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", UpstreamTruncatedError),
        (b"\n \n", UpstreamTruncatedError),
        (b"<html>Sign in</html>", UpstreamProtocolError),
        (b"[]", UpstreamProtocolError),
        (b"{broken\n", UpstreamProtocolError),
        (b'{"message": 7}\n', UpstreamProtocolError),
        (b'{"message": {"content": "a"}', UpstreamTruncatedError),
        (b"\xff\xfe\n", UpstreamProtocolError),
    ],
)
async def test_a_200_without_an_answer_in_it_is_never_taken_for_one(
    body: bytes, error: type[OrchestratorError]
):
    script = [Send(head(content_type=NDJSON, framing="connection: close") + body), Close()]

    async with SseServer(script) as server:
        found = await asked(server)

    assert type(found.error) is error
    assert found.chunks == []
