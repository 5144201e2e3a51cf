"""Chat completions over a socket: what comes back, when, and what a failure looks like."""

import asyncio
import json

import pytest

from orchestrator.actors.supervisor import Supervision
from orchestrator.errors import (
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTruncatedError,
    WorkerCrashedError,
)
from orchestrator.events import Finished, FinishReason, Usage
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from tests.fakes.scripted import DONE, Line, Stage
from tests.gateway.serving import CHAT, Served, body, events, plays, serving, text_of, until

ONCE = RetrySettings(max_attempts=1)


async def test_a_stream_has_chunks_a_finish_reason_and_done() -> None:
    stage = plays("Hel", "lo", DONE)

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        response = await served.ask(stream=True)

    told = events(response.text)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert text_of(response.text) == "Hello"
    assert told[-1] == "[DONE]"
    reasons = [event["choices"][0]["finish_reason"] for event in told[:-1] if event["choices"]]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}


async def test_a_whole_answer_comes_with_its_usage() -> None:
    finished = Finished(FinishReason.LENGTH, Usage(prompt_tokens=7, completion_tokens=2))
    stage = plays("Hel", "lo", finished)

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        answer = (await served.ask()).json()

    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 9


async def test_no_status_is_sent_before_the_first_token() -> None:
    hold = asyncio.Event()
    stage = plays(hold, UpstreamRateLimitedError("slow down", retry_after=2.2))

    async with asyncio.timeout(5), serving({"m": stage}, retry=ONCE) as served:
        asking = asyncio.create_task(served.ask(stream=True))
        await until(lambda: bool(stage.calls))
        hold.set()
        response = await asking

    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("upstream_rate_limited", "rate_limit_error")


async def test_a_failure_in_mid_stream_is_one_event_and_nothing_after_it() -> None:
    read = asyncio.Event()
    stage = plays("a", read, UpstreamTruncatedError("cut after 1 token"))
    text = ""

    async with (
        asyncio.timeout(5),
        serving({"m": stage}, retry=ONCE) as served,
        served.client.stream("POST", CHAT, json=body(stream=True)) as response,
    ):
        async for piece in response.aiter_text():
            text += piece
            read.set()

    told = events(text)
    assert response.status_code == 200
    assert told[-1]["error"]["code"] == "upstream_truncated"
    assert "[DONE]" not in text
    assert all(event["choices"][0]["finish_reason"] is None for event in told[:-1])


async def test_chunks_that_came_before_the_failure_are_not_thrown_away() -> None:
    stage = plays("a", "b", WorkerCrashedError("the host died"))

    async with asyncio.timeout(5), serving({"m": stage}, retry=ONCE) as served:
        response = await served.ask(stream=True)

    if response.status_code == 200:
        assert text_of(response.text) == "ab"
    assert "worker_crashed" in response.text


async def test_an_error_event_names_the_root_cause() -> None:
    read = asyncio.Event()
    crash = WorkerCrashedError("worker m/0.1 died")
    crash.__cause__ = WorkerCrashedError("the model host was killed by signal 9")
    stage = plays("a", read, crash)
    text = ""

    async with (
        asyncio.timeout(5),
        serving({"m": stage}, retry=ONCE) as served,
        served.client.stream("POST", CHAT, json=body(stream=True)) as response,
    ):
        async for piece in response.aiter_text():
            text += piece
            read.set()

    assert "killed by signal 9" in events(text)[-1]["error"]["message"]


async def test_usage_is_told_in_a_last_chunk_if_asked_for() -> None:
    finished = Finished(FinishReason.STOP, Usage(prompt_tokens=3, completion_tokens=1))
    stage = plays("a", finished)

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        response = await served.ask(stream=True, stream_options={"include_usage": True})

    *chunks, usage, done = events(response.text)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_a_request_that_fails_over_before_the_first_token_succeeds() -> None:
    broken = plays(UpstreamServerError("down"))
    sound = plays("ok", DONE)

    async with (
        asyncio.timeout(5),
        serving({"a": broken, "b": sound}, {"r": ["a", "b"]}, retry=ONCE) as served,
    ):
        response = await served.ask(model="r", stream=True)

    assert text_of(response.text) == "ok"


async def test_a_given_request_id_comes_back_and_a_bad_one_is_replaced() -> None:
    stage = plays("a", DONE)

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        kept = await served.client.post(CHAT, json=body(), headers={"x-request-id": "my-id.1"})
        made = await served.client.post(CHAT, json=body(), headers={"x-request-id": "no id;"})

    assert kept.headers["x-request-id"] == "my-id.1"
    assert kept.json()["id"] == "chatcmpl-my-id.1"
    assert made.headers["x-request-id"].startswith("req_")


async def test_a_deadline_of_the_header_ends_the_request() -> None:
    stage = plays(asyncio.Event())

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        response = await served.client.post(
            CHAT, json=body(deadline=60), headers={"x-request-timeout": "0.05"}
        )

    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"


async def test_an_unknown_field_reaches_the_runner_untouched() -> None:
    seen: list[object] = []

    def script(request: PriorityRequest, _call: int) -> list[Line]:
        seen.append(dict(request.extra))
        return ["a", DONE]

    async with asyncio.timeout(5), serving({"m": Stage(script)}) as served:
        await served.ask(user="u1", tools=[{"type": "function"}], n=1, temperature=0.5)

    assert seen == [{"user": "u1", "tools": [{"type": "function"}]}]


async def test_a_full_queue_is_429_and_a_poisoned_engine_503_with_its_cause() -> None:
    hold = asyncio.Event()
    stage = plays(hold, "a", DONE, local=True)

    async with (
        asyncio.timeout(5),
        serving(
            {"m": stage},
            slots=1,
            queue_capacity=1,
            supervision=Supervision(max_restarts=1, initial_backoff=0.001),
        ) as served,
    ):
        running = asyncio.create_task(served.ask())
        await until(lambda: bool(stage.calls))
        waiting = asyncio.create_task(served.ask())
        await until(lambda: bool(served.system.health()[0].queued))
        full = await served.ask()
        stage.kill_host(WorkerCrashedError("out of memory"))
        await until(lambda: bool(stage.deaths))
        stage.kill_host(WorkerCrashedError("out of memory again"))
        died = await asyncio.gather(running, waiting)
        refused = await served.ask()

    assert full.status_code == 429
    assert full.json()["error"]["code"] == "queue_full"
    assert {response.status_code for response in died} <= {502, 503}
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert "out of memory" in refused.json()["error"]["message"]


async def test_while_draining_new_requests_get_503_and_the_connection_closes() -> None:
    stage = plays("a", DONE)

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        served.gateway.drain()
        response = await served.ask()
        ready = await served.client.get("/readyz")
        live = await served.client.get("/livez")

    assert response.status_code == 503
    assert response.headers["connection"] == "close"
    assert response.json()["error"]["code"] == "draining"
    assert ready.status_code == 503
    assert live.status_code == 200
    assert stage.calls == []


@pytest.mark.parametrize("stream", [True, False])
async def test_many_requests_at_once_each_get_their_own_answer(stream: bool) -> None:
    stage = Stage(lambda request, _: [request.messages[0].text, DONE])

    async def ask(served: Served, number: int) -> bool:
        messages = [{"role": "user", "content": f"<{number}>"}]
        response = await served.ask(messages=messages, stream=stream)
        if stream:
            return text_of(response.text) == f"<{number}>"
        return response.json()["choices"][0]["message"]["content"] == f"<{number}>"

    async with asyncio.timeout(20), serving({"m": stage}, slots=4) as served:
        right = await asyncio.gather(*(ask(served, number) for number in range(64)))

    assert all(right)


async def test_all_chunks_that_are_ready_go_out_in_one_write() -> None:
    stage = plays(*"abcdefgh", DONE)
    writes: list[bytes] = []

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        payload = json.dumps(body(stream=True)).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(payload), payload)
        )
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readline() or b"0", 16):
            writes.append(await reader.readexactly(size))
            await reader.readline()
        writer.close()
        await writer.wait_closed()

    assert text_of(b"".join(writes).decode()) == "abcdefgh"
    assert len(writes) < 8


async def test_another_method_on_the_chat_path_is_refused() -> None:
    async with asyncio.timeout(5), serving({"m": plays(DONE)}) as served:
        response = await served.client.get(CHAT)

    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"
