"""A host keeps to the memory and the place in the queue for the processor that it was given."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import WorkerCrashedError, WorkerStartError
from orchestrator.runners.torch.host import session_niceness
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings
from tests.fakes import model_host
from tests.runners.torch.asking import answer, request

PROGRAM = """
import os
from orchestrator.runners.torch.host import bound
from orchestrator.runners.torch.settings import TorchSettings
before = os.nice(0)
bound(TorchSettings(model="m", memory=256 << 20, niceness=3))
try:
    bytearray(512 << 20)
except MemoryError:
    print("refused", end=" ")
bytearray(64 << 20)
print(min(19, before + 3) - os.nice(0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such limit")
def test_an_allocation_beyond_the_limit_fails_and_a_smaller_one_still_does_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=50
    )

    assert done.stdout == "refused 0\n"


SESSION = """
import os
from orchestrator.runners.torch.host import bound, session_niceness
from orchestrator.runners.torch.settings import TorchSettings
bound(TorchSettings(model="m", niceness=3))
parent = session_niceness(open(f"/proc/{os.getppid()}/autogroup").read())
print(min(19, parent + 3) - session_niceness(open("/proc/self/autogroup").read()))
"""


@pytest.mark.parametrize(
    ("autogroup", "niceness"),
    [
        ("/autogroup-25 nice 5\n", 5),
        ("/autogroup-25 nice -11\n", -11),
        ("", None),  # a control group with a share of its own
        ("/autogroup-25", None),
    ],
)
def test_the_niceness_of_a_session_is_read_where_sessions_are_scheduled_at_all(
    autogroup: str, niceness: int | None
) -> None:
    assert session_niceness(autogroup) == niceness


def sessions_are_scheduled() -> bool:
    file = Path("/proc/self/autogroup")
    if not os.access(file, os.W_OK):  # nor in a container with a /proc to read only
        return False
    return session_niceness(file.read_text("utf-8")) is not None


@pytest.mark.skipif(not sessions_are_scheduled(), reason="no sessions are scheduled")
def test_a_host_stands_back_with_its_session_for_linux_shares_the_processor_out_by_those() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
        start_new_session=True,
    )

    assert done.stdout == "0\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such limit")
async def test_a_host_that_wants_more_than_its_limit_ends_alone_and_the_limit_is_told() -> None:
    limited = factory(
        TorchSettings(model="fake", memory=300 << 20),
        on_progress=lambda _: None,
        program=model_host.PROGRAM,
    )
    other = factory(
        TorchSettings(model="fake"), on_progress=lambda _: None, program=model_host.PROGRAM
    )
    one, another = limited.create(), other.create()
    try:
        async with asyncio.timeout(20):
            await asyncio.gather(one.start(), another.start())
            with pytest.raises(WorkerCrashedError) as crash:
                await answer(one, request("eat"))
            text, _ = await answer(another, request("say 2"))
            again = limited.create()
            await again.start()
            after, _ = await answer(again, request("say 1"))
    finally:
        await limited.aclose()
        await other.aclose()

    assert "MemoryError" in crash.value.message
    assert crash.value.message.endswith("it may take 300 MiB of memory at the most")
    assert (text, after) == ("0 end", "end")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such limit")
async def test_a_load_beyond_the_limit_is_a_failed_start_that_tells_the_limit() -> None:
    failure = await failed_start(TorchSettings(model="hungry", memory=300 << 20))

    assert "MemoryError" in failure
    assert failure.endswith("it may take 300 MiB of memory at the most")


async def test_a_host_that_dies_under_a_limit_tells_the_limit() -> None:
    failure = await failed_start(TorchSettings(model="dies", memory=300 << 20))

    assert "no memory left" in failure
    assert failure.endswith("it may take 300 MiB of memory at the most")


async def failed_start(settings: TorchSettings) -> str:
    made = factory(settings, on_progress=lambda _: None, program=model_host.PROGRAM)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(WorkerStartError) as failure:
                await made.create().start()
    finally:
        await made.aclose()
    return failure.value.message
