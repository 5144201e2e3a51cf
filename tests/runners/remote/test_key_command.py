import asyncio
import os
import sys
from pathlib import Path

import pytest

from orchestrator.errors import UpstreamAuthenticationError
from orchestrator.runners.remote.credentials import Key
from orchestrator.runners.remote.key_command import command_source


async def fetched(*command: str, ttl: float = 600.0) -> Key:
    async with asyncio.timeout(5):
        return await command_source(command, ttl).fetch()


async def test_what_a_command_prints_is_the_key_until_its_time_is_over():
    now = asyncio.get_running_loop().time()

    key = await fetched("printf", "  %s\n", "k-1", ttl=100.0)

    assert key.secret == "k-1"
    assert 89 < key.renew_at - now < 95


async def test_no_shell_reads_a_command():
    key = await fetched("echo", "$(id)", "&&", "true")

    assert key.secret == "$(id) && true"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("/nowhere/at-all", "hush"), "can't be run: No such file"),
        (("/", "hush"), "can't be run"),
        (("sh", "-c", "echo hush; echo hush >&2; exit 3"), "failed with exit code 3"),
        (("sh", "-c", "kill -9 $$"), "failed with exit code -9"),
        (("true", "hush"), "is empty"),
        (("printf", "hush\nhush"), "no header can carry"),
        (("printf", "\\377hush"), "printed what is no text"),
        (("sh", "-c", "yes hush"), "printed more than"),
    ],
)
async def test_a_command_without_a_key_is_told_without_what_it_says(
    command: tuple[str, ...], told: str
):
    with pytest.raises(UpstreamAuthenticationError, match=told) as caught:
        await fetched(*command)

    assert command[0] in caught.value.message
    assert "hush" not in caught.value.message


async def test_a_command_that_has_said_far_too_much_is_over_at_once():
    # in one write, which nobody can read from before it is whole: reading pauses after its first;
    # and it would live on, so that only being killed ends it
    says = "import fcntl, os, time; fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20);"
    says += "os.write(1, b'x' * (1 << 20)); time.sleep(60)"

    with pytest.raises(UpstreamAuthenticationError, match="printed more than"):
        await fetched(sys.executable, "-c", says)


async def test_a_command_that_is_given_up_is_killed_with_all_that_it_started(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    started, gone = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def heard() -> None:
        (started if os.read(end, 9) else gone).set()

    loop.add_reader(end, heard)
    # each process that lives holds the pipe open
    task = asyncio.create_task(fetched("sh", "-c", f"exec 3>'{fifo}'; sleep 60 & echo x >&3; wait"))

    async with asyncio.timeout(5):
        await started.wait()
        task.cancel()
        await gone.wait()
        await asyncio.wait([task])

    loop.remove_reader(end)
    os.close(end)
    assert task.cancelled()
