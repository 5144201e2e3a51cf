"""A fault of the gateway itself: the caller is told, the log has it once, nothing leaks."""

import asyncio
import json
import random
from collections.abc import Callable

import pytest
from starlette.types import Message, Scope
from typing_extensions import override

from orchestrator.errors import RequestCanceledError
from orchestrator.events import Failed, TokenChunk
from orchestrator.gateway.chat import CHAT as API
from orchestrator.gateway.exchange import Exchange
from orchestrator.request import PriorityRequest
from orchestrator.routing.router import Router
from tests.gateway.serving import CHAT, body, events


class RouterThat(Router):
    """Does as it is told with what is submitted."""

    def __init__(self, act: Callable[[PriorityRequest], None]) -> None:
        super().__init__({}, random.Random(0))
        self._act = act
        self.requests: list[PriorityRequest] = []

    @override
    def submit(self, request: PriorityRequest) -> None:
        self.requests.append(request)
        self._act(request)


def explode(_request: PriorityRequest) -> None:
    raise ZeroDivisionError("a secret prompt")


def send_what_no_encoder_takes(request: PriorityRequest) -> None:
    loop = asyncio.get_running_loop()
    request.channel.begin(1)
    request.channel.send(TokenChunk("a"), 1)
    loop.call_soon(request.channel.send, TokenChunk("", 1, {"odd": object()}), 1)


class Caller:
    """One request, called in process."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self._unread = [{"type": "http.request", "body": json.dumps(body(stream=True)).encode()}]
        self.left = asyncio.Event()
        self.scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "headers": [(b"x-request-id", b"bug-1")],
        }

    async def receive(self) -> Message:
        if self._unread:
            return self._unread.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()


async def ask(router: Router, caller: Caller) -> None:
    chat = Exchange(API, router, max_body=1000, access_log=True)
    await chat(caller.scope, caller.receive, caller.send)


async def test_a_fault_before_the_status_is_a_500_of_the_usual_shape(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caller = Caller()

    async with asyncio.timeout(5):
        await ask(RouterThat(explode), caller)

    assert caller.sent[0]["status"] == 500
    assert (b"x-request-id", b"bug-1") in caller.sent[0]["headers"]
    assert json.loads(caller.text)["error"]["code"] == "internal_error"
    assert "bug-1" in caller.text
    assert "secret" not in caller.text
    assert len([record for record in caplog.records if record.exc_info]) == 1


async def test_a_fault_in_mid_stream_is_an_error_event_and_frees_the_request() -> None:
    caller, router = Caller(), RouterThat(send_what_no_encoder_takes)

    async with asyncio.timeout(5):
        await ask(router, caller)

    assert events(caller.text)[-1]["error"]["code"] == "internal_error"
    assert "[DONE]" not in caller.text
    assert caller.sent[-1]["more_body"] is False
    ending = router.requests[0].channel.ending
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, RequestCanceledError)


async def test_a_canceled_handler_ends_its_request() -> None:
    submitted = asyncio.Event()
    router = RouterThat(lambda _request: submitted.set())

    async with asyncio.timeout(5):
        serving = asyncio.create_task(ask(router, Caller()))
        await submitted.wait()
        serving.cancel()
        await asyncio.wait({serving})

    assert serving.cancelled()
    assert router.requests[0].channel.ending is not None


async def test_a_caller_who_is_gone_ends_the_request_without_an_upstream_word() -> None:
    caller = Caller()
    router = RouterThat(lambda _request: caller.left.set())

    async with asyncio.timeout(5):
        await ask(router, caller)

    ending = router.requests[0].channel.ending
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, RequestCanceledError)
