"""Answers in memory: what is too much or too old is gone, what is read is what was kept."""

import hypothesis.strategies as st
from hypothesis import given, settings

from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.gateway.repeats.memory import ENTRY_OVERHEAD_BYTES, Memory, packed, unpacked


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_kept_with_all_its_chunks_and_its_usage() -> None:
    chunks = [
        TokenChunk("a"),
        TokenChunk("", 2, {"tool_calls": [{"index": 0, "id": "x"}]}),
        TokenChunk("b", index=1),
    ]
    ending = Finished(FinishReason.TOOL_CALLS, Usage(prompt_tokens=1, completion_tokens=2))

    assert unpacked(packed((chunks, ending))) == (chunks, ending)


def test_the_least_used_answer_makes_room_for_a_new_one() -> None:
    memory = Memory(most=2 * (ENTRY_OVERHEAD_BYTES + 1), ttl=10, clock=Clock())
    memory.put(b"1", b"a")
    memory.put(b"2", b"b")
    memory.get(b"1")

    memory.put(b"3", b"c")
    memory.put(b"4", b"x" * 10_000)

    assert [memory.get(key) for key in (b"1", b"2", b"3", b"4")] == [b"a", None, b"c", None]


def test_an_answer_is_gone_when_its_time_is_over() -> None:
    clock = Clock()
    memory = Memory(most=10_000, ttl=10, clock=clock)
    memory.put(b"1", b"a")

    clock.now = 10

    assert memory.get(b"1") is None
    assert (len(memory), memory.size) == (0, 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400), st.integers(0, 6))))
def test_no_more_is_kept_than_there_is_room_for(steps: list[tuple[int, int, int]]) -> None:
    clock = Clock()
    memory = Memory(most=1000, ttl=10, clock=clock)
    for key, length, wait in steps:
        clock.now += wait
        memory.put(b"%d" % key, b"x" * length)
        memory.get(b"%d" % (key + 1))

        assert memory.size <= 1000
        assert memory.size == sum(
            len(content) + ENTRY_OVERHEAD_BYTES for _, content in memory._entries.values()
        )
