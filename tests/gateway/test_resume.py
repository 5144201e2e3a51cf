"""Streams that a client comes back to."""

import asyncio
import socket
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.channel import Channel
from orchestrator.errors import OrchestratorError, StreamGoneError
from orchestrator.events import Failed, Finished, TokenChunk
from orchestrator.gateway.resume import MAX_KEPT_BYTES, MAX_UNREAD_BYTES, Replay, Resumptions, Room
from tests.fakes.scripted import DONE
from tests.gateway.serving import CHAT, body, plays, serving, text_of, until


def ids_of(stream: str) -> list[str]:
    return [line[4:] for line in stream.splitlines() if line.startswith("id: ")]


def without_ids(stream: str) -> str:
    return "\n".join(line for line in stream.split("\n") if line[:4] != "id: ")


async def test_a_client_that_comes_back_gets_exactly_the_rest() -> None:
    hold, asked = asyncio.Event(), body(stream=True)
    stage = plays("a", "b", "c", hold, "d", "e", DONE)
    first = ""

    async with asyncio.timeout(5), serving({"m": stage}, resume_window=60) as served:
        async with served.client.stream("POST", CHAT, json=asked) as response:
            async for piece in response.aiter_text():
                first += piece
                if "c" in text_of(without_ids(first)):
                    break
        await until(lambda: served.connections == 0)
        hold.set()  # the answer goes on while nobody reads it
        await served.idle()
        seen = ids_of(first)
        again = await served.client.post(CHAT, json=asked, headers={"last-event-id": seen[-1]})
        whole = await served.client.post(CHAT, json=asked, headers={"last-event-id": seen[0]})

    assert again.status_code == 200
    assert text_of(without_ids(first)) + text_of(without_ids(again.text)) == "abcde"
    assert text_of(without_ids(whole.text)) == "bcde"
    numbers = [int(event_id.rpartition("-")[2]) for event_id in seen + ids_of(again.text)]
    assert numbers == list(range(len(numbers)))
    assert again.text.rstrip().endswith("[DONE]")
    assert len(stage.calls) == 1


async def test_a_client_that_stays_away_for_too_long_ends_its_request() -> None:
    hold, asked = asyncio.Event(), body(stream=True)
    stage = plays("a", hold, DONE)

    async with asyncio.timeout(5), serving({"m": stage}, resume_window=0.05) as served:
        async with served.client.stream("POST", CHAT, json=asked) as response:
            first = await anext(response.aiter_text())
        await served.idle()
        late = await served.client.post(
            CHAT, json=asked, headers={"last-event-id": ids_of(first)[-1]}
        )

    assert stage.running == 0
    assert late.status_code == 404
    assert late.json()["error"]["code"] == "stream_gone"


async def test_a_stream_is_found_by_its_own_caller_alone() -> None:
    streams = Resumptions(60)
    replay = Replay(Channel(), "one", 60, lambda _: None, Room(MAX_KEPT_BYTES))
    streams._streams[replay.stream_id] = replay
    replay.add(b"data: 1\n\ndata: 2\n\n")

    assert streams.find(f"{replay.stream_id}-0", "one") == (replay, 1)
    for event_id, caller in [
        (f"{replay.stream_id}-0", "two"),
        (f"{replay.stream_id}-2", "one"),
        (f"{'0' * 32}-0", "one"),
        ("nonsense", "one"),
    ]:
        with pytest.raises(StreamGoneError):
            streams.find(event_id, caller)


async def test_what_is_kept_of_a_long_stream_is_bounded() -> None:
    replay = Replay(Channel(), "", 60, lambda _: None, Room(MAX_KEPT_BYTES))
    event = b"data: " + b"x" * 10_000 + b"\n\n"

    for _ in range(300):
        replay.add(event)

    assert sum(map(len, replay._events)) <= MAX_KEPT_BYTES
    assert replay.end == 300
    with pytest.raises(StreamGoneError):
        replay.take(0)
    assert replay.take(299).endswith(event)
    assert replay.take(300) == b""


async def test_a_client_that_comes_back_and_does_not_read_is_cut_off() -> None:
    gate, over, first = asyncio.Event(), asyncio.Event(), ""
    # more than the system's own buffers hold
    stages = {"m": plays("a", gate, "x" * (24 << 20), over, DONE)}
    async with asyncio.timeout(5), serving(stages, resume_window=0.01, linger=0.01) as served:
        request = served.client.build_request("POST", CHAT, json=body(stream=True))
        response = await served.client.send(request, stream=True)
        pieces = response.aiter_text()
        while not ids_of(first):
            first += await anext(pieces)
        with socket.create_connection(("127.0.0.1", served.port)) as deaf:
            deaf.sendall(
                b"POST %s HTTP/1.1\r\nhost: x\r\nlast-event-id: %s\r\n\r\n"
                % (CHAT.encode(), ids_of(first)[0].encode())
            )
            await until(lambda: served.connections == 2)
            await until(lambda: served.connections == 1)  # the first one is replaced
            streams = served.gateway._exchanges[CHAT]._resumptions
            assert streams is not None
            (stream,) = streams._streams.values()
            before = stream.end
            gate.set()
            await until(lambda: stream.end > before)
            over.set()
            await until(lambda: served.connections == 0)
            await until(lambda: not streams._streams)
        await response.aclose()


async def test_a_stream_that_can_not_be_written_ends_with_an_error() -> None:
    class Broken:
        def write(self, chunks: Sequence[TokenChunk]) -> bytes:
            raise ValueError("half a character")

        def finish(self, finished: Finished) -> bytes:
            return b"data: finished\n\n"

        def fail(self, error: OrchestratorError) -> bytes:
            return b"data: %s\n\n" % error.code.encode()

    channel = Channel()
    replay = Replay(channel, "", 60, lambda _: None, Room(MAX_KEPT_BYTES))

    async with asyncio.timeout(5):
        await replay.pump(Broken(), [], None)

    assert replay.over
    assert b"data: internal_error" in replay.take(0)
    assert isinstance(channel.ending, Failed)


@given(st.lists(st.integers(1, 2000), max_size=40), st.integers(0, 40))
def test_what_follows_an_event_is_exactly_what_came_after_it(sizes: list[int], at: int) -> None:
    replay = Replay(Channel(), "", 60, lambda _: None, Room(MAX_KEPT_BYTES))
    for size in sizes:
        replay.add(b"data: %s\n\n" % (b"x" * size))

    if at <= len(sizes):
        rest = replay.take(at).split(b"\n\n")[:-1]
        assert [len(event.partition(b"data: ")[2]) for event in rest] == sizes[at:]
    else:
        with pytest.raises(StreamGoneError):
            replay.take(at)


async def test_streams_have_no_ids_unless_the_window_is_open() -> None:
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        response = await served.ask(stream=True)

    assert ids_of(response.text) == []


def test_what_is_kept_of_all_streams_together_is_bounded() -> None:
    room = Room(100_000)
    replays = [Replay(Channel(), "", 60, lambda _: None, room) for _ in range(20)]

    for replay in replays:
        for _ in range(10):
            replay.add(b"data: " + b"x" * 1000 + b"\n\n")

    assert room.taken < 100_000 + 20 * 2000
    assert all(replay.end == 10 for replay in replays)
    for replay in replays:
        replay.drop()
    assert room.taken == 0


async def test_a_stream_that_is_being_read_loses_nothing_for_want_of_room() -> None:
    replay = Replay(Channel(), "", 60, lambda _: None, Room(0))
    event = b"data: " + b"x" * 1000 + b"\n\n"
    replay.attach()

    seen = 0
    for _ in range(300):
        replay.add(event * 20)
        seen += replay.take(20 * _).count(b"\n\n")

    assert seen == 6000
    assert replay._size_bytes < MAX_UNREAD_BYTES


async def test_a_stream_that_finds_no_room_has_no_ids_and_is_told_all_the_same() -> None:
    hold, asked = asyncio.Event(), body(stream=True)
    stages = {"m": plays("a" * 2000, hold, DONE), "n": plays("b", DONE)}

    async with (
        asyncio.timeout(5),
        serving(stages, resume_window=60, resume_memory=1000) as served,
        served.client.stream("POST", CHAT, json=asked) as first,
    ):
        begun = await anext(first.aiter_text())
        second = await served.client.post(CHAT, json=asked | {"model": "n"})
        hold.set()

    assert ids_of(begun)
    assert ids_of(second.text) == []
    assert text_of(second.text) == "b"
