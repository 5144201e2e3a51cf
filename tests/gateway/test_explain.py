"""`x-orchestrator-explain`: what became of a request, for a caller who asks."""

import asyncio
import json
from typing import Any

import pytest

from orchestrator.config import parse
from orchestrator.errors import UpstreamRateLimitedError, UpstreamServerError
from orchestrator.gateway.explain import ATTEMPTS, EXPLAINED, MAX_CHARACTERS, attempts_of
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import AttemptRecord
from tests.fakes.scripted import DONE
from tests.fakes.systems import make_request
from tests.gateway.serving import CHAT, Served, body, plays, serving

SMALL = "deployments: {m: {runner: {kind: torch, model: m}}}\n"
ROUTE = {"r": ["a", "b"]}
ONCE = RetrySettings(max_attempts=1)
ASKED = {"x-orchestrator-explain": "1"}
COMMENT = ": x-orchestrator-attempts "


async def ask(served: Served, path: str = CHAT, **members: object):
    return await served.client.post(path, json=body(model="r", **members), headers=ASKED)


def told(text: str) -> list[dict[str, Any]]:  # Any: JSON
    return [
        {name: value for name, value in one.items() if not name.endswith("_ms")}
        for one in json.loads(text)
    ]


def comment_of(stream: str) -> str:
    (line,) = [line for line in stream.split("\n") if line.startswith(COMMENT)]
    return line.removeprefix(COMMENT)


FAILED = {
    "deployment": "a",
    "slot": "a/0.1",
    "breaker": "closed",
    "outcome": "gave_up",
    "error": "UpstreamServerError: 500",
    "decision": "next: b",
}
SERVED = {"deployment": "b", "slot": "b/0.1", "breaker": "closed", "outcome": "done"}


async def test_an_answer_that_comes_whole_tells_all_its_attempts_in_a_header() -> None:
    stages = {"a": plays(UpstreamServerError("500")), "b": plays("x", DONE)}
    async with asyncio.timeout(5), serving(stages, ROUTE, retry=ONCE, slots=1) as served:
        answer = await ask(served)

    assert answer.status_code == 200
    assert answer.headers["x-orchestrator-deployment"] == "b"
    attempts = answer.headers["x-orchestrator-attempts"]
    assert told(attempts) == [FAILED, SERVED]
    assert {"queued_ms", "first_token_ms", "total_ms"} <= set(json.loads(attempts)[1])


@pytest.mark.parametrize("window", [0.0, 5.0])
async def test_a_stream_tells_the_rest_in_a_comment_before_its_end(window: float) -> None:
    gate = asyncio.Event()
    stages = {"a": plays(UpstreamServerError("500")), "b": plays("x", gate, "y", DONE)}
    async with (
        asyncio.timeout(5),
        serving(stages, ROUTE, retry=ONCE, slots=1, resume_window=window) as served,
        served.client.stream(
            "POST", CHAT, json=body(model="r", stream=True), headers=ASKED
        ) as stream,
    ):
        gate.set()
        text = (await stream.aread()).decode()
        head = stream.headers["x-orchestrator-attempts"]

    assert told(head) == [FAILED, SERVED | {"outcome": "running"}]
    assert told(comment_of(text)) == [FAILED, SERVED]
    assert text.index(COMMENT) < text.index("data: [DONE]")


async def test_a_stream_that_breaks_off_tells_its_attempts_before_the_error() -> None:
    stages = {"a": plays("x", UpstreamServerError("500")), "b": plays("x", DONE)}
    async with asyncio.timeout(5), serving(stages, ROUTE, slots=1) as served:
        answer = await ask(served, stream=True)

    (attempt,) = told(comment_of(answer.text))
    assert (attempt["outcome"], attempt["decision"]) == ("interrupted", "ended")
    assert answer.text.index(COMMENT) < answer.text.index('"error"')


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_tells_its_attempts_and_who_refused(stream: bool) -> None:
    limited = plays(UpstreamRateLimitedError("429", retry_after=3600))
    async with asyncio.timeout(5), serving({"a": limited, "b": limited}, ROUTE) as served:
        answer = await ask(served, stream=stream)

    assert answer.status_code == 429
    attempts = told(answer.headers["x-orchestrator-attempts"])
    assert [one["deployment"] for one in attempts] == ["a", "b"]
    assert attempts[1]["decision"] == "ended"
    assert "x-orchestrator-deployment" not in answer.headers


@pytest.mark.parametrize("headers", [{}, {"x-orchestrator-explain": "0"}])
async def test_nobody_is_told_who_did_not_ask(headers: dict[str, str]) -> None:
    async with asyncio.timeout(5), serving({"m": plays("x", DONE)}) as served:
        for stream in (False, True):
            answer = await served.client.post(CHAT, json=body(stream=stream), headers=headers)
            assert not [name for name in answer.headers if name.startswith("x-orchestrator")]
            assert "x-orchestrator" not in answer.text


@pytest.mark.parametrize(
    ("setting", "headers", "told_it"),
    [
        ("always", {}, True),
        ("always", {"x-orchestrator-explain": "0"}, True),
        ("never", ASKED, False),
        ("on_request", ASKED, True),
        ("on_request", {}, False),
    ],
)
async def test_a_server_may_tell_everybody_or_nobody_the_attempts(
    setting: str, headers: dict[str, str], told_it: bool
) -> None:
    explained = EXPLAINED[parse(f"{SMALL}server: {{explain: {setting}}}").server.explain]
    stages = {"m": plays("x", DONE)}
    async with asyncio.timeout(5), serving(stages, explained=explained) as served:
        whole = await served.client.post(CHAT, json=body(), headers=headers)
        stream = await served.client.post(CHAT, json=body(stream=True), headers=headers)
        refused = await served.client.post(CHAT, json=body(model="no"), headers=headers)

    assert [ATTEMPTS in answer.headers for answer in (whole, stream)] == [told_it] * 2
    assert (COMMENT in stream.text) is told_it
    assert refused.status_code == 404


def test_what_is_told_of_many_attempts_fits_a_header() -> None:
    request = make_request()
    for number in range(100):
        record = AttemptRecord(
            deployment="a", worker="a/0.1", epoch=number, started_at=1.0, queued_for=0.0
        )
        record.error = "é\r\n" * 200
        request.attempts.append(record)

    text = attempts_of(request)
    found = json.loads(text)

    assert len(text) <= MAX_CHARACTERS + 200
    assert text.isascii()
    assert text.isprintable()
    assert found[0]["left_out"] + len(found) - 1 == 100
