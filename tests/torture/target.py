"""A process that may be broken: held by a pidfd, checked to be ours, mended on the way out.

A process id says little: the process may have ended and its number may be another's by now. So the
pidfd is opened first, then start time and parent are checked, and every signal goes through it.
"""

import contextlib
import os
import select
import signal
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

GIVE_UP_SECONDS = 120.0
NUMBERS = {
    "kill": signal.SIGKILL,
    "segv": signal.SIGSEGV,
    "stop": signal.SIGSTOP,
    "wedge": signal.SIGUSR1,
}
"""What breaks a host of `tests.torture.host`, by the fault's name."""
DEATHS = ("kill", "segv")
"""These end the process at once; the others only stop its progress."""


class NotOursError(Exception):
    """The process isn't a child of this one, or isn't the one that was meant."""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the second may hold blanks."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return text.rpartition(")")[2].split()


def stopped(pid: int) -> bool:
    """Whether the kernel shows the process as stopped."""
    try:
        return _stat(pid)[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def started_at(pid: int) -> int:
    """Start of the process in ticks since boot, which makes a process id unique."""
    return int(_stat(pid)[19])


class Target:
    """One child process.

    Args:
        pid: Its process id.
        started: Its start time when it was first seen.
    """

    def __init__(self, pid: int, started: int) -> None:
        self.pid = pid
        self._started = started
        self._descriptor = -1
        self._watch: threading.Thread | None = None
        self.ended_at: float | None = None
        """When the kernel said that it had ended, on the clock of `time.perf_counter`."""

    def __enter__(self) -> Self:
        self._descriptor = os.pidfd_open(self.pid)
        if int(_stat(self.pid)[1]) != os.getpid() or started_at(self.pid) != self._started:
            os.close(self._descriptor)
            raise NotOursError(f"process {self.pid} is not the child that was meant")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.mend()
        if self._watch is not None:
            self._watch.join()
        os.close(self._descriptor)

    def inject(self, fault: str) -> float:
        """Breaks it; returns when, on the clock of `time.perf_counter`."""
        # not on the loop: it must not learn of the end in order to note when it was
        self._watch = threading.Thread(target=self._note_the_end, name="pidfd", daemon=True)
        self._watch.start()
        at = time.perf_counter()
        signal.pidfd_send_signal(self._descriptor, NUMBERS[fault])
        return at

    def mend(self) -> None:
        """Lets a stopped process go on; a wedged one can only be ended, which its parent does."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGCONT)

    def _note_the_end(self) -> None:
        if select.select([self._descriptor], [], [], GIVE_UP_SECONDS)[0]:
            self.ended_at = time.perf_counter()
