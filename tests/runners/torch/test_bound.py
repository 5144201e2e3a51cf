"""A host keeps to the memory and the place in the queue for the processor that it was given."""

import asyncio
import subprocess
import sys

import pytest

from orchestrator.errors import WorkerStartError
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings
from tests.fakes import model_host

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


async def test_a_host_that_dies_under_a_limit_tells_the_limit() -> None:
    settings = TorchSettings(model="dies", memory=300 << 20)
    made = factory(settings, on_progress=lambda _: None, program=model_host.PROGRAM)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(WorkerStartError) as failure:
                await made.create().start()
    finally:
        await made.aclose()

    assert "no memory left" in failure.value.message
    assert failure.value.message.endswith("it may take 300 MiB of memory at the most")
