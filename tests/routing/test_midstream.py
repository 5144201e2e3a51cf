"""What follows a break after the caller has read something."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from orchestrator.errors import (
    InvalidRequestError,
    OrchestratorError,
    UpstreamServerError,
    UpstreamTruncatedError,
    WorkerCrashedError,
)
from orchestrator.events import Failed, TokenChunk
from orchestrator.plan import RoutePlan
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from orchestrator.resume import Seam
from orchestrator.routing.route import Midstream, RoutePolicy
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Line, Stage, always
from tests.fakes.systems import assert_at_rest, make_request, read, running

AT_ONCE = RetrySettings(max_attempts=3, initial_backoff=0.001, max_backoff=0.001)
ONCE = RetrySettings(max_attempts=1)


def breaking(gate: asyncio.Event, *, error: OrchestratorError, times: int = 1) -> Stage:
    """Says three words; the first attempts break after the second, once it was read."""

    def script(_request: PriorityRequest, call: int) -> Sequence[Line]:
        if call < times:
            return ["one ", "two ", gate, error]
        return ["one ", "two ", "three", DONE]

    return Stage(script)


def on(policy: Midstream, *deployments: str) -> Mapping[str, RoutePlan]:
    return {"m": RoutePlan(deployments=deployments, policy=RoutePolicy(midstream=policy))}


async def read_past_the_break(
    system: System, request: PriorityRequest, gate: asyncio.Event
) -> tuple[str, object]:
    """Reads what is there before the break, then lets it break, then reads on."""
    system.router.submit(request)
    text = ""
    while "two" not in text:
        chunks, _ = await request.channel.receive()
        text += "".join(chunk.text for chunk in chunks)
    gate.set()
    answer = await read(request)
    return text + answer.text, answer.ending


def failed_with(ending: object) -> OrchestratorError:
    assert isinstance(ending, Failed)
    return ending.error


async def test_a_runner_that_can_resume_goes_on_and_the_seam_is_invisible() -> None:
    gate = asyncio.Event()
    stage = breaking(gate, error=WorkerCrashedError("segfault"))
    stage.resumes = "model"
    async with asyncio.timeout(5), running({"m": stage}, retry=AT_ONCE) as system:
        request = make_request()
        text, ending = await read_past_the_break(system, request, gate)

    assert (text, ending) == ("one two three", DONE)
    assert [(each.seam, each.text, each.tokens) for each in stage.resumed] == [
        (Seam.EXACT, "one two ", 2)
    ]
    assert [record.resumed_after for record in request.attempts] == [None, 2]


async def test_an_answer_that_breaks_twice_goes_on_twice() -> None:
    gate = asyncio.Event()

    def script(_request: PriorityRequest, call: int) -> Sequence[Line]:
        ends: list[Sequence[Line]] = [
            ["one ", "two ", gate, UpstreamTruncatedError("cut")],
            ["one ", "two ", "three ", UpstreamTruncatedError("cut again")],
        ]
        return ends[call] if call < len(ends) else ["one ", "two ", "three ", "four", DONE]

    stage = Stage(script, resumes="model")
    async with asyncio.timeout(5), running({"m": stage}, retry=AT_ONCE) as system:
        text, ending = await read_past_the_break(system, make_request(), gate)

        assert (text, ending) == ("one two three four", DONE)
        assert_at_rest(system, 8)
    assert [each.tokens for each in stage.resumed] == [2, 3]


async def test_a_runner_that_cannot_resume_ends_with_the_one_error() -> None:
    gate = asyncio.Event()
    stage = breaking(gate, error=UpstreamTruncatedError("cut"))
    async with asyncio.timeout(5), running({"m": stage}, retry=AT_ONCE) as system:
        text, ending = await read_past_the_break(system, make_request(), gate)

    assert text == "one two "
    assert "cut" in str(failed_with(ending))
    assert len(stage.calls) == 1


@pytest.mark.parametrize(
    ("policy", "more"),
    [("error", {}), ("resume", {"idempotent": False})],
    ids=["the route forbids it", "a request that is not idempotent"],
)
async def test_nothing_goes_on_where_it_is_not_allowed_to(
    policy: Midstream, more: dict[str, int]
) -> None:
    gate = asyncio.Event()
    stage = breaking(gate, error=UpstreamTruncatedError("cut"))
    stage.resumes = "model"
    route = {"r": on(policy, "m")["m"]}
    async with asyncio.timeout(5), running({"m": stage}, route, retry=AT_ONCE) as system:
        request = make_request("r", idempotent="idempotent" not in more)
        _, ending = await read_past_the_break(system, request, gate)

    assert "cut" in str(failed_with(ending))
    assert len(stage.calls) == 1


async def test_a_twin_with_the_same_model_goes_on_exactly_and_another_model_does_not() -> None:
    gate = asyncio.Event()
    stages = {
        "a": breaking(gate, error=WorkerCrashedError("segfault")),
        "other": always("one ", "two ", "other", DONE),
        "twin": always("one ", "two ", "twin", DONE),
    }
    stages["a"].resumes = stages["twin"].resumes = "model"
    stages["other"].resumes = "another model"
    async with (
        asyncio.timeout(5),
        running(stages, on("resume", *stages), retry=ONCE) as system,
    ):
        text, _ = await read_past_the_break(system, make_request(), gate)

    assert text == "one two twin"
    assert stages["other"].calls == []


async def test_resuming_is_bounded_and_ends_with_what_broke_it_first() -> None:
    gate = asyncio.Event()
    stage = breaking(gate, error=WorkerCrashedError("segfault"), times=100)
    stage.resumes = "model"
    async with asyncio.timeout(5), running({"m": stage}, retry=AT_ONCE) as system:
        text, ending = await read_past_the_break(system, make_request(), gate)

    assert text == "one two "
    assert "segfault" in str(failed_with(ending))
    assert len(stage.calls) == 3


async def test_continue_gives_the_text_so_far_to_a_deployment_with_prefill() -> None:
    gate = asyncio.Event()
    stages = {
        "a": breaking(gate, error=UpstreamTruncatedError("cut")),
        "b": always("never asked", DONE),
        "c": always("and three", DONE),
    }
    stages["c"].prefill = True
    async with (
        asyncio.timeout(5),
        running(stages, on("continue", *stages), retry=ONCE) as system,
    ):
        request = make_request()
        text, ending = await read_past_the_break(system, request, gate)

    assert (text, ending) == ("one two and three", DONE)
    assert [(each.seam, each.text) for each in stages["c"].resumed] == [(Seam.PREFILL, "one two ")]
    assert [record.decision for record in request.attempts] == ["resumed (prefill) at c", ""]
    assert stages["b"].calls == []


async def test_a_continuation_that_is_refused_keeps_the_real_error() -> None:
    gate = asyncio.Event()
    stages = {
        "a": breaking(gate, error=UpstreamServerError("the real error")),
        "b": always(InvalidRequestError("no prefill here")),
    }
    stages["b"].prefill = True
    async with (
        asyncio.timeout(5),
        running(stages, on("continue", *stages), retry=ONCE) as system,
    ):
        request = make_request()
        _, ending = await read_past_the_break(system, request, gate)

    error = failed_with(ending)
    assert "the real error" in str(error)
    assert "no prefill here" in error.__notes__[0]
    assert [record.deployment for record in request.attempts] == ["a", "b"]


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [{"type": "function"}]},
        {"functions": [{"name": "f"}]},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
    ],
    ids=lambda extra: next(iter(extra)),
)
async def test_what_is_not_text_alone_is_never_continued(extra: Mapping[str, object]) -> None:
    gate = asyncio.Event()
    stages = {
        "a": breaking(gate, error=UpstreamTruncatedError("cut")),
        "b": always("three", DONE),
    }
    stages["b"].prefill = True
    async with (
        asyncio.timeout(5),
        running(stages, on("continue", *stages), retry=ONCE) as system,
    ):
        _, ending = await read_past_the_break(system, make_request(extra=extra), gate)

    assert "cut" in str(failed_with(ending))
    assert stages["b"].calls == []


async def test_by_default_no_text_is_continued_by_another_model() -> None:
    gate = asyncio.Event()
    stages = {
        "a": breaking(gate, error=UpstreamTruncatedError("cut")),
        "b": always("three", DONE),
    }
    stages["b"].prefill = True
    async with asyncio.timeout(5), running(stages, on("resume", *stages), retry=ONCE) as system:
        _, ending = await read_past_the_break(system, make_request(), gate)

    assert "cut" in str(failed_with(ending))
    assert stages["b"].calls == []


async def test_a_straggler_of_the_broken_attempt_writes_nothing_behind_the_seam() -> None:
    request = make_request()
    channel = request.channel
    channel.kept = []
    channel.begin(1)
    channel.send(TokenChunk("one"), 1)
    channel.take()

    kept = channel.suspend()
    late = channel.send(TokenChunk("late"), 1)
    channel.begin(2)
    channel.send(TokenChunk("two"), 2)

    assert [chunk.text for chunk in kept] == ["one"]
    assert not late
    assert [chunk.text for chunk in channel.kept] == ["one", "two"]
