"""What routing promises, seen by providers behind real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping

import pytest

from orchestrator.errors import UpstreamTruncatedError
from orchestrator.events import Failed, Finished, Usage
from orchestrator.plan import DeploymentPlan, RoutePlan
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from orchestrator.routing.hedging import HedgeSettings
from orchestrator.routing.route import RoutePolicy
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.lease import StepLimits
from orchestrator.wiring import System
from tests.fakes.sse_server import (
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
from tests.fakes.systems import ask, assert_at_rest, make_request, read
from tests.runners.remote import anthropic_wire, gemini_wire
from tests.runners.remote.asking import asking
from tests.runners.remote.test_every_dialect import DIALECTS, line, named

pytestmark = pytest.mark.live

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
HELLO = answer(delta("Hi"), delta(finish="stop"), DONE)
ONCE = RetrySettings(max_attempts=1)
NOTHING_YET: Mapping[str, bytes] = {
    "chat": COMMENT + delta("", role="assistant"),
    "responses": COMMENT
    + named("response.created", response={"status": "in_progress", "output": []})
    + named("response.in_progress", response={"status": "in_progress", "output": []}),
    "anthropic": COMMENT + anthropic_wire.message_start() + named("ping"),
    "gemini": COMMENT + gemini_wire.sent({"text": ""}),
    "ollama": line(message={"role": "assistant", "content": ""}, done=False),
}
"""What a provider sends before its first token, in every wire format."""


@contextlib.asynccontextmanager
async def routed(
    factories: Mapping[str, SlotFactory], policy: RoutePolicy | None = None
) -> AsyncGenerator[System]:
    """A system whose route `m` has these deployments, in their order."""
    plans = [
        DeploymentPlan(
            name=name,
            factory=factory,
            slots=2,
            retry=ONCE,
            steps=StepLimits(first_token=0.2),
            prefill=True,
        )
        for name, factory in factories.items()
    ]
    policy = policy or RoutePolicy()
    system = System(plans, {"m": RoutePlan(deployments=tuple(factories), policy=policy)})
    system.start()
    try:
        await system.settled()
        yield system
    finally:
        await system.aclose()


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_provider_that_only_says_that_it_lives_is_left_for_the_next_one(name: str) -> None:
    silent: Script = [Send(head()), Send(framed(NOTHING_YET[name])), Stall()]

    async with (
        asyncio.timeout(5),
        SseServer(silent) as first,
        SseServer(HELLO) as second,
        DIALECTS[name].ask(first) as slow,
        asking(second) as fast,
        routed({"a": slow.factory, "b": fast.factory}) as system,
    ):
        request = make_request()
        answered = await ask(system, request)
        await first.requests[0].peer_gone.wait()

    assert answered.text == "Hi"
    assert isinstance(answered.ending, Finished)
    assert [record.outcome for record in request.attempts] == ["gave_up", "done"]
    assert "first token" in (request.attempts[0].error or "")


async def test_the_loser_of_a_hedge_is_hung_up_on_and_its_tokens_are_nobodys() -> None:
    hold = asyncio.Event()
    late: Script = [Send(head()), Wait(hold), Send(framed(delta("late"))), Stall()]
    hedge = RoutePolicy(hedge=HedgeSettings(seconds=0.01, share=1.0))

    async with (
        asyncio.timeout(5),
        SseServer(late) as first,
        SseServer(HELLO) as second,
        asking(first) as slow,
        asking(second) as fast,
        routed({"a": slow.factory, "b": fast.factory}, hedge) as system,
    ):
        request = make_request()
        answered = await ask(system, request)
        await first.requests[0].peer_gone.wait()
        hold.set()
        again = await ask(system, make_request("b"))
        assert_at_rest(system, 2)

    assert (answered.text, again.text) == ("Hi", "Hi")
    assert isinstance(answered.ending, Finished)
    assert (len(first.requests), len(second.requests)) == (1, 2)
    assert sorted(record.outcome for record in request.attempts) == ["canceled", "done"]


def torn(gate: asyncio.Event) -> Script:
    """Two words, and the end of the connection once they were read."""
    return [
        Send(head() + framed(delta("one ")) + framed(delta("two "))),
        Wait(gate),
        Reset(),
    ]


async def read_the_beginning(system: System, request: PriorityRequest) -> str:
    system.router.submit(request)
    text = ""
    while text != "one two ":
        chunks, _ = await request.channel.receive()
        text += "".join(chunk.text for chunk in chunks)
    return text


async def test_the_rest_of_a_torn_answer_is_asked_for_as_the_models_own_turn() -> None:
    gate = asyncio.Event()
    usage = {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
    rest = answer(
        delta("three"), delta(finish="stop"), event({"choices": [], "usage": usage}), DONE
    )

    async with (
        asyncio.timeout(5),
        SseServer(torn(gate)) as first,
        SseServer(rest) as second,
        asking(first) as breaking,
        asking(second) as whole,
        routed(
            {"a": breaking.factory, "b": whole.factory}, RoutePolicy(midstream="continue")
        ) as system,
    ):
        request = make_request(max_tokens=10)
        begun = await read_the_beginning(system, request)
        gate.set()
        answered = await read(request)

    asked = second.requests[0].json
    assert asked["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "one two "},
    ]
    assert 8 in {asked.get("max_tokens"), asked.get("max_completion_tokens")}
    assert begun + answered.text == "one two three"
    assert isinstance(answered.ending, Finished)
    assert answered.ending.usage == Usage(prompt_tokens=10, completion_tokens=3)


async def test_a_provider_that_refuses_to_go_on_does_not_hide_what_tore_the_answer() -> None:
    gate = asyncio.Event()
    no = refusal(400, {"error": {"message": "the last message must be the user's", "code": "no"}})

    async with (
        asyncio.timeout(5),
        SseServer(torn(gate)) as first,
        SseServer(no) as second,
        asking(first) as breaking,
        asking(second) as refusing,
        routed(
            {"a": breaking.factory, "b": refusing.factory}, RoutePolicy(midstream="continue")
        ) as system,
    ):
        request = make_request()
        begun = await read_the_beginning(system, request)
        gate.set()
        answered = await read(request)

    assert (begun, answered.text) == ("one two ", "")
    assert isinstance(answered.ending, Failed)
    assert isinstance(answered.ending.error, UpstreamTruncatedError)
    assert "the last message must be" in (request.attempts[1].error or "")
    assert [record.decision for record in request.attempts] == ["resumed (prefill) at b", "ended"]
