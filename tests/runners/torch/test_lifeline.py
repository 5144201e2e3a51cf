"""A large process's death is told before its memory is freed, and told as what it was."""

import os
import select
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from orchestrator.runners.torch.lifeline import exit_of

GIGABYTE = 1 << 30
# holds its lifeline, then fills memory in small pages; says when it has
PROGRAM = """
import mmap, signal, sys
from orchestrator.runners.torch.lifeline import hold
hold(int(sys.argv[1]))
memory = mmap.mmap(-1, int(sys.argv[2]))
for start in range(0, len(memory), 1 << 20):
    memory[start : start + (1 << 20)] = bytes(1 << 20)
print("full", flush=True)
signal.pause()
"""


def large(held: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(held), str(GIGABYTE)],
        stdout=subprocess.PIPE,
        pass_fds=[held],
    )
    os.close(held)
    assert process.stdout is not None
    assert process.stdout.readline() == b"full\n"
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has tables of files by thread")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_end_of_a_large_process_is_seen_before_it_can_be_reaped(number: int) -> None:
    reading, held = os.pipe()
    with closing(os.fdopen(reading, "rb")) as lifeline, large(held) as process:
        assert exit_of(process.pid) is None
        os.kill(process.pid, number)

        # either ends at once, and never before the process is doomed
        assert process.stdout is not None
        ended, _, _ = select.select([lifeline, process.stdout], [], [], 5)
        reaped_by_then = process.poll()
        told = None
        while told is None and process.poll() is None:
            told = exit_of(process.pid)

        process.wait(5)
    assert ended
    assert reaped_by_then is None
    assert told == process.returncode == -number


def test_a_process_that_is_gone_tells_nothing_of_its_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(5)

    assert exit_of(process.pid) is None
