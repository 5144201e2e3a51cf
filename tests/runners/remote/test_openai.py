import asyncio
import contextlib
import gzip
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.errors import (
    ConfigError,
    ContextLengthExceededError,
    OrchestratorError,
    UpstreamAuthenticationError,
    UpstreamConnectError,
    UpstreamOverloadedError,
    UpstreamProtocolError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTruncatedError,
    WorkerHungError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.runners.lease import Step, StepLimits
from orchestrator.runners.remote.openai import factory
from orchestrator.runners.remote.openai_request import OpenAISettings
from tests.fakes.sse_server import (
    CERTIFICATE,
    LAST_CHUNK,
    Close,
    Reset,
    Script,
    Send,
    SseServer,
    Stall,
    Wait,
    answer,
    delta,
    event,
    framed,
    head,
    refusal,
)
from tests.fakes.sse_server import Step as FakeStep
from tests.runners.remote.asking import Answer, a_lease, a_request, asking

pytestmark = pytest.mark.live

DONE = b"data: [DONE]\n\n"
USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
HELLO = (delta("Hel"), delta("lo"), delta(finish="stop"))
POLITE_END = head(framing="connection: close")


async def asked_once(*script: FakeStep, **settings: Any) -> Answer:
    async with SseServer(script) as server, asking(server, **settings) as asker:
        return await asker.ask()


async def test_an_answer_comes_chunk_by_chunk_with_its_usage_and_one_ending():
    found = await asked_once(*answer(delta("", role="assistant"), *HELLO, USAGE, DONE))

    assert [chunk.text for chunk in found.chunks] == ["Hel", "lo"]
    assert found.ending == Finished(FinishReason.STOP, Usage(prompt_tokens=3, completion_tokens=2))
    assert found.error is None


async def test_one_connection_serves_one_request_after_the_other():
    async with SseServer(answer(*HELLO, USAGE, DONE)) as server, asking(server) as asker:
        for _ in range(3):
            assert (await asker.ask()).text == "Hello"

        assert server.connections == 1


@pytest.mark.parametrize("end", [(DONE,), (), (b"data: [DONE]",)], ids=["done", "none", "open"])
@pytest.mark.parametrize("polite", [True, False])
async def test_a_finish_reason_makes_an_answer_complete_with_any_end_marker(
    end: tuple[bytes, ...], polite: bool
):
    closed = [Send(POLITE_END + b"".join(HELLO + end)), Close()]

    found = await asked_once(*(closed if polite else answer(*HELLO, *end)))

    assert found.text == "Hello"
    assert found.ending == Finished(FinishReason.STOP)


async def test_a_provider_that_stays_open_after_its_finish_reason_costs_a_short_time():
    loop = asyncio.get_running_loop()
    started = loop.time()

    found = await asked_once(Send(head() + framed(b"".join(HELLO))), Stall())

    assert found.ending == Finished(FinishReason.STOP)
    assert 1.9 < loop.time() - started < 3


async def test_usage_that_comes_late_is_waited_for():
    late = asyncio.Event()
    script = [Send(head() + framed(b"".join(HELLO))), Wait(late), Send(framed(USAGE + DONE))]
    async with SseServer([*script, Stall()]) as server, asking(server) as asker:
        asked = asyncio.create_task(asker.ask())
        async with asyncio.timeout(5):
            await server.arrived()
            late.set()
            found = await asked

    assert found.ending == Finished(FinishReason.STOP, Usage(prompt_tokens=3, completion_tokens=2))


@pytest.mark.parametrize(
    "end",
    [
        (Send(framed(DONE) + LAST_CHUNK),),
        (Send(LAST_CHUNK),),
        (Close(),),
        (Reset(),),
        (Send(framed(b'data: {"choices":[{"delta":{"con') + LAST_CHUNK),),
    ],
    ids=["done", "clean", "fin", "reset", "half event"],
)
async def test_a_stream_without_a_finish_reason_is_truncated_however_it_ends(
    end: tuple[FakeStep, ...],
):
    found = await asked_once(Send(head() + framed(HELLO[0] + HELLO[1])), *end)

    assert found.text == "Hello"
    assert isinstance(found.error, UpstreamTruncatedError)
    assert "after 2 tokens" in str(found.error)
    assert str(found.error).startswith("acme ")


async def test_a_polite_close_without_a_finish_reason_is_truncated_too():
    found = await asked_once(Send(POLITE_END + HELLO[0] + HELLO[1]), Close())

    assert found.text == "Hello"
    assert isinstance(found.error, UpstreamTruncatedError)


async def test_a_reset_after_the_finish_reason_costs_the_usage_alone():
    found = await asked_once(Send(head() + framed(b"".join(HELLO))), Reset())

    assert found.ending == Finished(FinishReason.STOP)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", UpstreamTruncatedError),
        (b"\n\n: ping\n\n", UpstreamTruncatedError),
        (b"data: {broken\n\n", UpstreamProtocolError),
        (b'data: {"choices": 7}\n\n', UpstreamProtocolError),
        (b"data: \xff\xfe\n\n", UpstreamProtocolError),
        (b"<html><body>Sign in</body></html>", UpstreamProtocolError),
        (b'{"choices": [', UpstreamProtocolError),
        (b'{"error": {"message": "no", "code": "server_overloaded"}}', UpstreamOverloadedError),
        (b'[{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}]', UpstreamRateLimitedError),
    ],
)
async def test_a_200_without_an_answer_in_it_is_never_taken_for_one(
    body: bytes, error: type[OrchestratorError]
):
    found = await asked_once(Send(POLITE_END + body), Close())

    assert type(found.error) is error
    assert found.chunks == []


async def test_a_text_that_is_no_event_stream_is_quoted_in_the_error():
    close = head(content_type="text/plain", framing="connection: close")

    found = await asked_once(Send(close + b"upstream  is\nasleep"), Close())

    assert isinstance(found.error, UpstreamProtocolError)
    assert "text/plain" in str(found.error)
    assert "upstream is asleep" in str(found.error)


async def test_a_whole_answer_in_place_of_a_stream_is_taken_as_it_is():
    message = {"role": "assistant", "content": "Hello", "refusal": None}
    whole = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }

    found = await asked_once(*refusal(200, whole))

    assert found.text == "Hello"
    assert found.ending == Finished(
        FinishReason.LENGTH, Usage(prompt_tokens=3, completion_tokens=2)
    )


@pytest.mark.parametrize("name", [b"", b"event: error\n"])
@pytest.mark.parametrize("before", [(), HELLO[:1], HELLO])
async def test_an_error_within_the_stream_is_one_whatever_stands_around_it(
    name: bytes, before: tuple[bytes, ...]
):
    quota = event({"error": {"message": "quota exceeded", "code": "insufficient_quota"}})

    found = await asked_once(*answer(*before, name + quota, DONE))

    assert isinstance(found.error, UpstreamQuotaExceededError)
    assert found.error.upstream_code == "insufficient_quota"
    assert found.ending is None
    assert len(found.chunks) == min(len(before), 2)


@pytest.mark.parametrize("before", [(), HELLO[:1], HELLO])
@pytest.mark.parametrize("end", [b"\n\n", b"\n", b""], ids=["whole", "no blank line", "no end"])
async def test_an_error_that_is_a_field_of_its_own_is_told_with_its_cause(
    before: tuple[bytes, ...], end: bytes
):
    # so llama.cpp's server told them: nothing to the standard, and the answer was merely cut off
    told = b'error: {"code": 503, "message": "Loading model", "type": "unavailable_error"}'

    found = await asked_once(*answer(*before, told + end))

    assert isinstance(found.error, UpstreamOverloadedError)
    assert "Loading model" in str(found.error)
    assert (found.error.upstream_status, found.ending) == (503, None)
    assert len(found.chunks) == min(len(before), 2)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (refusal(429, {"error": {"message": "slow"}}, "retry-after: 7"), UpstreamRateLimitedError),
        (refusal(401, {"error": {"message": "bad key k-1"}}), UpstreamAuthenticationError),
        (
            refusal(400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
            ContextLengthExceededError,
        ),
        ([Send(head(502, content_type="text/html") + framed(b"<h1>502</h1>")), Reset()],
         UpstreamServerError),
        ([Send(head(503) + framed(b"busy")), Close()], UpstreamOverloadedError),
    ],
)  # fmt: skip
async def test_a_refusal_keeps_its_status_whatever_becomes_of_its_body(
    script: Script, error: type[OrchestratorError]
):
    found = await asked_once(*script, api_key=lambda: "k-1")

    assert found.error is not None
    assert type(found.error) is error
    assert "k-1" not in str(found.error)
    assert found.error.retry_after == (7 if error is UpstreamRateLimitedError else None)


async def test_a_refusal_whose_body_never_ends_is_told_within_seconds():
    found = await asked_once(Send(head(500) + framed(b"still th")), Stall())

    assert isinstance(found.error, UpstreamServerError)
    assert "still th" in str(found.error)


async def test_nobody_listening_is_a_connect_error_with_its_cause():
    async with SseServer([]) as server:
        url = server.url

    async with asking(url) as asker:
        found = await asker.ask()

    assert isinstance(found.error, UpstreamConnectError)
    assert isinstance(found.error.__cause__, httpx.ConnectError)


@pytest.mark.parametrize("step", [Close(), Reset()])
async def test_a_break_before_the_headers_is_told_and_not_tried_again(step: FakeStep):
    async with SseServer([step]) as server, asking(server) as asker:
        found = await asker.ask()

        assert isinstance(found.error, UpstreamTruncatedError)
        assert "before it answered" in str(found.error)
        assert len(server.requests) == 1


@pytest.mark.parametrize("step", [Close(), Reset()])
async def test_a_pooled_connection_that_died_idle_fails_no_request(step: FakeStep):
    good = answer(*HELLO, DONE)
    async with SseServer(good, [step], good) as server, asking(server) as asker:
        await asker.ask()

        found = await asker.ask()

        assert found.text == "Hello"
        assert [request.connection for request in server.requests] == [0, 0, 1]


async def test_a_request_that_must_not_be_sent_twice_is_not():
    async with SseServer(answer(*HELLO, DONE), [Close()]) as server, asking(server) as asker:
        await asker.ask()

        found = await asker.ask(idempotent=False)

        assert isinstance(found.error, UpstreamTruncatedError)
        assert len(server.requests) == 2


@pytest.mark.parametrize("before", [(), (Send(head()),), (Send(head() + framed(HELLO[0])),)])
async def test_cancelling_the_task_closes_the_connection_at_once(before: tuple[FakeStep, ...]):
    async with SseServer([*before, Stall()]) as server, asking(server) as asker, asyncio.timeout(5):
        asked = asyncio.create_task(asker.ask())
        await server.arrived()
        started = asyncio.get_running_loop().time()

        asked.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asked
        await server.requests[0].peer_gone.wait()
        assert asyncio.get_running_loop().time() - started < 0.25


async def test_closing_the_generator_closes_the_connection_at_once():
    script = [Send(head() + framed(HELLO[0])), Stall()]
    async with SseServer(script) as server, asking(server) as asker, asyncio.timeout(5):
        lease = a_lease()
        async with contextlib.aclosing(asker.runner.generate(a_request(), lease)) as events:
            assert await anext(events) == TokenChunk("Hel")

        await server.requests[0].peer_gone.wait()
        lease.disarm()


async def test_the_lease_follows_connection_first_token_and_next_token():
    said = asyncio.Event()
    quiet = [Send(head() + framed(b": ping\n\n" + delta("", role="assistant")))]
    script = [Wait(said), *quiet, Wait(said), Send(framed(HELLO[0])), Stall()]
    async with SseServer(script) as server, asking(server) as asker, asyncio.timeout(5):
        lease = a_lease(StepLimits(connect=1, first_token=2, inter_token=3))
        async with contextlib.aclosing(asker.runner.generate(a_request(), lease)) as events:
            first = asyncio.create_task(anext(events))
            await server.arrived()
            assert lease.step is Step.FIRST_TOKEN

            said.set()
            await first

            assert lease.step is Step.NEXT_TOKEN
        lease.disarm()


async def test_pings_and_roles_and_empty_deltas_are_no_progress():
    loop = asyncio.get_running_loop()
    expired = loop.create_future()
    noise = [Send(framed(b": ping\n\n")), Send(framed(delta(""))), Send(framed(event({})))]
    async with SseServer([Send(head()), *noise, Stall()]) as server, asking(server) as asker:
        lease = type(a_lease())(StepLimits(first_token=0.1), expired.set_result)
        asked = asyncio.create_task(asker.ask(lease))

        async with asyncio.timeout(5):
            await expired

        assert lease.step is Step.FIRST_TOKEN
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_a_hundred_and_fifty_requests_at_once_wait_for_no_connection():
    together = asyncio.Event()
    script = [Wait(together), *answer(*HELLO, DONE)]
    async with SseServer(script) as server, asking(server) as asker, asyncio.timeout(5):
        asked = [asyncio.create_task(asker.ask()) for _ in range(150)]
        await server.arrived(150)

        together.set()

        found = await asyncio.gather(*asked)
        assert {one.text for one in found} == {"Hello"}


async def test_any_transport_of_httpx_can_stand_in_its_place():
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"".join(HELLO) + DONE)

    async with asking("http://acme.test/v1", httpx.MockTransport(handle)) as asker:
        found = await asker.ask()

    assert found.text == "Hello"


async def test_httpx_own_transport_tells_the_lease_and_the_pool_the_same():
    good = answer(*HELLO, DONE)
    async with (
        SseServer(good, [Close()], good) as server,
        asking(server, httpx.AsyncHTTPTransport()) as asker,
    ):
        assert (await asker.ask()).text == "Hello"
        assert (await asker.ask()).text == "Hello"
        assert [request.connection for request in server.requests] == [0, 0, 1]


@pytest.mark.parametrize("failure", [httpx.ReadError(""), httpx.ReadError("x")])
async def test_an_error_of_httpx_without_a_text_still_says_what_happened(
    failure: httpx.RequestError,
):
    def handle(request: httpx.Request) -> httpx.Response:
        raise failure

    async with asking("http://acme.test/v1", httpx.MockTransport(handle)) as asker:
        found = await asker.ask()

    assert isinstance(found.error, UpstreamTruncatedError)
    assert "ReadError" in str(found.error)
    assert found.error.root_cause is failure


async def test_a_provider_behind_its_own_authority_is_trusted_when_told_so():
    async with (
        SseServer(answer(*HELLO, DONE), tls=True) as server,
        asking(server, ca_file=str(CERTIFICATE)) as trusting,
        asking(server, verify=False) as careless,
        asking(server) as careful,
    ):
        assert (await trusting.ask()).text == "Hello"
        assert (await careless.ask()).text == "Hello"
        assert isinstance((await careful.ask()).error, UpstreamConnectError)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_authority_that_cannot_be_read_is_a_fault_of_the_config(
    tmp_path: Path, content: str | None
):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError, match=r"ca\.pem"):
        factory(OpenAISettings(base_url="https://x.test", model="m", ca_file=str(path)))


async def test_the_rest_of_the_protocol_waits_for_what_never_comes():
    async with asking("http://127.0.0.1:1/v1") as asker:
        runner = asker.runner
        await runner.start()
        died = asyncio.ensure_future(runner.closed())
        runner.hung(WorkerHungError("a step"))
        await runner.aclose()
        await asyncio.sleep(0)

        assert not died.done()
        assert repr(runner) == "<ProviderRunner m at 127.0.0.1>"
        assert not runner.abilities.resumable
        died.cancel()
        with pytest.raises(asyncio.CancelledError):
            await died


async def test_an_answer_that_grows_without_end_is_refused():
    flood = [Send(framed(b" " * (1 << 20)))] * 17
    script = [Send(head(content_type="application/json") + framed(b"{")), *flood, Stall()]

    async with SseServer(script) as server, asking(server) as asker:
        found = await asker.ask()
        async with asyncio.timeout(5):
            await server.requests[0].peer_gone.wait()

    assert isinstance(found.error, UpstreamProtocolError)
    assert "larger than" in str(found.error)


async def test_an_event_that_grows_without_end_is_refused():
    flood = [Send(framed(b"x" * (1 << 20)))] * 17

    found = await asked_once(Send(head() + framed(b"data: ")), *flood, Stall())

    assert isinstance(found.error, UpstreamProtocolError)


async def test_a_refusal_of_any_length_is_read_only_in_part():
    flood = [Send(framed(b"x" * (1 << 16)))] * 4

    found = await asked_once(Send(head(500)), *flood, Stall())

    assert isinstance(found.error, UpstreamServerError)


async def test_blank_lines_before_the_first_event_change_nothing():
    blank = [Send(framed(b"\n")), Send(framed(b" ")), Send(framed(b"\r\n"))]

    found = await asked_once(Send(head()), *blank, Send(framed(b"".join(HELLO) + DONE)), Stall())

    assert found.text == "Hello"


async def test_an_unterminated_last_event_without_a_finish_still_brings_its_token():
    found = await asked_once(Send(POLITE_END + HELLO[0].strip()), Close())

    assert found.text == "Hel"
    assert isinstance(found.error, UpstreamTruncatedError)


async def test_cancelling_behind_tls_waits_for_no_farewell():
    script = [Send(head() + framed(HELLO[0])), Stall()]
    async with (
        SseServer(script, tls=True) as server,
        asking(server, ca_file=str(CERTIFICATE)) as asker,
        asyncio.timeout(5),
    ):
        asked = asyncio.create_task(asker.ask())
        await server.arrived()

        asked.cancel()

        with pytest.raises(asyncio.CancelledError):
            await asked
        await server.requests[0].peer_gone.wait()


async def test_closing_in_the_middle_of_a_compressed_body_closes_the_connection():
    body = gzip.compress(b"".join(HELLO))
    script = [Send(head(extra=["content-encoding: gzip"]) + framed(body)), Stall()]
    async with SseServer(script) as server, asking(server) as asker, asyncio.timeout(5):
        lease = a_lease()
        async with contextlib.aclosing(asker.runner.generate(a_request(), lease)) as events:
            assert await anext(events) == TokenChunk("Hel")

        await server.requests[0].peer_gone.wait()
        lease.disarm()


async def test_a_whole_answer_without_a_text_ends_without_a_chunk():
    whole = {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}

    found = await asked_once(*refusal(200, whole))

    assert found.chunks == []
    assert found.ending == Finished(FinishReason.STOP)
