"""Answers in an SQLite file, which outlive whoever kept them."""

import asyncio
from pathlib import Path

import pytest

from orchestrator.gateway.repeats.store import AnswerStore


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def a_store(path: Path, clock: Clock | None = None, most: int = 100) -> AnswerStore:
    return AnswerStore(path, most=most, ttl=10, clock=clock or Clock())


async def kept(store: AnswerStore, *keys: bytes) -> list[bytes | None]:
    return [await store.get(key, bool) for key in keys]


async def test_an_answer_outlives_the_process_that_kept_it(tmp_path: Path) -> None:
    async with asyncio.timeout(5):
        first = a_store(tmp_path / "c.db")
        first.put_later(b"1", b"answer")
        await first.settled()

        assert await kept(a_store(tmp_path / "c.db"), b"1", b"2") == [b"answer", None]


async def test_the_oldest_answers_make_room(tmp_path: Path) -> None:
    clock = Clock()
    store = a_store(tmp_path / "c.db", clock)
    async with asyncio.timeout(5):
        for number in range(4):
            store.put_later(b"%d" % number, b"x" * 40)
            await store.settled()
            clock.now += 1
        store.put_later(b"3", b"y" * 50)
        await store.settled()

        assert await kept(store, b"0", b"1", b"2", b"3") == [None, None, b"x" * 40, b"y" * 50]
        clock.now += 20
        assert await kept(store, b"2", b"3") == [None, None]


async def test_a_file_that_can_not_be_used_is_an_empty_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = a_store(tmp_path / "none" / "c.db")
    async with asyncio.timeout(5):
        store.put_later(b"1", b"a")
        await store.settled()

        assert await store.get(b"1", bool) is None
    assert all("can't be used" in message for message in caplog.messages)
