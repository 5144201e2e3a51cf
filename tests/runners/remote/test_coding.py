"""Compressed bodies: any cut, several members, and those that stand for far too much."""

import gzip
import importlib
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import httpx
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UpstreamProtocolError, UpstreamServerError
from orchestrator.runners.remote.coding import decompressed
from tests.fakes.sse_server import Close, Send, SseServer, head
from tests.runners.remote.asking import asking

brotli: Any = importlib.import_module("brotli")  # no types come with it

LARGEST_STEP = 2 << 20
MAKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


async def pieces_of(reads: Sequence[bytes], header: str) -> list[bytes]:
    async def raw() -> AsyncGenerator[bytes]:
        for read in reads:
            yield read

    return [piece async for piece in decompressed(raw(), header)]


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@given(
    body=st.binary(max_size=400) | st.integers(0, 300_000).map(bytes),
    names=st.lists(st.sampled_from([*MAKERS]), min_size=1, max_size=3),
    size=st.integers(1, 5000),
)
@settings(deadline=None, max_examples=100)
async def test_any_body_in_any_codings_is_what_it_was_however_it_is_cut(
    body: bytes, names: list[str], size: int
):
    sent = body
    for name in names:
        sent = MAKERS[name](sent)

    pieces = await pieces_of(cut(sent, size), ", ".join(names))

    assert b"".join(pieces) == body


@pytest.mark.parametrize("name", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [1, 1 << 16])
async def test_members_that_follow_one_another_are_one_body(name: str, size: int):
    sent = b"".join(map(MAKERS[name], (b"Hel", b"", b"lo")))

    assert b"".join(await pieces_of(cut(sent, size), name)) == b"Hello"


async def test_what_follows_the_last_member_and_is_none_is_left_out():
    assert await pieces_of([gzip.compress(b"Hello") + b"\0\0"], "gzip") == [b"Hello"]


@pytest.mark.parametrize("size", [1, 1 << 16])
async def test_a_deflate_without_its_header_is_read_too(size: int):
    sent = zlib.compress(b"Hello" * 50)[2:-4]

    assert b"".join(await pieces_of(cut(sent, size), "Deflate")) == b"Hello" * 50


async def test_a_coding_that_nobody_knows_is_left_alone():
    assert await pieces_of([b"Hello"], "identity, utf-8") == [b"Hello"]


@pytest.mark.parametrize("name", MAKERS)
async def test_what_is_no_such_coding_is_a_decoding_error(name: str):
    with pytest.raises(httpx.DecodingError):
        await pieces_of([b"data: {}\n\n" * 9], name)


async def test_a_body_compressed_again_and_again_is_refused():
    with pytest.raises(httpx.DecodingError, match="5 times"):
        await pieces_of([b""], "gzip, gzip, br, zstd, gzip")


@pytest.mark.parametrize("name", MAKERS)
async def test_no_step_makes_more_than_others_can_wait_for(name: str):
    sent = MAKERS[name](bytes(8 << 20))

    pieces = await pieces_of([sent], name)

    assert sum(map(len, pieces)) == 8 << 20
    assert max(map(len, pieces)) < LARGEST_STEP


@pytest.mark.live
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("status", "error"), [(200, UpstreamProtocolError), (500, UpstreamServerError)]
)
async def test_a_few_bytes_that_stand_for_very_many_are_read_in_part(
    name: str, status: int, error: type[Exception]
):
    sent = MAKERS[name](b"data: " + bytes(17 << 20))
    start = head(status, framing="connection: close", extra=[f"content-encoding: {name}"])

    async with SseServer([Send(start + sent), Close()]) as server, asking(server) as asker:
        found = await asker.ask()

    assert isinstance(found.error, error)
