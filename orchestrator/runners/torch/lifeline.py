"""A host's death, told before the kernel has taken its memory apart.

A process that dies has its memory freed first and its files closed then: with a gigabyte in small
pages its socket ends 60 to 150 ms after the kill. But memory and files go thread by thread: the
last thread to let go of the memory frees it, and a thread with a table of files of its own closes
them right after. So the host has one more thread, which holds the writing end of a pipe in such a
table, and nothing else. If another thread is the last, the pipe ends within a millisecond; if it is
this one, the socket of all the others does.

Where the kernel has no such tables (before Linux 5.9, and elsewhere), the pipe ends with the
process, like the socket.
"""

import ctypes
import os
import threading
from pathlib import Path

CLOSE_RANGE_UNSHARE = 1 << 1
"""Gives the calling thread a table of its own first; `close_range(2)`. Unlike `unshare(2)` it is
allowed in containers."""
LAST_DESCRIPTOR = 0xFFFF_FFFF

STATE, FLAGS, EXIT_CODE = 0, 6, 49
"""Fields 3, 9 and 52 of `proc_pid_stat(5)`, counted from the state on."""
PF_EXITING = 0x4
"""The thread runs none of the program's code any more."""


def hold(descriptor: int) -> None:
    """Moves a descriptor into a thread of its own, where it stays open as long as the process.

    Args:
        descriptor: The pipe's writing end; this thread has it no longer when it was moved.
    """
    moved = threading.Event()
    result: list[bool] = []

    def keep() -> None:
        result.append(_keep_only(descriptor))
        moved.set()
        if result[0]:
            threading.Event().wait()

    threading.Thread(target=keep, name="lifeline", daemon=True).start()
    moved.wait()
    if result[0]:
        os.close(descriptor)


def _keep_only(descriptor: int) -> bool:
    """Leaves this thread with that one descriptor, and the other threads with all they have."""
    try:
        close_range = ctypes.CDLL(None).close_range
    except AttributeError:  # a C library older than the call
        return False
    close_range.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_int]
    if close_range(0, descriptor - 1, CLOSE_RANGE_UNSHARE) != 0:
        return False
    return close_range(descriptor + 1, LAST_DESCRIPTOR, 0) == 0


def exit_of(pid: int) -> int | None:
    """How a process ends that can't be reaped yet, in the words of `Popen.returncode`.

    Returns:
        None if its main thread still runs, or the system doesn't tell.
    """
    try:
        # the name in parentheses may hold anything, other parentheses too
        stat = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if not int(stat[FLAGS]) & PF_EXITING:
        return None
    # shown as 0 to whom the kernel doesn't trust; the process will tell itself when it is reaped
    return os.waitstatus_to_exitcode(int(stat[EXIT_CODE])) or None
