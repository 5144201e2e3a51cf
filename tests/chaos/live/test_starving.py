"""File descriptors are taken from the very process that was meant, and given back."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from orchestrator.chaos.live.guardian import Guardian, few_files, undo
from orchestrator.chaos.live.starving import Starving
from orchestrator.chaos.live.strain import Strain
from orchestrator.chaos.processes import ProcessId

pytestmark = pytest.mark.live

OPENS = (
    "import sys; files = []\n"
    "for _ in sys.stdin:\n"
    "    try:\n"
    "        files.append(open('/dev/null')); print('open', flush=True)\n"
    "    except OSError as error:\n"
    "        print(error.errno, flush=True)\n"
)


class Opener:
    """A child that opens one more file whenever it is asked to."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            (sys.executable, "-c", OPENS), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.opens()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def process(self) -> ProcessId:
        return ProcessId.of(self._process.pid)

    def opens(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"more\n")
        return self._process.stdout.readline().decode().strip()


def test_a_process_may_open_as_many_files_as_are_left_to_it_and_all_of_them_afterwards() -> None:
    with Opener() as opener, Guardian() as guardian:
        starving = Starving(opener.process, guardian)
        limit = starving.begin(2)
        before = starving.exhausted(limit)
        opened = [opener.opens() for _ in range(3)]
        during = starving.exhausted(limit)
        starving.end()
        after = opener.opens()

    assert opened == ["open", "open", "24"]
    assert (before, during) == (False, True)
    assert after == "open"


def test_the_guardian_gives_the_files_back_to_the_process_that_it_was_told_of() -> None:
    with Opener() as opener:
        process = opener.process
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, hard))
        refused = opener.opens()
        undo([few_files(process, soft, hard)])
        granted = opener.opens()

    assert (refused, granted) == ("24", "open")


def test_a_process_that_had_all_the_cores_it_wanted_shows_no_strain() -> None:
    strain = Strain((os.getpid(), 2**22 + 1))

    assert 0.0 <= strain.share <= 1.0
    assert "of 1 processes" in repr(strain)
    assert Path("/proc/self/schedstat").exists()
