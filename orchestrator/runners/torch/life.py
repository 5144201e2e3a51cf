"""Whether a process that says nothing still works: judged from outside, by what the kernel counts.

A host could beat a drum from a second thread, but that thread outlives a wedged first one. What it
has computed and read can't be feigned. Where the kernel doesn't tell, a process is taken for alive.
"""

import os
from pathlib import Path

WORKING_STATES = frozenset({"R", "D"})
"""It wants the processor, or waits for a disk: slow, and no fault of its own (`proc_pid_stat(5)`,
field 3)."""
CPU_FIELDS = slice(11, 15)
"""utime, stime and those of the children it has waited for; `proc_pid_stat(5)`, fields 14 to 17,
counted from the state on. In clock ticks of 10 ms: what an idle thread uses doesn't add up to
one."""


PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """The memory that a process has now, what it shares with others included; 0 if unknown."""
    try:
        # second of the sizes in pages, `proc_pid_statm(5)`
        return int(Path("/proc", str(pid), "statm").read_bytes().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):  # no such system, or no such process any more
        return 0


class SignsOfLife:
    """What a process has done, from one look to the next.

    Args:
        pid: Of the process.
    """

    __slots__ = ("_cpu", "_folder", "_read")

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc", str(pid))
        self._cpu = 0
        self._read = b""

    def seen(self) -> bool:
        """Whether it has worked since the last look, or does right now."""
        try:
            # the name in parentheses may hold anything, other parentheses too
            stat = (self._folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return True  # no such system, or no such process, which is noticed by its socket
        cpu, read = sum(map(int, stat[CPU_FIELDS])), self._bytes_read()
        worked = cpu != self._cpu or read != self._read
        self._cpu, self._read = cpu, read
        return worked or stat[0].decode() in WORKING_STATES

    def _bytes_read(self) -> bytes:
        try:
            return (self._folder / "io").read_bytes()
        except OSError:  # a container may keep it to itself
            return b""
