"""A program that prints the key: a password manager, a cloud's command line.

It is run without a shell, with nothing on its standard input, for a bounded time, and its output is
read up to a bound. What it says on standard error is told to nobody, since nobody knows what is in
it; its exit code is.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence

from orchestrator.errors import UpstreamAuthenticationError
from orchestrator.runners.remote.credentials import MAX_KEY_BYTES, Key, KeySource, key_from

ENDING_SECONDS = 1.0
"""For what was killed to be gone."""


def command_source(command: Sequence[str], ttl: float) -> KeySource:
    """A program whose standard output is the key.

    Args:
        command: The program and its arguments.
        ttl: Seconds that a key is good for.
    """
    what = f"command {command[0]}"  # an argument may be a secret

    async def fetch() -> Key:
        return key_from(await printed(command, what), what, lifetime=ttl)

    return KeySource(name=what, fetch=fetch)


async def printed(command: Sequence[str], what: str) -> str:
    """Runs a program and returns what it prints; a cancel kills it and all that it started.

    Args:
        command: The program and its arguments.
        what: Its name for people.

    Raises:
        UpstreamAuthenticationError: It can't be run, fails, or prints too much or no text.
    """
    try:
        process = await _start(command)
    except OSError as error:
        raise UpstreamAuthenticationError(f"{what} can't be run: {error.strerror}") from error
    try:
        output = await _output_of(process)
        if len(output) > MAX_KEY_BYTES:
            raise UpstreamAuthenticationError(f"{what} printed more than {MAX_KEY_BYTES} bytes")
        code = await process.wait()
    finally:
        await _end(process)
    if code != 0:
        raise UpstreamAuthenticationError(
            f"{what} failed with exit code {code}; run it by hand to see why"
        )
    try:
        return output.decode()
    except UnicodeDecodeError:
        # not chained: the cause would quote the key
        raise UpstreamAuthenticationError(f"{what} printed what is no text") from None


async def _start(command: Sequence[str]) -> Process:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,  # so that it can be killed with all that it started
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # asyncio would kill the program alone; it runs already, and a start is a matter of moments
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            await _end(starting.result())
        raise


async def _output_of(process: Process) -> bytes:
    output = bytearray()
    if process.stdout is not None:
        while len(output) <= MAX_KEY_BYTES and (read := await process.stdout.read(MAX_KEY_BYTES)):
            output += read
    return bytes(output)


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):  # it ended just now
        os.killpg(process.pid, signal.SIGKILL)
    # a killed process is gone within moments, but asyncio tells nobody before its output has ended,
    # and that is read no further once much of it lies here; whoever left the group may hold it open
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ENDING_SECONDS):
            while process.stdout is not None and await process.stdout.read(MAX_KEY_BYTES):
                pass
            await process.wait()
