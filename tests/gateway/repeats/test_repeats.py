"""Requests that come again, over HTTP: joined, replayed, refused; never shared."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.callers.door import Door, Rules
from orchestrator.callers.keyring import Keyring
from orchestrator.callers.making import NewKey, create_key
from orchestrator.errors import UpstreamServerError
from orchestrator.gateway.repeats.memory import Memory
from orchestrator.gateway.repeats.repeats import Cache, Enter, Kept, Repeats, Submit, enter_nothing
from orchestrator.gateway.repeats.store import AnswerStore
from orchestrator.policies.retry import RetrySettings
from tests.fakes.scripted import DONE, Line, Stage
from tests.gateway.serving import CHAT, Served, body, plays, serving, text_of, until

MOST = 1 << 20


def keeping(
    *,
    cached: bool = False,
    every: bool = False,
    most: int = MOST,
    store: AnswerStore | None = None,
    file: AnswerStore | None = None,
    made: list[Repeats] | None = None,
    enter: Enter = enter_nothing,
) -> Callable[[Submit], Repeats]:
    def make(submit: Submit) -> Repeats:
        clock = asyncio.get_running_loop().time
        memory = Memory(most=MOST, ttl=60, clock=clock)
        cache = Cache(memory=memory, store=store, every=every, most=most) if cached else None
        kept = Kept(memory=Memory(most=MOST, ttl=60, clock=clock), store=file, most=most)
        repeats = Repeats(submit, enter=enter, kept=kept, cache=cache)
        if made is not None:
            made.append(repeats)
        return repeats

    return make


def numbered(*, gate: asyncio.Event | None = None) -> Stage:
    """A stage that answers each request with the number of its call."""

    def script(_request: object, call: int) -> Sequence[Line]:
        return [f"answer {call}", *([gate] if gate else []), " end", DONE]

    return Stage(script)


def keyed(served: Served, key: str, **members: object) -> Any:
    return served.client.post(CHAT, json=body(**members), headers={"idempotency-key": key})


def text(response: httpx.Response) -> str:
    return response.json()["choices"][0]["message"]["content"]


async def test_a_repeat_within_the_window_gets_the_answer_that_was_kept() -> None:
    stage = numbered()
    async with asyncio.timeout(5), serving({"m": stage}, repeats=keeping()) as served:
        first = await keyed(served, "k")
        again = await keyed(served, "k")
        other = await keyed(served, "other")
        without = await served.ask()

    assert [text(r) for r in (first, again, other, without)] == [
        *("answer 0 end", "answer 0 end"),
        *("answer 1 end", "answer 2 end"),
    ]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert first.json()["usage"] == again.json()["usage"]


async def test_a_repeat_of_a_stream_is_a_stream() -> None:
    async with asyncio.timeout(5), serving({"m": numbered()}, repeats=keeping()) as served:
        first = await keyed(served, "k", stream=True)
        again = await keyed(served, "k", stream=True)

    assert text_of(first.text) == text_of(again.text) == "answer 0 end"
    assert again.text.endswith("data: [DONE]\n\n")


async def test_a_repeat_in_flight_joins_what_runs() -> None:
    gate = asyncio.Event()
    stage = numbered(gate=gate)
    async with asyncio.timeout(5), serving({"m": stage}, repeats=keeping()) as served:
        first = asyncio.create_task(keyed(served, "k", stream=True))
        await until(lambda: len(stage.calls) == 1)
        second = asyncio.create_task(keyed(served, "k", stream=True))
        await until(lambda: served.connections == 2)
        gate.set()
        texts = [text_of((await task).text) for task in (first, second)]

    assert texts == ["answer 0 end", "answer 0 end"]
    assert len(stage.calls) == 1


async def test_another_body_under_the_same_key_is_422() -> None:
    async with asyncio.timeout(5), serving({"m": numbered()}, repeats=keeping()) as served:
        await keyed(served, "k")
        other = await keyed(served, "k", temperature=1)

    assert other.status_code == 422
    assert other.json()["error"]["code"] == "idempotency_conflict"


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_that_can_not_be_kept_is_400(key: str) -> None:
    async with asyncio.timeout(5), serving({"m": numbered()}, repeats=keeping()) as served:
        response = await keyed(served, key)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "idempotency-key"


async def test_a_failure_is_kept_for_nobody() -> None:
    def script(_request: object, call: int) -> Sequence[Line]:
        return ["fine", DONE] if call else [UpstreamServerError("broken")]

    retry = RetrySettings(max_attempts=1)
    stage = Stage(script)
    async with asyncio.timeout(5), serving({"m": stage}, repeats=keeping(), retry=retry) as served:
        first = await keyed(served, "k")
        again = await keyed(served, "k")

    assert (first.status_code, again.status_code) == (502, 200)
    assert text(again) == "fine"


async def test_an_answer_under_a_key_goes_on_when_its_caller_has_left() -> None:
    gate = asyncio.Event()
    stage = numbered(gate=gate)
    async with asyncio.timeout(5), serving({"m": stage}, repeats=keeping()) as served:
        async with served.client.stream(
            "POST", CHAT, json=body(stream=True), headers={"idempotency-key": "k"}
        ) as stream:
            assert stream.status_code == 200
        await until(lambda: served.connections == 0)
        gate.set()
        again = await keyed(served, "k", stream=True)

    assert text_of(again.text) == "answer 0 end"
    assert len(stage.calls) == 1


async def test_those_and_only_those_that_are_not_sent_are_entered_in_the_accounts() -> None:
    entered: list[str] = []
    gate = asyncio.Event()
    stage = numbered(gate=gate)
    repeats = keeping(cached=True, enter=lambda request: entered.append(request.request_id))
    async with asyncio.timeout(5), serving({"m": stage}, repeats=repeats) as served:

        async def ask(name: str, **headers: str) -> None:
            told = {"x-request-id": name} | headers
            await served.client.post(CHAT, json=body(seed=1), headers=told)

        asked = [asyncio.create_task(ask("sent"))]
        await until(lambda: len(stage.calls) == 1)
        asked.append(asyncio.create_task(ask("joined")))
        await until(lambda: "joined" in entered)
        gate.set()
        await asyncio.gather(*asked)
        await ask("kept")
        await ask("sent too", **{"idempotency-key": "k"})
        await ask("again", **{"idempotency-key": "k"})

    assert entered == ["joined", "kept", "again"]


async def test_a_stream_under_a_key_can_be_come_back_to_by_its_last_event() -> None:
    gate = asyncio.Event()
    stage = numbered(gate=gate)
    first = ""
    async with (
        asyncio.timeout(5),
        serving({"m": stage}, repeats=keeping(), resume_window=60) as served,
    ):
        key = {"idempotency-key": "k"}
        async with served.client.stream(
            "POST", CHAT, json=body(stream=True), headers=key
        ) as stream:
            async for piece in stream.aiter_text():
                first += piece
                if "answer" in first:
                    break
        await until(lambda: served.connections == 0)
        gate.set()
        last = [line[4:] for line in first.splitlines() if line.startswith("id: ")][-1]
        rest = await served.client.post(
            CHAT, json=body(stream=True), headers=key | {"last-event-id": last}
        )
        again = await keyed(served, "k", stream=True)

    def told(stream: str) -> str:
        return text_of("\n".join(line for line in stream.split("\n") if line[:4] != "id: "))

    assert told(first) + told(rest.text) == told(again.text) == "answer 0 end"
    assert rest.text.rstrip().endswith("[DONE]")
    assert again.headers["idempotent-replayed"] == "true"
    assert len(stage.calls) == 1


async def test_keys_and_answers_are_their_callers_own(tmp_path: Path) -> None:
    door = Door(Rules(keyring=Keyring(tmp_path / "keys.json", lambda: 0.0)))
    stages = {"m": numbered()}
    async with (
        asyncio.timeout(5),
        serving(stages, door=door, repeats=keeping(cached=True)) as served,
    ):
        texts: list[str] = []
        for name in ("ann", "bob"):
            _, key = create_key(tmp_path / "keys.json", NewKey(caller=name), now=0)
            assert door.keyring is not None
            door.keyring.look()
            served.client.headers["authorization"] = f"Bearer {key}"
            texts += [text(await keyed(served, "k")) for _ in range(2)]
            texts += [text(await served.ask(seed=1)) for _ in range(2)]

    assert texts == [f"answer {number} end" for number in (0, 0, 1, 1, 2, 2, 3, 3)]


async def test_the_same_deterministic_request_is_answered_from_the_cache() -> None:
    stages = {"m": numbered()}
    async with asyncio.timeout(5), serving(stages, repeats=keeping(cached=True)) as served:
        first = await served.ask(temperature=0)
        again = await served.ask(temperature=0, priority="high", deadline=5)
        streamed = await served.ask(temperature=0, stream=True)
        other = await served.ask(temperature=0, max_tokens=9)
        chance = await served.ask(temperature=1)

    told = [r.headers.get("x-orchestrator-cache") for r in (first, again, streamed, other, chance)]
    assert told == ["miss", "hit", "hit", "miss", None]
    assert text(first) == text(again) == text_of(streamed.text) == "answer 0 end"
    assert text(other) == "answer 1 end"


async def test_every_request_is_cached_where_that_is_wanted() -> None:
    repeats = keeping(cached=True, every=True)
    async with asyncio.timeout(5), serving({"m": numbered()}, repeats=repeats) as served:
        texts = {text(await served.ask(temperature=1)) for _ in range(3)}

    assert texts == {"answer 0 end"}


async def test_identical_deterministic_requests_are_sent_once() -> None:
    gate = asyncio.Event()
    stage = numbered(gate=gate)
    repeats = keeping(cached=True)
    async with asyncio.timeout(5), serving({"m": stage}, repeats=repeats) as served:
        tasks = [asyncio.create_task(served.ask(seed=1)) for _ in range(5)]
        await until(lambda: served.connections == 5)
        gate.set()
        texts = {text(await task) for task in tasks}

    assert texts == {"answer 0 end"}
    assert len(stage.calls) == 1


async def test_who_joins_has_a_deadline_of_its_own() -> None:
    gate = asyncio.Event()
    stage = numbered(gate=gate)
    repeats = keeping(cached=True)
    async with asyncio.timeout(5), serving({"m": stage}, repeats=repeats) as served:
        first = asyncio.create_task(served.ask(seed=1))
        await until(lambda: len(stage.calls) == 1)
        late = await served.ask(seed=1, deadline=0.01)
        gate.set()
        answer = await first

    assert (late.status_code, answer.status_code) == (504, 200)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"deadline": 0.05}, {"deadline": 30}),
        ({"deadline": 0.05}, {}),
        ({"deadline": 30, "priority": "background"}, {"deadline": 30}),
    ],
)
async def test_nobody_joins_a_request_that_has_less_time_or_a_lower_priority(
    first: dict[str, object], second: dict[str, object]
) -> None:
    gate = asyncio.Event()
    stage = numbered(gate=gate)
    async with (
        asyncio.timeout(5),
        serving({"m": stage}, repeats=keeping(cached=True)) as served,
    ):
        short = asyncio.create_task(served.ask(seed=1, **first))
        await until(lambda: len(stage.calls) == 1)
        longer = asyncio.create_task(served.ask(seed=1, **second))
        await until(lambda: len(stage.calls) == 2)
        gate.set()
        await short
        answer = await longer

    assert text(answer) == "answer 1 end"
    assert answer.headers["x-orchestrator-cache"] == "miss"


async def test_who_leaves_an_answer_that_goes_on_still_counts_as_running(tmp_path: Path) -> None:
    gate = asyncio.Event()
    wanted = NewKey(caller="ann", max_concurrent=1)
    _, key = create_key(tmp_path / "keys.json", wanted, now=0)
    door = Door(Rules(keyring=Keyring(tmp_path / "keys.json", lambda: 0.0)))
    stages = {"m": numbered(gate=gate)}
    async with asyncio.timeout(5), serving(stages, door=door, repeats=keeping()) as served:
        served.client.headers["authorization"] = f"Bearer {key}"
        async with served.client.stream(
            "POST", CHAT, json=body(stream=True), headers={"idempotency-key": "k"}
        ) as stream:
            assert stream.status_code == 200
        await until(lambda: served.connections == 0)
        refused = await keyed(served, "another")
        gate.set()
        await served.idle()
        again = await keyed(served, "k", stream=True)

    assert (refused.status_code, again.status_code) == (429, 200)


async def test_when_all_who_share_a_request_have_left_it_is_canceled() -> None:
    stage = plays("a", asyncio.Event())
    repeats = keeping(cached=True)
    async with asyncio.timeout(5), serving({"m": stage}, repeats=repeats) as served:
        async with served.client.stream("POST", CHAT, json=body(stream=True, seed=1)) as stream:
            assert stream.status_code == 200
        await served.idle()

    assert stage.running == 0


async def test_an_answer_that_is_too_long_is_given_whole_and_not_kept() -> None:
    repeats = keeping(cached=True, most=100)
    async with asyncio.timeout(5), serving({"m": numbered()}, repeats=repeats) as served:
        texts = [text(await served.ask(seed=1)) for _ in range(2)]

    assert texts == ["answer 0 end", "answer 1 end"]


async def test_a_cache_in_a_file_is_there_after_a_restart(tmp_path: Path) -> None:
    told: list[str] = []
    async with asyncio.timeout(10):
        for _ in range(2):
            store = AnswerStore(tmp_path / "c.db", most=MOST, ttl=60, clock=lambda: 0.0)
            repeats = keeping(cached=True, store=store)
            async with serving({"m": numbered()}, repeats=repeats) as served:
                told.append((await served.ask(seed=1)).headers["x-orchestrator-cache"])
                await store.settled()

    assert told == ["miss", "hit"]


async def test_what_another_version_has_kept_is_asked_for_anew(tmp_path: Path) -> None:
    path, told = tmp_path / "c.db", list[tuple[int, str]]()
    async with asyncio.timeout(10):
        for _ in range(3):
            store = AnswerStore(path, most=MOST, ttl=60, clock=lambda: 0.0)
            repeats = keeping(cached=True, store=store)
            async with serving({"m": numbered()}, repeats=repeats) as served:
                answer = await served.ask(seed=1)
                await store.settled()
            told.append((answer.status_code, answer.headers["x-orchestrator-cache"]))
            if len(told) == 1:
                with contextlib.closing(sqlite3.connect(path)) as file, file:
                    file.execute("UPDATE answers SET content = x'93c0'")

    assert told == [(200, "miss"), (200, "miss"), (200, "hit")]


def a_file(path: Path) -> AnswerStore:
    return AnswerStore(path, most=MOST, ttl=60, clock=lambda: 0.0)


async def test_an_answer_under_a_key_outlives_a_restart_if_there_is_a_file(tmp_path: Path) -> None:
    path, stage, responses = tmp_path / "keys.db", numbered(), list[httpx.Response]()
    async with asyncio.timeout(10):
        for words in ("hi", "hi", "ho"):
            made: list[Repeats] = []
            asked = {"messages": [{"role": "user", "content": words}]}
            repeats = keeping(file=a_file(path), made=made)
            async with serving({"m": stage}, repeats=repeats) as served:
                responses.append(await keyed(served, "k", **asked))
            await made[0].aclose()

    assert [text(response) for response in responses[:2]] == ["answer 0 end"] * 2
    assert responses[1].headers["idempotent-replayed"] == "true"
    assert responses[2].status_code == 422
    assert len(stage.calls) == 1


async def test_repeats_that_come_together_after_a_restart_are_one_request(tmp_path: Path) -> None:
    gate = asyncio.Event()
    stage = numbered(gate=gate)
    repeats = keeping(file=a_file(tmp_path / "keys.db"))
    async with asyncio.timeout(5), serving({"m": stage}, repeats=repeats) as served:
        asking = [asyncio.create_task(keyed(served, "k")) for _ in range(5)]
        await until(lambda: stage.running == 1)
        gate.set()
        responses = await asyncio.gather(*asking)

    assert {text(response) for response in responses} == {"answer 0 end"}
    assert len(stage.calls) == 1


async def test_what_was_answered_last_is_kept_before_the_gateway_has_stopped(
    tmp_path: Path,
) -> None:
    made: list[Repeats] = []
    path, gate = tmp_path / "cache.db", asyncio.Event()
    repeats = keeping(cached=True, store=a_file(path), made=made)
    async with asyncio.timeout(5):
        async with serving({"m": numbered(gate=gate)}, repeats=repeats) as served:
            asking = asyncio.create_task(served.ask(temperature=0))
            await until(lambda: made[0]._made != {})
            gate.set()
            await asking
        await made[0].aclose()

    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM answers").fetchone() == (1,)
