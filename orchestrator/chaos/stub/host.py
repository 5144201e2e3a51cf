"""A model host without a model: it starts at once, counts, and can be broken like a real one.

It speaks the real wire protocol in a process of its own, `python -m orchestrator.chaos.stub.host`,
so that all around it is what it is with a model: socket, leases, kills and restarts. SIGUSR1 wedges
it: the process lives and its work stands still.
"""

import signal
import sys
import threading

from orchestrator.chaos.stub.words import asked, word
from orchestrator.events import FinishReason
from orchestrator.runners.torch.host import Link, guard_against_orphanage
from orchestrator.runners.torch.wire import (
    Admit,
    Cancel,
    Command,
    Completed,
    Count,
    Counted,
    Load,
    Loading,
    Prepare,
    Prepared,
    Produced,
    Ready,
    Shutdown,
    Step,
    StreamEvent,
)

STEP_SECONDS = 0.01
STREAM_BYTES = 4 << 20
"""What a stream takes of memory, as a model's cache does."""
FACTS = Ready(
    context_length=100_000,
    vocabulary=1000,
    longest_token=16,
    dtype="float32",
    device="cpu",
    parameters=1,
    memory_bytes=4,
)


class _Stream:
    def __init__(self, number: int, text: str, said: int) -> None:
        self.number = number
        self.tokens, self.name = asked(text)
        self.said = said
        self.cache = bytearray(STREAM_BYTES)

    def next(self) -> StreamEvent:
        text = word(self.said, self.name) if self.tokens else ""
        self.said += 1
        if self.said >= self.tokens:
            return Completed(self.number, text, FinishReason.STOP, 3, self.tokens)
        return Produced(self.number, text, 0)


class StubHost:
    """Counts for all that ask, a token a step.

    Args:
        link: The host's end of the socket.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._streams: dict[int, _Stream] = {}
        self._pace = threading.Event()

    def serve(self) -> None:
        """Works until told to end."""
        while True:
            events: list[StreamEvent] = []
            heard = False
            for command in self._link.receive(wait=not self._streams):
                if isinstance(command, Shutdown):
                    return
                events.extend(self._take(command))
                heard = heard or isinstance(command, Cancel)
            for stream in list(self._streams.values()):
                events.append(stream.next())
                if stream.said >= stream.tokens:
                    del self._streams[stream.number]
            if events or heard:
                self._link.send(Step(events))
            self._pace.wait(STEP_SECONDS)

    def _take(self, command: Command) -> list[StreamEvent]:
        match command:
            case Admit():
                text = str(command.messages[-1]["content"])
                self._streams[command.stream] = _Stream(command.stream, text, len(command.resume))
            case Cancel(stream):
                self._streams.pop(stream, None)
            case Count(stream):
                return [Counted(stream, 3)]
            case _:
                pass
        return []


def wedge(_number: int, _frame: object) -> None:
    """Stands still for ever, as a thread in an endless native call does."""
    while True:
        threading.Event().wait()


def main() -> None:
    """Runs the host until its parent lets go of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, wedge)
    guard_against_orphanage(int(sys.argv[2]))
    link = Link(int(sys.argv[1]))
    load, *later = link.receive(wait=True)
    if isinstance(load, Prepare):
        link.send(Prepared())
        (load,) = later or link.receive(wait=True)
    if isinstance(load, Load):
        link.send(Loading("counting"))
        link.send(FACTS)
        StubHost(link).serve()


if __name__ == "__main__":
    main()
