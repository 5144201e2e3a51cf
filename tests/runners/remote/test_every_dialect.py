"""What can go wrong around an answer has the same right outcome in every wire format."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from orchestrator.errors import (
    OrchestratorError,
    UpstreamOverloadedError,
    UpstreamProtocolError,
    UpstreamServerError,
    UpstreamTruncatedError,
)
from orchestrator.events import FinishReason
from orchestrator.runners.remote import ollama, responses
from orchestrator.runners.remote.anthropic_answer import MessageDecoder
from orchestrator.runners.remote.settings import RemoteSettings
from orchestrator.runners.remote.sse import SseDecoder
from tests.fakes.sse_server import Close, Reset, Script, Send, SseServer, Step, delta, event, head
from tests.runners.remote import anthropic_wire, gemini_wire
from tests.runners.remote.asking import Answer, Asker, asking
from tests.runners.remote.cutting import check_every_cut

pytestmark = pytest.mark.live

SECRET = "sk-1234567890"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Dialect:
    """How one provider is asked, and an answer of one word in its format."""

    ask: Callable[..., contextlib.AbstractAsyncContextManager[Asker]]
    text: bytes
    finish: bytes
    """With the finish reason, before any end marker."""
    end: bytes = b""
    """The end marker."""
    error: bytes = event({"error": {"code": 503, "status": "UNAVAILABLE", "message": SECRET}})
    """Says that the provider has too much to do, after its own fashion."""
    broken: bytes = b'data: {"half":\n\n'


def ask_responses(server: SseServer, **given: Any):
    return asking(server, make=responses.factory, **given)


def ask_ollama(server: SseServer, **given: Any):
    url = server.url.removesuffix("/v1")
    return asking(url, kind=RemoteSettings, make=ollama.factory, **given)


def named(kind: str, **members: object) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **members})


def line(**members: object) -> bytes:
    return json.dumps(members).encode() + b"\n"


OVERLOADED = {"type": "overloaded_error", "code": "server_overloaded", "message": SECRET}
DIALECTS: Mapping[str, Dialect] = {
    "chat": Dialect(asking, delta("Hi"), delta(finish="stop"), DONE, event({"error": OVERLOADED})),
    "responses": Dialect(
        ask_responses,
        named("response.output_text.delta", delta="Hi", output_index=0),
        named("response.completed", response={"status": "completed", "output": []}),
        error=named("error", **{name: OVERLOADED[name] for name in ("code", "message")}),
    ),
    "anthropic": Dialect(
        anthropic_wire.asking,
        anthropic_wire.block_start(0, type="text", text="") + anthropic_wire.block_delta("Hi"),
        anthropic_wire.message_delta(),
        anthropic_wire.STOP,
        named("error", error=OVERLOADED),
    ),
    "gemini": Dialect(
        gemini_wire.asking, gemini_wire.sent({"text": "Hi"}), gemini_wire.sent(finish="STOP")
    ),
    "ollama": Dialect(
        ask_ollama,
        line(message={"role": "assistant", "content": "Hi"}, done=False),
        line(message={"content": ""}, done=True, done_reason="stop"),
        error=line(error={"code": 503, "message": f"server busy {SECRET}"}),
        broken=b'{"half":\n',
    ),
}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def closing(body: bytes, status: int = 200, *extra: str, kind: str = "text/event-stream") -> Script:
    start = head(status, framing="connection: close", content_type=kind, extra=extra)
    return [Send(start + body), Close()]


async def asked(dialect: Dialect, script: Script) -> Answer:
    async with SseServer(script) as server, dialect.ask(server, api_key=lambda: SECRET) as asker:
        return await asker.ask()


@every_dialect
@pytest.mark.parametrize(
    ("script", "error"),
    [
        (closing(b"<!doctype html><p>Sign in", kind="text/html"), UpstreamProtocolError),
        (closing(b"\n <!doctype html><p>Sign in"), UpstreamProtocolError),
        (closing(b"<h1>Bad Gateway</h1>", 502, kind="text/html"), UpstreamServerError),
        (closing(b"", 502), UpstreamServerError),
        (closing(b'{"error": {"mess', 500), UpstreamServerError),
        (closing(b"not gzip", 500, "content-encoding: gzip"), UpstreamServerError),
        (closing(b""), UpstreamTruncatedError),
        ([Send(b"HTTP/1.1 204 No Content\r\n\r\n")], UpstreamTruncatedError),
        ([Send(head(302, framing="content-length: 0", extra=["location: /login"]))],
         UpstreamProtocolError),
        (closing(b"[1, 2]", kind="application/json"), UpstreamProtocolError),
        (closing(b'{"error": {"message": "x", "code": "server_overloaded"}}'),
         UpstreamOverloadedError),
    ],
    ids=["html", "html unsaid", "html 502", "empty 502", "half 500", "garbled 500", "empty", "204",
         "redirect", "list", "json error"],
)  # fmt: skip
async def test_what_is_no_answer_has_its_typed_error(
    dialect: Dialect, script: Script, error: type[OrchestratorError]
):
    found = await asked(dialect, script)

    assert type(found.error) is error
    assert (found.chunks, found.ending) == ([], None)


@every_dialect
async def test_half_an_object_is_truncated_or_unreadable_and_no_answer(dialect: Dialect):
    found = await asked(dialect, closing(b'{"id": "x", "cho', kind="application/json"))

    assert isinstance(found.error, UpstreamProtocolError | UpstreamTruncatedError)
    assert found.ending is None


@every_dialect
@pytest.mark.parametrize("delivered", [0, 1])
async def test_an_error_within_a_200_is_classified_and_never_an_end(
    dialect: Dialect, delivered: int
):
    body = dialect.text * delivered + dialect.error + dialect.finish + dialect.end

    found = await asked(dialect, closing(body))

    assert type(found.error) is UpstreamOverloadedError
    assert found.error.retryable
    assert SECRET not in str(found.error)
    assert found.text == "Hi" * delivered
    assert found.ending is None


@every_dialect
async def test_an_event_that_can_not_be_read_is_no_silent_loss(dialect: Dialect):
    found = await asked(dialect, closing(dialect.text + dialect.broken + dialect.finish))

    assert isinstance(found.error, UpstreamProtocolError)
    assert found.text == "Hi"
    assert found.ending is None


@every_dialect
@pytest.mark.parametrize("marker", [True, False])
async def test_a_finish_reason_ends_an_answer_and_another_ones_marker_harms_none(
    dialect: Dialect, marker: bool
):
    foreign = b"" if dialect.ask is ask_ollama else DONE
    body = dialect.text + dialect.finish + (dialect.end or foreign) * marker

    found = await asked(dialect, closing(body))

    assert (found.text, found.error) == ("Hi", None)
    assert found.ending is not None
    assert found.ending.finish_reason is FinishReason.STOP


@every_dialect
@pytest.mark.parametrize(
    "framing",
    ["content-length: 99999", "transfer-encoding: chunked"],
    ids=["short of its length", "without a last chunk"],
)
@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
async def test_a_body_short_of_its_end_is_an_answer_only_with_its_finish_reason(
    dialect: Dialect, framing: str, end: Step
):
    def body(data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data) if "chunked" in framing else data

    half: Sequence[Step] = [Send(head(framing=framing) + body(dialect.text)), end]
    whole: Sequence[Step] = [
        Send(head(framing=framing) + body(dialect.text + dialect.finish + dialect.end)),
        end,
    ]

    assert isinstance((await asked(dialect, half)).error, UpstreamTruncatedError)
    assert (await asked(dialect, whole)).ending is not None


@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
async def test_a_message_cut_at_every_byte_loses_nothing_that_had_come(end: Step):
    recorded = [
        anthropic_wire.block_start(0, type="thinking", thinking="", signature=""),
        anthropic_wire.block_delta("Hm.", 0, "thinking_delta", "thinking"),
        anthropic_wire.block_stop(0),
        anthropic_wire.block_delta(" 你好 😀", 1),
        anthropic_wire.block_start(2, type="tool_use", id="t", name="f", input={}),
        anthropic_wire.json_delta(2, "{}"),
        anthropic_wire.message_delta("tool_use", 8),
        anthropic_wire.STOP,
    ]
    events = [SseDecoder().feed(raw)[0] for raw in recorded]

    await check_every_cut(
        recorded, events, lambda: MessageDecoder("acme"), end, asking=anthropic_wire.asking
    )
