import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UpstreamProtocolError
from orchestrator.runners.remote.lines import LineDecoder
from orchestrator.runners.remote.sse import ServerSentEvent

BODIES = st.lists(
    st.sampled_from([b"\n", b"\r\n", b" ", b'{"a":1}', b"\xe4\xbd\xa0", b"x" * 40]), max_size=20
).map(b"".join)


@given(body=BODIES, places=st.lists(st.integers(0, 400), max_size=9))
@settings(deadline=None)
def test_any_cut_of_a_body_gives_the_lines_that_splitting_it_gives(body: bytes, places: list[int]):
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    decoder = LineDecoder()

    found = [
        event.data
        for start, end in itertools.pairwise(edges)
        for event in decoder.feed(body[start:end])
    ]

    *whole, rest = body.split(b"\n")
    assert found == [line for line in whole if line.strip()]
    assert decoder.flush() == (ServerSentEvent(rest) if rest.strip() else None)
    assert decoder.flush() is None


@pytest.mark.parametrize("size", [1, 20, 400])
def test_a_line_above_the_bound_is_refused_however_it_is_read(size: int):
    decoder = LineDecoder(max_line_bytes=32)
    body = b"a\n" + b"x" * 40 + b"\n"

    def feed_all() -> None:
        for start in range(0, len(body), size):
            decoder.feed(body[start : start + size])

    with pytest.raises(UpstreamProtocolError, match="larger than 32 bytes"):
        feed_all()


def test_the_decoder_says_in_words_where_it_stands():
    decoder = LineDecoder()

    decoder.feed(b"one\ntwo")

    assert repr(decoder) == "<LineDecoder, 3 bytes held>"
