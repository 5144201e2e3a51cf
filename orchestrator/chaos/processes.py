"""Processes of this machine that may be broken: never by name, never outside of one tree.

A process id says little, for the process may have ended and its number may be another's by now. So
a pidfd is opened first, then start time and descent are checked, and every signal goes through it.
"""

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

MAX_DEPTH = 64
"""Generations between a process and the gateway; more is no tree of ours."""


class NotOursError(Exception):
    """The process isn't the one that was meant, or doesn't descend from the target."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """What names one process for ever."""

    pid: int
    started: int
    """Its start in clock ticks since boot; `proc_pid_stat(5)`, field 22."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has this number now.

        Raises:
            ProcessLookupError: There is none.
        """
        return cls(pid, int(_stat(pid)[19]))


def state_of(pid: int) -> str:
    """The kernel's letter for what it does (`T` is stopped); empty if there is no such process."""
    try:
        return _stat(pid)[0]
    except ProcessLookupError:
        return ""


def cpu_ticks(pid: int) -> int:
    """Processor time that it has used, in clock ticks.

    Raises:
        ProcessLookupError: There is no such process.
    """
    return sum(map(int, _stat(pid)[11:13]))


def parent_of(pid: int) -> int:
    """The number of its parent.

    Raises:
        ProcessLookupError: There is no such process.
    """
    return int(_stat(pid)[1])


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is below another one in the tree."""
    try:
        for _ in range(MAX_DEPTH):
            pid = parent_of(pid)
            if pid == ancestor:
                return True
            if pid <= 1:
                return False
    except ProcessLookupError:
        pass
    return False


class Held:
    """One process, held by a pidfd while the context is open.

    Args:
        which: Number and start time.
        below: The process that it must descend from.
    """

    def __init__(self, which: ProcessId, *, below: int | None = None) -> None:
        self.which = which
        self._below = below
        self._descriptor = -1

    def __repr__(self) -> str:
        return f"<Held {self.which.pid}>"

    def __enter__(self) -> Self:
        """Opens the pidfd, then checks whose it is.

        Raises:
            NotOursError: It is another process by now, or none of the target's.
        """
        which = self.which
        try:
            self._descriptor = os.pidfd_open(which.pid)
            ours = ProcessId.of(which.pid) == which
        except ProcessLookupError:
            self.close()
            raise NotOursError(f"process {which.pid} is gone") from None
        if not ours or not (self._below is None or descends(which.pid, self._below)):
            self.close()
            raise NotOursError(f"process {which.pid} isn't the one that was meant")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """The pidfd; it becomes readable when the process ends."""
        return self._descriptor

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; False if the process has ended."""
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return False
        return True

    def ended(self, within: float = 0.0) -> bool:
        """Whether it has ended; waits for it, blocking, if told to.

        Args:
            within: Seconds.
        """
        return bool(select.select([self._descriptor], [], [], within)[0])

    def close(self) -> None:
        """Lets go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the second may hold blanks.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise ProcessLookupError(pid) from None
    fields = text.rpartition(")")[2].split()
    if not fields:
        raise ProcessLookupError(pid)
    return fields
