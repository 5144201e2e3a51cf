"""What is said of a model host that died: how it ended, what it was at, its last words."""

import logging
import signal
from collections import deque

MAX_LINES = 20
MAX_LINE_BYTES = 500
TOLD_LINES = 3
"""Of the last lines, as many as become part of the error's text."""

logger = logging.getLogger(__name__)


class OutputTail:
    """The last lines of what a host printed; each is also logged at DEBUG.

    Args:
        pid: Of the host, for the log.
    """

    __slots__ = ("_pid", "_unfinished", "lines")

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._unfinished = b""
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        """Oldest first, each cut to 500 bytes."""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the output in."""
        # a progress bar returns to the start of its line and never ends it
        *whole, rest = (self._unfinished + data).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            self._keep(line)
        self._unfinished = rest[:MAX_LINE_BYTES]

    def close(self) -> None:
        """Takes an unfinished last line for a line."""
        self._keep(self._unfinished)
        self._unfinished = b""

    def _keep(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").strip()
        if text:
            self.lines.append(text)
            logger.debug("model host %s: %s", self._pid, text)


def describe_exit(returncode: int | None) -> str:
    """Says how a process ended.

    Args:
        returncode: As `Popen` has it: a code, minus a signal's number, or None if the process
            is still there.
    """
    if returncode is None:
        return "can't be killed: it hangs in the kernel"
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was ended by {name}"


def crash_report(*, pid: int, returncode: int | None, activity: str, tail: OutputTail) -> str:
    """Returns the text that becomes the error of every stream of that host.

    Args:
        pid: Of the host.
        returncode: See `describe_exit`.
        activity: What the host was at, to be read after "while".
        tail: What it printed.
    """
    text = f"the model host (pid {pid}) {describe_exit(returncode)} while {activity}"
    last_words = " | ".join(list(tail.lines)[-TOLD_LINES:])
    return f"{text}; its last words: {last_words}" if last_words else text
