"""The channel against a model of its six rules."""

import asyncio

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.channel import CHUNK_OVERHEAD_BYTES, Channel, weight
from orchestrator.errors import RequestCanceledError, SlowConsumerError
from orchestrator.events import Ending, Failed, Finished, FinishReason, TokenChunk
from orchestrator.metrics import REGISTRY
from tests.fakes.scripted import DONE

CAPACITY = 5 * (1 + CHUNK_OVERHEAD_BYTES)
"""Five chunks of one character."""


class ChannelMachine(RuleBasedStateMachine):
    """Attempts write, somebody ends, the reader reads, a retry takes back: in any order."""

    held = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.channel = Channel(held=self.held, capacity_bytes=CAPACITY)
        self.told = 0
        self.channel.watch(self.count)
        self.epoch = self.last_epoch = 0
        self.unread: list[str] = []
        self.read: list[str] = []
        self.ending: Ending | None = None
        self.late = 0
        self.letters = 0

    def count(self) -> None:
        assert self.channel.ending is not None
        self.told += 1

    @rule()
    def begin(self) -> None:
        self.last_epoch += 1
        self.epoch = self.last_epoch
        self.channel.begin(self.epoch)

    @rule(age=st.integers(0, 2))
    def send(self, age: int) -> None:
        epoch = max(0, self.last_epoch - age)
        self.letters += 1
        text = chr(ord("a") + self.letters % 26)

        taken = self.channel.send(TokenChunk(text), epoch)

        if self.ending is not None or epoch != self.epoch:
            self.late += 1
            assert taken is False
        elif len(self.unread) == 5:
            assert taken is False
            self.ending = self.channel.ending
            assert isinstance(self.ending, Failed)
            assert isinstance(self.ending.error, SlowConsumerError)
        else:
            assert taken is True
            self.unread.append(text)

    @rule(
        ending=st.sampled_from([DONE, Failed(RequestCanceledError("gone"))]),
        age=st.sampled_from([None, 0, 1]),
    )
    def end(self, ending: Ending, age: int | None) -> None:
        epoch = None if age is None else max(0, self.last_epoch - age)

        won = self.channel.end(ending, epoch)

        if self.ending is None and (epoch is None or epoch == self.epoch):
            self.ending = ending
            assert won is True
        else:
            self.late += 1
            assert won is False

    @rule()
    def retract(self) -> None:
        done = self.channel.retract()

        assert done == (not self.read and self.ending is None)
        if done:
            self.unread.clear()
            self.epoch = 0

    @precondition(lambda self: self.ending is not None or (self.unread and not self.held))
    @rule()
    def receive(self) -> None:
        chunks, ending = self.loop.run_until_complete(self.channel.receive())

        assert [chunk.text for chunk in chunks] == self.unread
        assert ending == self.ending
        self.read += self.unread
        self.unread.clear()

    @invariant()
    def agrees(self) -> None:
        assert self.channel.ending is self.ending
        assert self.channel.delivered == len(self.read)
        assert self.channel.committed == bool(self.read)
        assert self.channel.late_events == self.late
        assert self.told == (self.ending is not None)

    def teardown(self) -> None:
        self.loop.close()


class HeldChannelMachine(ChannelMachine):
    """Nothing is read before the ending."""

    held = True


SETTINGS = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestChannelAgainstAModel = ChannelMachine.TestCase
TestChannelAgainstAModel.settings = SETTINGS
TestHeldChannelAgainstAModel = HeldChannelMachine.TestCase
TestHeldChannelAgainstAModel.settings = SETTINGS


async def test_an_ending_finds_room_in_a_full_channel() -> None:
    async with asyncio.timeout(5):
        channel = Channel(capacity_bytes=CAPACITY)
        channel.begin(1)
        for _ in range(5):
            assert channel.send(TokenChunk("x"), 1)

        assert channel.end(DONE, 1)
        chunks, ending = await channel.receive()

    assert len(chunks) == 5
    assert ending == DONE


async def test_a_reader_that_waits_is_woken_by_a_chunk_and_by_an_ending() -> None:
    async with asyncio.timeout(5):
        channel = Channel()
        channel.begin(1)

        reading = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)
        channel.send(TokenChunk("a"), 1)
        first = await reading
        reading = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)
        channel.end(DONE, 1)
        second = await reading

    assert first == ([TokenChunk("a")], None)
    assert second == ([], DONE)


async def test_a_reader_that_is_canceled_in_the_moment_of_a_chunk_loses_nothing() -> None:
    async with asyncio.timeout(5):
        channel = Channel()
        channel.begin(1)
        reading = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)

        channel.send(TokenChunk("a"), 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

        assert await channel.receive() == ([TokenChunk("a")], None)


async def test_a_held_channel_gives_all_of_it_at_the_end_and_may_start_anew_before() -> None:
    async with asyncio.timeout(5):
        channel = Channel(held=True)
        channel.begin(1)
        reading = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)
        channel.send(TokenChunk("half"), 1)
        await asyncio.sleep(0)

        assert channel.retract()
        channel.begin(2)
        channel.send(TokenChunk("whole"), 2)
        channel.end(DONE, 2)

        assert await reading == ([TokenChunk("whole")], DONE)


async def test_a_straggler_never_writes_into_the_next_attempts_answer() -> None:
    async with asyncio.timeout(5):
        channel = Channel()
        channel.begin(1)
        channel.retract()
        straggler = channel.send(TokenChunk("old"), 1)
        channel.begin(2)
        channel.send(TokenChunk("new"), 2)

        chunks, _ = await channel.receive()

    assert straggler is False
    assert chunks == [TokenChunk("new")]


async def test_after_the_ending_it_says_the_same_ending_for_ever() -> None:
    async with asyncio.timeout(5):
        channel = Channel()
        channel.begin(1)
        channel.send(TokenChunk("a"), 1)
        channel.end(Finished(FinishReason.LENGTH), 1)

        received = [await channel.receive() for _ in range(3)]

    assert [len(chunks) for chunks, _ in received] == [1, 0, 0]
    assert {ending for _, ending in received} == {Finished(FinishReason.LENGTH)}


async def test_what_has_been_read_makes_room_again() -> None:
    async with asyncio.timeout(5):
        channel = Channel(capacity_bytes=CAPACITY)
        channel.begin(1)

        for _ in range(20):
            assert channel.send(TokenChunk("x"), 1)
            await channel.receive()

    assert channel.ending is None
    assert channel.delivered == 20


def test_a_chunk_full_of_other_fields_counts_towards_the_bound() -> None:
    channel = Channel(capacity_bytes=1000)
    channel.begin(1)
    channel.send(TokenChunk("x"), 1)

    taken = channel.send(TokenChunk("", fields={"tool_calls": "x" * 2000}), 1)

    assert taken is False
    assert isinstance(channel.ending, Failed)


def test_a_watcher_of_an_ended_channel_is_told_at_once() -> None:
    channel = Channel()
    channel.end(DONE)
    told: list[str] = []

    channel.watch(lambda: told.append("now"))

    assert told == ["now"]


@pytest.mark.parametrize(("held", "advice"), [(True, "stream=true"), (False, "read faster")])
def test_an_overflow_says_what_the_caller_can_do(held: bool, advice: str) -> None:
    channel = Channel(held=held, capacity_bytes=10)
    channel.begin(1)

    channel.send(TokenChunk("x"), 1)
    channel.send(TokenChunk("y"), 1)

    assert isinstance(channel.ending, Failed)
    assert advice in str(channel.ending.error)


def test_its_repr_says_in_words_where_it_is() -> None:
    channel = Channel()
    channel.begin(1)
    channel.send(TokenChunk("secret"), 1)

    assert repr(channel) == "<Channel open, 0 read, 1 ready>"
    channel.end(DONE)
    assert repr(channel) == "<Channel finished, 0 read, 1 ready>"


def test_a_late_event_is_counted_in_the_metrics() -> None:
    channel = Channel()
    channel.begin(1)
    channel.end(Failed(RequestCanceledError("gone")))
    name = "orchestrator_late_events_total"
    before = REGISTRY.get_sample_value(name) or 0.0

    channel.send(TokenChunk("x"), 1)
    channel.end(Finished(FinishReason.STOP), 1)

    assert channel.late_events == 2
    assert (REGISTRY.get_sample_value(name) or 0.0) - before == 2


def test_a_chunk_larger_than_the_bound_is_no_slow_reader() -> None:
    channel = Channel(capacity_bytes=1000)
    channel.begin(1)

    taken = channel.send(TokenChunk("x" * 5000), 1)

    assert taken
    assert channel.take()[0][0].text == "x" * 5000


def test_fields_are_weighed_by_their_texts_and_a_long_list_by_samples() -> None:
    long = [{"token": "a" * 84}] * 10_000

    assert weight({"x": "a" * 68}) == 100
    assert weight([{"a": 1, "b": None}]) == 64
    assert 1_000_000 <= weight({"logprobs": long}) <= 1_200_000
