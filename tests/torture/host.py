"""The real model host, which writes down what it sends and wedges on SIGUSR1.

Started like the original, with the records' folder as one more argument before the others. Wedged,
the process is alive, its heart beats on a thread of its own and its socket is open, but the thread
that takes the model's steps never takes another: what a deadlock in a native library looks like.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from typing_extensions import override

from orchestrator.runners.torch import host
from orchestrator.runners.torch.wire import Admit, Command, Completed, Produced, Report, Step
from tests.torture.record import Record

BEAT_SECONDS = 0.02


class RecordingLink(host.Link):
    """The host's link, with a record of what went through it."""

    def __init__(self, descriptor: int, record: Record) -> None:
        super().__init__(descriptor)
        self._record = record

    @override
    def receive(self, *, wait: bool) -> list[Command]:
        commands = super().receive(wait=wait)
        for command in commands:
            if isinstance(command, Admit):
                self._record.begin(command.stream, str(command.messages[-1]["content"]))
        return commands

    @override
    def send(self, report: Report) -> None:
        sizes = _text_sizes(report)
        for stream, size in sizes:
            self._record.announce(stream, size)
        super().send(report)
        for stream, size in sizes:
            self._record.sent(stream, size)


def _text_sizes(report: Report) -> list[tuple[int, int]]:
    if not isinstance(report, Step):
        return []
    return [
        (event.stream, len(event.text.encode()))
        for event in report.events
        if isinstance(event, Produced | Completed)
    ]


def wedge(_number: int, _frame: FrameType | None) -> None:
    """Runs in the thread that takes the steps, and keeps it."""
    while True:
        signal.pause()


def keep_beating(record: Record) -> None:
    """Beats until the process ends."""
    stop = threading.Event()
    while not stop.wait(BEAT_SECONDS):
        record.beat()


def begin_record() -> Record:
    """Takes the records' folder from the arguments; from here on the heart beats."""
    record = Record.create(Path(sys.argv.pop(1), str(os.getpid())))
    signal.signal(signal.SIGUSR1, wedge)
    threading.Thread(target=keep_beating, args=[record], daemon=True).start()
    return record


def main() -> None:
    """Runs the host until its parent lets go of it, or until it is broken."""
    record = begin_record()
    host.main(lambda descriptor: RecordingLink(descriptor, record))


if __name__ == "__main__":
    main()
