"""Limits as they are configured, in front of a provider on a real socket."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.config import parse
from orchestrator.errors import OrchestratorError, RequestTooLargeError
from orchestrator.sdk import Orchestrator
from tests.fakes.sse_server import LAST_CHUNK, Script, Send, SseServer, delta, framed, head, refusal

DONE = b"data: [DONE]\n\n"


def answer(*headers: str, prompt: int = 1, completion: int = 1) -> Script:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    last = delta(finish="stop").replace(b"}\n\n", b',"usage":%s}\n\n' % _json(usage))
    events = (delta("yes"), last, DONE)
    return [Send(head(extra=headers)), *(Send(framed(event)) for event in events), Send(LAST_CHUNK)]


def _json(usage: dict[str, int]) -> bytes:
    return str(usage).replace("'", '"').encode()


def configured(provider: SseServer, folder: Path, limits: str, keys: str = "api_key: k"):
    return parse(
        f"""
        deployments:
          d:
            runner: {{kind: openai, model: m, base_url: '{provider.url}', {keys}}}
            slots: 50
            limits: {limits}
        """,
        folder=folder,
    )


async def served(sdk: Orchestrator, count: int, *, deadline: float, max_tokens: int = 8) -> int:
    """How many of so many requests at once are answered in time."""

    async def ask() -> bool:
        try:
            await sdk.submit("x" * 16, "d", deadline=deadline, max_tokens=max_tokens)
        except OrchestratorError:
            return False
        return True

    return sum(await asyncio.gather(*(ask() for _ in range(count))))


@pytest.mark.parametrize(
    "headers",
    [
        (
            "x-ratelimit-limit-requests: 60",
            "x-ratelimit-remaining-requests: 3",
            "x-ratelimit-reset-requests: 57s",
        ),
        (
            "anthropic-ratelimit-requests-limit: 60",
            "anthropic-ratelimit-requests-remaining: 3",
            "anthropic-ratelimit-requests-reset: 2031-01-01T00:00:57Z",
            "date: Wed, 01 Jan 2031 00:00:00 GMT",
        ),
        (
            "x-ratelimit-limit-tokens: 1200",
            "x-ratelimit-remaining-tokens: 36",
            "x-ratelimit-reset-tokens: 58.2s",
        ),
    ],
)
async def test_fifty_at_once_send_no_more_than_the_headers_said_is_left(
    tmp_path: Path, headers: tuple[str, ...]
) -> None:
    """A request of 4 tokens may be answered with 8: of 36 tokens three are possible."""
    async with asyncio.timeout(5), SseServer(answer(*headers)) as provider:
        async with Orchestrator(configured(provider, tmp_path, "{learn: true}")) as sdk:
            await served(sdk, 1, deadline=2.0)
            provider.scripts = [answer()]
            await served(sdk, 50, deadline=0.5)

        assert len(provider.requests) == 1 + 3


@pytest.mark.parametrize(
    ("limits", "possible"),
    [
        # 40 are reserved, 10 are used: the seventh still fits, for 6 x 10 + 40 = 100
        ("{output_tokens_per_minute: 100}", 7),
        # 4 are reserved, 3 are used: 2 x 3 + 4 = 10
        ("{input_tokens_per_minute: 10}", 3),
        # 44 are reserved, 13 are used: 2 x 13 + 44 = 70
        ("{tokens_per_minute: 70}", 3),
    ],
)
async def test_what_was_reserved_and_not_used_is_there_for_the_next_request(
    tmp_path: Path, limits: str, possible: int
) -> None:
    async with asyncio.timeout(5), SseServer(answer(prompt=3, completion=10)) as provider:
        async with Orchestrator(configured(provider, tmp_path, limits)) as sdk:
            answered = [
                await served(sdk, 1, deadline=0.4, max_tokens=40) for _ in range(possible + 1)
            ]

        assert answered == [1] * possible + [0]
        assert len(provider.requests) == possible


async def test_a_request_above_its_limit_is_refused_with_the_number(tmp_path: Path) -> None:
    async with asyncio.timeout(5), SseServer(answer()) as provider:
        config = configured(provider, tmp_path, "{output_tokens_per_minute: 100}")
        async with Orchestrator(config) as sdk:
            with pytest.raises(RequestTooLargeError, match="about 101 output tokens, more than"):
                await sdk.submit("hi", "d", max_tokens=101)

        assert provider.requests == []


async def test_of_two_keys_the_one_that_is_limited_is_passed_over(tmp_path: Path) -> None:
    limited = refusal(429, {"error": {"message": "slow down"}}, "retry-after: 30")
    keys = "api_keys: [first, second]"
    async with asyncio.timeout(5), SseServer(limited, answer()) as provider:
        async with Orchestrator(configured(provider, tmp_path, "{}", keys)) as sdk:
            answered = await served(sdk, 1, deadline=4.0) + await served(sdk, 5, deadline=4.0)
        seen = Counter(request.headers["authorization"] for request in provider.requests)

    assert answered == 6
    assert seen == {"Bearer first": 1, "Bearer second": 6}
