"""h11 is the oracle: another parser of the same grammar, by other people, in another language."""

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import h11
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.runners.remote.http1 import MAX_HEAD_BYTES, ResponseParser


@dataclass(frozen=True)
class Read:
    """What a parser made of a response and the end of its connection."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    whole: bool


def by_ours(pieces: list[bytes]) -> Read:
    parser = ResponseParser()
    try:
        feed_all(parser, pieces)
        parser.end()
    except httpx.RemoteProtocolError:
        whole = False
    else:
        whole = parser.complete
    headers = [(name.lower(), value) for name, value in parser.headers] if parser.head_done else []
    return Read(parser.status if parser.head_done else 0, headers, parser.take(), whole)


def by_h11(data: bytes) -> Read:
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    client.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    status, headers, body = 0, [], b""
    try:
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                client.receive_data(b"")
            elif isinstance(event, h11.Response):
                status, headers = event.status_code, [(n, v) for n, v in event.headers]
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return Read(status, headers, body, whole=True)
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return Read(status, headers, body, whole=False)
    except h11.RemoteProtocolError:
        return Read(status, headers, body, whole=False)


names = st.sampled_from([b"X-One", b"content-type", b"server", b"x-request-id"])
values = st.sampled_from([b"", b"a", b"text/event-stream; charset=utf-8", b"caf\xe9", b"a,b;c=d"])
bodies = st.binary(max_size=60)


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    framed = b""
    while body:
        length = draw(st.integers(1, len(body)))
        extension = draw(st.sampled_from([b"", b";a", b";a=b"]))
        framed += b"%x%s\r\n%s\r\n" % (length, extension, body[:length])
        body = body[length:]
    trailers = draw(st.sampled_from([b"", b"x-sum: 1\r\n"]))
    return framed + b"0\r\n" + trailers + b"\r\n"


INTERIM = [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"]


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    head = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 \r\na: b\r\n\r\n"])
    )
    status = draw(st.sampled_from([200, 204, 304, 400, 429, 503]))
    head += b"HTTP/1.1 %d Said\r\n" % status
    for name, value in draw(st.lists(st.tuples(names, values), max_size=3)):
        head += name + b": " + value + b"\r\n"
    body = draw(bodies)
    framing = draw(st.sampled_from(["length", "chunks", "end"]))
    if status in (204, 304):
        return head + b"\r\n"
    if framing == "length":
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    if framing == "chunks":
        return head + b"transfer-encoding: chunked\r\n\r\n" + draw(chunked(body))
    return head + b"\r\n" + body


def sliced(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(marks) if a < b]


cuts = st.lists(st.integers(0, 400), max_size=6)


def feed_all(parser: ResponseParser, pieces: list[bytes]) -> None:
    for piece in pieces:
        parser.feed(piece)


@settings(deadline=None)
@given(responses(), cuts)
def test_a_response_is_what_h11_reads_however_it_is_sliced(data: bytes, cuts: list[int]):
    assert by_ours(sliced(data, cuts)) == by_h11(data)


@settings(deadline=None)
@given(responses(), st.integers(0, 400), cuts)
def test_a_response_that_is_cut_anywhere_is_as_whole_as_h11_finds_it(
    data: bytes, end: int, cuts: list[int]
):
    data = data[: end % (len(data) + 1)]

    ours, theirs = by_ours(sliced(data, cuts)), by_h11(data)

    assert (ours.whole, ours.body) == (theirs.whole, theirs.body)


@settings(deadline=None)
@given(responses(), st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3))), cuts)
def test_a_garbled_response_is_read_alike_however_it_is_sliced(
    data: bytes, faults: list[tuple[int, bytes]], cuts: list[int]
):
    for place, garbage in faults:
        at = place % (len(data) + 1)
        data = data[:at] + garbage + data[at + len(garbage) :]

    ours = by_ours(sliced(data, cuts))

    assert ours == by_ours([data])
    theirs = by_h11(data)
    if ours.whole and theirs.whole and ours.status == theirs.status:
        assert ours.body == theirs.body


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"a: b\r\n c\r\n\r\n",
        HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n",
        HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n",
        HEAD + b"content-length: +2\r\n\r\n",
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
        CHUNKED + b"0x2\r\nhi\r\n",
        CHUNKED + b"2 \r\nhi\r\n",
        CHUNKED + b"-1\r\nhi\r\n",
        CHUNKED + b"1" * 17 + b"\r\nhi",
        CHUNKED + b"2\r\nhi0\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
        b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        HEAD + b"a\0: b\r\n\r\n",
        HEAD + b"a: " + b"x" * MAX_HEAD_BYTES,
        HEAD + b"a: b\r\n" * (MAX_HEAD_BYTES // 2) + b"\r\n",
        CHUNKED + b"0\r\na: " + b"x" * MAX_HEAD_BYTES,
        CHUNKED + b"2;" + b"x" * (MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_HEAD_BYTES,
    ],
    ids=lambda data: repr(data[:60]),
)
@pytest.mark.parametrize("step", [1 << 20, 1000])
def test_what_could_be_read_in_two_ways_is_refused(data: bytes, step: int):
    pieces = [data[start : start + step] for start in range(0, len(data), step)]

    with pytest.raises(httpx.RemoteProtocolError):
        feed_all(ResponseParser(), pieces)


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (HEAD + b"content-length: 2\r\n\r\nhi", True),
        (HEAD + b"content-length: 2\r\n\r\nhi!", False),
        (HEAD + b"content-length: 2\r\n\r\nhi" + HEAD, False),
        (HEAD + b"content-length: 2\r\nconnection: close\r\n\r\nhi", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", False),
        (HEAD + b"\r\nhi", False),
        (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", True),
    ],
)
def test_a_connection_is_reused_only_after_a_response_with_an_end_of_its_own(
    data: bytes, *, reusable: bool
):
    parser = ResponseParser()

    parser.feed(data)

    assert parser.take() == b"hi"
    assert parser.reusable is reusable


@pytest.mark.parametrize("line", [b"x: " + b"a" * 100_000, b"x: a\r\n" * 16_000 + b"y: b"])
def test_a_head_that_drips_in_reaches_the_parser_line_by_line(line: bytes):
    parser = ResponseParser()
    fed: list[int] = []
    feed = parser._parser.feed_data
    real = parser._parser

    def count(data: bytes) -> None:
        fed.append(len(data))
        feed(data)

    counting = SimpleNamespace(
        feed_data=count,
        get_status_code=real.get_status_code,
        get_http_version=real.get_http_version,
        should_keep_alive=real.should_keep_alive,
    )
    parser._parser = cast("Any", counting)
    head = HEAD + line + b"\r\ncontent-length: 1\r\n\r\n"

    for byte in head + b"z":
        parser.feed(bytes([byte]))

    assert parser.complete
    assert parser.take() == b"z"
    assert sum(fed) == len(head) + 1
    assert len(fed) <= len(HEAD) + line.count(b"\n") + 6


def test_a_server_that_speaks_something_else_is_found_out_at_once():
    with pytest.raises(httpx.RemoteProtocolError):
        ResponseParser().feed(b"SSH-2.0-O")
