import codecs
import itertools

import httpx
import httpx_sse
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UpstreamProtocolError
from orchestrator.runners.remote.sse import ServerSentEvent, SseDecoder

LINES = st.sampled_from(
    [
        b"",
        b"",
        b"data",
        b"data:",
        b"data: x",
        b"data:y",
        b"data:  two spaces",
        b"data: \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80",
        b"data: a\xe2\x80\xa8b\x0bc\xc2\x85d",
        b"event: error",
        b"event:",
        b"id: 7",
        b"retry: 10",
        b": a comment",
        b":",
        b"database: no",
        b" data: no",
        b"\xef\xbb\xbfdata: marked",
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=12).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def decode(*reads: bytes, decoder: SseDecoder | None = None) -> list[ServerSentEvent]:
    decoder = decoder or SseDecoder()
    return [event for read in reads for event in decoder.feed(read)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


def oracle(stream: bytes) -> list[tuple[str, str]]:
    """What httpx-sse makes of the stream; the standard drops events without data."""
    response = httpx.Response(
        200,
        content=stream.removeprefix(codecs.BOM_UTF8),
        headers={"content-type": "text/event-stream"},
    )
    return [(e.event, e.data) for e in httpx_sse.EventSource(response).iter_sse() if e.data]


@given(stream=STREAMS, tail=st.sampled_from([b"", b"data: open", b"\xef\xbb", b"\r"]))
@settings(deadline=None)
def test_a_stream_read_at_once_gives_what_the_reference_decoder_gives(stream: bytes, tail: bytes):
    events = decode(stream + tail)

    found = [(e.event.decode() or "message", e.data.decode()) for e in events if e.data]
    assert found == oracle(stream + tail)


@given(stream=STREAMS, places=st.lists(st.integers(0, 1 << 16), max_size=20))
@settings(deadline=None)
def test_any_cut_of_a_stream_gives_the_same_events(stream: bytes, places: list[int]):
    whole, pieces = SseDecoder(), SseDecoder()

    events = decode(*cut(stream, places), decoder=pieces)

    assert events == decode(stream, decoder=whole)
    assert pieces.flush() == whole.flush()


@given(junk=st.binary(max_size=200), places=st.lists(st.integers(0, 200), max_size=9))
@settings(deadline=None)
def test_any_bytes_at_all_are_cut_without_a_difference(junk: bytes, places: list[int]):
    whole, pieces = SseDecoder(), SseDecoder()

    events = decode(*cut(junk, places), decoder=pieces)

    assert events == decode(junk, decoder=whole)
    assert pieces.flush() == whole.flush()


def test_a_carriage_return_ends_an_event_before_its_line_feed_comes():
    decoder = SseDecoder()

    assert decoder.feed(b"data: a\r\n\r") == [ServerSentEvent(b"a")]
    assert decoder.feed(b"\ndata: b\r\r") == [ServerSentEvent(b"b")]


def test_a_byte_order_mark_is_taken_off_once_and_only_at_the_start():
    mark = b"\xef\xbb\xbf"

    events = decode(
        mark[:1], mark[1:2], mark[2:] + b"data: a\n\n", mark + b"data: b\n\ndata: c\n\n"
    )

    assert events == [ServerSentEvent(b"a"), ServerSentEvent(b"c")]


def test_a_field_that_the_standard_does_not_know_says_nothing_unless_it_is_told_to():
    stream = b'data: a\n\nerror: {"code": 500}\n\n'

    assert decode(stream) == [ServerSentEvent(b"a")]
    assert decode(stream, decoder=SseDecoder(error_field=True)) == [
        ServerSentEvent(b"a"),
        ServerSentEvent(b'{"code": 500}', b"error"),
    ]


@pytest.mark.parametrize("size", [1 << 10, 64 << 10, 1 << 20])
@pytest.mark.parametrize("space", [b"", b" "])
def test_a_long_line_in_many_reads_is_the_line_that_was_sent(size: int, space: bytes):
    text = b"0123456789abcdef" * (size // 16)
    stream = b"data:" + space + text + b"\n\ndata: b\n\n"

    events = decode(*[stream[at : at + 60_000] for at in range(0, len(stream), 60_000)])

    assert events == [ServerSentEvent(text), ServerSentEvent(b"b")]


def test_thousands_of_data_lines_are_one_event_with_line_feeds_between():
    lines = [b"%d" % number for number in range(5000)]
    stream = b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"

    assert decode(stream[:999], stream[999:]) == [ServerSentEvent(b"\n".join(lines))]


def test_an_event_without_its_blank_line_is_handed_out_apart_at_the_end():
    decoder = SseDecoder()

    assert decoder.feed(b"data: a\n\nevent: error\ndata: b\ndata: c") == [ServerSentEvent(b"a")]
    assert decoder.flush() == ServerSentEvent(b"b\nc", b"error")
    assert decoder.flush() is None


def test_an_event_above_the_bound_is_refused_however_it_is_read():
    whole = b"data: " + b"x" * 40 + b"\n\n"

    for reads in ([whole], [whole[:30], whole[30:]], [b"data: xxxxxxxxxx\n"] * 4, [b"data\n"] * 40):
        with pytest.raises(UpstreamProtocolError, match="larger than 32 bytes"):
            decode(*reads, decoder=SseDecoder(max_event_bytes=32))


def test_comments_without_a_blank_line_never_count_towards_the_bound():
    decoder = SseDecoder(max_event_bytes=32)

    assert decode(*[b": keep-alive\n"] * 100, b"data: a\n\n", decoder=decoder) == [
        ServerSentEvent(b"a")
    ]


def test_the_decoder_says_in_words_where_it_stands():
    decoder = SseDecoder()
    assert repr(decoder) == "<SseDecoder between events, 0 bytes held>"

    decoder.feed(b"data: a\ndata")

    assert repr(decoder) == "<SseDecoder within an event, 6 bytes held>"
