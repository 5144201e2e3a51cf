"""The stub, the proxy before it, and every way in which they spoil an answer."""

import asyncio
import json

import httpx
import pytest

from orchestrator.chaos.provider.proxy import Proxy
from orchestrator.chaos.provider.stub import Stub
from orchestrator.chaos.provider.toxics import CUTS, Active, Harm, How, Toxic
from orchestrator.chaos.stub.words import Listener, prompt

pytestmark = pytest.mark.live

TOKENS = 6


def call(*, stream: bool = True) -> dict[str, object]:
    message = {"role": "user", "content": prompt(TOKENS, "r1")}
    return {"model": "stub", "stream": stream, "messages": [message]}


async def read(url: str, **members: bool) -> str:
    """The body as far as it comes; a broken end is told as its last line."""
    text, asked = "", call(**members)
    async with httpx.AsyncClient(trust_env=False, timeout=3) as client:
        try:
            async with client.stream("POST", f"{url}/chat/completions", json=asked) as got:
                async for piece in got.aiter_raw():
                    text += piece.decode(errors="replace")
        except httpx.HTTPError as error:
            text += type(error).__name__
    return text


def heard(text: str) -> list[int]:
    listener = Listener("r1")
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines if line.endswith("}")]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", [])]
    pieces = [choice["delta"].get("content", "") for choice in choices]
    return [number for piece in pieces for number in listener.hear(piece)]


async def test_the_stub_counts_and_each_token_proves_itself() -> None:
    async with asyncio.timeout(5), Stub(token_seconds=0) as stub:
        text = await read(stub.url)

    assert heard(text) == list(range(TOKENS))
    assert text.rstrip().endswith("data: [DONE]")


async def test_the_stub_answers_at_one_go_as_well() -> None:
    async with asyncio.timeout(5), Stub(token_seconds=0) as stub:
        answer = json.loads(await read(stub.url, stream=False))

    assert Listener("r1").hear(answer["choices"][0]["message"]["content"]) == list(range(TOKENS))


async def test_a_proxy_without_faults_passes_everything_on() -> None:
    async with asyncio.timeout(5), Stub(token_seconds=0) as stub, Proxy(stub.url) as proxy:
        text = await read(proxy.url)
        await asyncio.sleep(0)

    assert heard(text) == list(range(TOKENS))
    assert (stub.open_streams, proxy.open_streams) == (0, 0)


@pytest.mark.parametrize("how", CUTS)
async def test_every_kind_of_cut_ends_the_stream_before_its_end(how: How) -> None:
    struck: list[str | None] = []
    toxic = Toxic(harm=Harm.CUT, how=how, after_tokens=2)

    def note(_active: Active, request: str | None) -> None:
        struck.append(request)

    async with asyncio.timeout(5), Stub(token_seconds=0) as stub, Proxy(stub.url) as proxy:
        proxy.toxics.on_landed = note
        proxy.toxics.put_on(toxic)
        text = await read(proxy.url)

    assert heard(text)[:2] == [0, 1]
    assert "[DONE]" not in text
    assert struck == ["r1"]


@pytest.mark.parametrize(
    ("toxic", "told"),
    [
        (Toxic(harm=Harm.STATUS, code=429, error="rate_limit_exceeded"), "rate_limit_exceeded"),
        (Toxic(harm=Harm.ERROR_EVENT, after_tokens=1), "server_error"),
        (Toxic(harm=Harm.BAD_JSON, after_tokens=1), '{"choices": [{"delta"'),
        (Toxic(harm=Harm.HUGE_EVENT, after_tokens=1, size=5000), "x" * 5000),
        (Toxic(harm=Harm.REFUSED), "Error"),
        (Toxic(harm=Harm.REPLY_LOST), "Error"),
        (Toxic(harm=Harm.SLICER, size=3), "[DONE]"),
        (Toxic(harm=Harm.BANDWIDTH, size=1_000_000), "[DONE]"),
        (Toxic(harm=Harm.LATENCY, seconds=0.01, jitter=0.01), "[DONE]"),
    ],
    ids=lambda value: value.harm if isinstance(value, Toxic) else "",
)
async def test_each_harm_is_seen_by_who_asks(toxic: Toxic, told: str) -> None:
    async with asyncio.timeout(5), Stub(token_seconds=0) as stub:
        active = stub.toxics.put_on(toxic)
        text = await read(stub.url)

    assert told in text
    assert active.landed == 1


@pytest.mark.parametrize("harm", [Harm.STATUS, Harm.REFUSED])
async def test_what_strikes_after_the_request_was_sent_has_reached_the_provider(
    harm: Harm,
) -> None:
    reached: list[int] = []
    for where in ("before_send", "after_send"):
        async with asyncio.timeout(5), Stub(token_seconds=0) as stub, Proxy(stub.url) as proxy:
            active = proxy.toxics.put_on(Toxic(harm=harm, where=where))
            text = await read(proxy.url)
            reached.append(stub.requests)

        assert "[DONE]" not in text
        assert active.landed == 1
    assert reached == [0, 1]


async def test_a_doubled_token_comes_twice() -> None:
    async with asyncio.timeout(5), Stub(token_seconds=0) as stub:
        stub.toxics.put_on(Toxic(harm=Harm.DUP_TOKENS, after_tokens=2))
        text = await read(stub.url)

    assert heard(text) == [0, 1, 2, 2, 3, 4, 5]


@pytest.mark.parametrize("harm", [Harm.STALL, Harm.COMMENTS_ONLY, Harm.HEADER_THEN_HANG])
async def test_a_stream_that_is_held_is_let_go_with_its_toxic(harm: Harm) -> None:
    landed = asyncio.Event()

    def note(_active: Active, _request: str | None) -> None:
        landed.set()

    async with asyncio.timeout(5), Stub(token_seconds=0) as stub:
        active = stub.toxics.put_on(Toxic(harm=harm, after_tokens=2))
        stub.toxics.on_landed = note
        reading = asyncio.create_task(read(stub.url))
        await landed.wait()
        stub.toxics.take_off(active.number)
        text = await reading

    assert ("[DONE]" in text) is (harm is Harm.STALL)


async def test_a_toxic_meets_about_its_share_of_the_requests() -> None:
    met: list[Active] = []
    async with asyncio.timeout(5), Stub(seed=7) as stub:
        stub.toxics.put_on(Toxic(harm=Harm.STATUS, toxicity=0.25))
        for _ in range(1000):
            found = stub.toxics.meets(lambda toxic: toxic.harm is Harm.STATUS)
            met += [] if found is None else [found]

    assert 200 < len(met) < 300
