"""A small process that undoes what a run did to other processes, if the run itself is killed.

`python -m orchestrator.chaos.live.guardian`. It is told of every undo before the fault is done, a
line each, and to forget it afterwards. The end of its standard input means that the run is over,
however it ended; what it has been told by then and not to forget, it does.
"""

import contextlib
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from orchestrator.chaos.processes import Held, NotOursError, ProcessId

READY = b"ready\n"
END_SECONDS = 10.0


class Guardian:
    """The run's side of it; the process lives while the context is open."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<Guardian, {len(self._told)} undos>"

    def __enter__(self) -> Self:
        """Starts it and waits until it listens.

        Raises:
            OSError: It can't be started.
        """
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            (sys.executable, "-P", "-m", __name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # what interrupts the run must not interrupt its undoing
            bufsize=0,
        )
        if self._process.stdout is None or self._process.stdout.readline() != READY:
            self.__exit__(None, None, None)
            raise OSError("the guardian didn't start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    @property
    def pid(self) -> int:
        """Its process id; 0 while it isn't there."""
        return 0 if self._process is None else self._process.pid

    def remember(self, undo: str) -> None:
        """Tells an undo, before the fault; see `continuing`, `unlimited`, `few_files`.

        Raises:
            OSError: The guardian is gone, so nothing may be broken.
        """
        self._tell(f"+{undo}\n")
        self._told[undo] = None

    def forget(self, undo: str) -> None:
        """The undo was done."""
        self._told.pop(undo, None)
        with contextlib.suppress(OSError):
            self._tell(f"-{undo}\n")

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            raise OSError("the guardian isn't there")
        self._process.stdin.write(line.encode())


def continuing(process: ProcessId) -> str:
    """The undo of a stop."""
    return f"continue {process.pid} {process.started}"


def unlimited(process: ProcessId, soft: int, hard: int) -> str:
    """The undo of a limit on memory."""
    return f"limit {process.pid} {process.started} {soft} {hard}"


def few_files(process: ProcessId, soft: int, hard: int) -> str:
    """The undo of a limit on open files."""
    return f"files {process.pid} {process.started} {soft} {hard}"


def undo(lines: Iterable[str]) -> None:
    """Does what the lines say, each to the very process that it names."""
    for line in lines:
        what, *numbers = line.split()
        pid, started, *limits = map(int, numbers)
        with (
            contextlib.suppress(NotOursError, ProcessLookupError),
            Held(ProcessId(pid, started)) as held,
        ):
            match what:
                case "continue":
                    held.send(signal.SIGCONT)
                case "limit":
                    resource.prlimit(pid, resource.RLIMIT_AS, (limits[0], limits[1]))
                case "files":
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limits[0], limits[1]))
                case _:
                    pass


def main() -> None:
    """Listens until the run is over, then undoes what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    left: dict[str, None] = {}
    for line in sys.stdin:
        if line.startswith("+"):
            left[line[1:].strip()] = None
        else:
            left.pop(line[1:].strip(), None)
    undo(left)


if __name__ == "__main__":
    main()
