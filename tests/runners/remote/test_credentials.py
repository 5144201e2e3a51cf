import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.chaos.simulation.world import run
from orchestrator.errors import UpstreamAuthenticationError
from orchestrator.runners.remote.credentials import (
    MAX_MARGIN,
    Credential,
    Key,
    file_source,
    key_from,
)


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


async def test_a_file_is_changed_when_it_was_written_or_replaced_and_only_then(tmp_path: Path):
    path = written(tmp_path / "key", "one\r\n")
    source = file_source(path)

    assert (await source.fetch()).secret == "one"
    assert not source.changed()
    written(path, "two-longer")
    assert source.changed()
    assert (await source.fetch()).secret == "two-longer"
    os.utime(path, ns=(1, 1))
    assert source.changed()


async def test_a_mounted_secret_whose_link_moves_is_another_file(tmp_path: Path):
    written(tmp_path / "first", "aaa")
    written(tmp_path / "second", "bbb")
    link = tmp_path / "key"
    link.symlink_to("first")
    source = file_source(link)
    await source.fetch()

    link.unlink()
    gone = source.changed()
    link.symlink_to("second")

    assert not gone
    assert source.changed()
    assert (await source.fetch()).secret == "bbb"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"two\nlines", "no header can carry"),
        ("schl\u00fcssel".encode(), "no header can carry"),
        (b"\xff\xfe", "isn't text"),
    ],
)
async def test_a_file_without_a_key_in_it_is_told_without_its_text(
    tmp_path: Path, content: bytes, told: str
):
    path = written(tmp_path / "key", content)

    with pytest.raises(UpstreamAuthenticationError, match=told) as caught:
        await file_source(path).fetch()

    assert str(path) in caught.value.message
    assert "lines" not in caught.value.message
    assert caught.value.__cause__ is None


async def test_a_pipe_is_not_read_again_for_that_would_block(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(UpstreamAuthenticationError, match="no regular file"):
        async with asyncio.timeout(5):
            await file_source(path).fetch()


async def test_a_file_that_is_not_there_is_told_with_the_reason(tmp_path: Path):
    with pytest.raises(UpstreamAuthenticationError, match="No such file"):
        await file_source(tmp_path / "none").fetch()


@given(st.floats(0.001, 1e6))
@settings(deadline=None)
def test_a_key_is_renewed_before_its_end_and_not_much_before(lifetime: float):
    async def main() -> float:
        await asyncio.sleep(0)
        return key_from("k", "x", lifetime=lifetime).renew_at - asyncio.get_running_loop().time()

    renewed_after = run(0, main)

    assert 0.89 * lifetime - 1e-6 <= renewed_after + MAX_MARGIN
    assert renewed_after < lifetime
    assert renewed_after >= min(0.89 * lifetime, lifetime - MAX_MARGIN) - 1e-3


async def test_a_credential_that_nobody_renews_says_so_and_keeps_its_key(tmp_path: Path):
    credential = Credential(file_source(tmp_path / "key"), "k0")

    with pytest.raises(UpstreamAuthenticationError, match="nobody fetches"):
        await credential.renew("k0")
    await credential.renew("another")  # which it isn't any more

    assert credential.read() == "k0"


def test_nothing_shows_what_a_key_is(tmp_path: Path):
    credential = Credential(file_source(tmp_path / "key"), "hush")

    assert "hush" not in repr(Key("hush")) + repr(credential) + repr(credential.key)
    assert repr(credential) == f"<Credential from file {tmp_path / 'key'}, held>"
