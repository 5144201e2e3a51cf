"""A model host without a model: it speaks the wire protocol and breaks on cue.

The settings' model says how it loads: `missing` fails, `dies` exits with code 7 and last words,
`wedged` never gets ready, `stopped` gets a SIGSTOP, `warns` warns and gets ready, `hungry` takes a
GiB, `reads` and `computes` go on for 2.5 s without a word and get ready then; anything else is
ready at once. A spare waits until it is told to load; with `spare-dies` it exits with code 9, with
`spare-wedged` it never gets that far, with `spare-stopped` it gets a SIGSTOP while it waits. The
last message says what a stream does:

    say 5        five tokens, then the end
    torn 5       two tokens, then SIGKILL; gone on with, the rest of five and the end
    wait         one token, then nothing until it is canceled
    slow         half a second, then one token and the end
    read 3       three pieces of prompt, then one token and the end
    refuse       the model fails on it, and on it alone
    eat          one token, then a GiB of memory
    exit         one token, last words, exit code 3
    kill         one token, then SIGKILL
    freeze       one token, then SIGSTOP
    babble       bytes that are no frame
    count        how many other streams are open
    echo         its own sampling seed
"""

import os
import signal
import sys
import threading
from pathlib import Path

from orchestrator.events import FinishReason
from orchestrator.runners.torch.host import Link, bound, guard_against_orphanage
from orchestrator.runners.torch.wire import (
    Admit,
    Cancel,
    Completed,
    Count,
    Counted,
    Encode,
    Load,
    LoadFailed,
    Loading,
    Prefilled,
    Prepare,
    Prepared,
    Produced,
    Ready,
    Refused,
    Shutdown,
    Step,
    StreamEvent,
    Warned,
)

PROGRAM = (sys.executable, "-P", str(Path(__file__).resolve()))
FACTS = Ready(
    context_length=1000,
    vocabulary=100,
    longest_token=10,
    dtype="float32",
    device="cpu",
    parameters=1,
    memory_bytes=4,
)


class FakeHost:
    def __init__(self, link: Link) -> None:
        self.link = link
        self.open: set[int] = set()

    def tell(self, *events: StreamEvent) -> None:
        self.link.send(Step(list(events)))

    def end(self, stream: int, text: str, tokens: int = 1) -> None:
        self.open.discard(stream)
        self.tell(Completed(stream, text, FinishReason.STOP, 3, tokens))

    def admit(self, admit: Admit) -> None:
        stream = admit.stream
        word, _, number = str(admit.messages[-1]["content"]).partition(" ")
        match word:
            case "torn" if not admit.resume:
                self.tell(Produced(stream, "0 ", 0), Produced(stream, "1 ", 1))
                os.kill(os.getpid(), signal.SIGKILL)
            case "say" | "torn":
                for index in range(len(admit.resume), int(number) - 1):
                    self.tell(Produced(stream, f"{index} ", index))
                self.end(stream, "end", int(number))
            case "wait":
                self.open.add(stream)
                self.tell(Produced(stream, "first", 0))
            case "slow":
                threading.Event().wait(0.5)
                self.end(stream, "slow")
            case "read":
                for done in range(int(number)):
                    self.tell(Prefilled(stream, done + 1, int(number)))
                self.end(stream, "read")
            case "refuse":
                self.tell(Refused(stream, "failed", "the model failed: RuntimeError: on cue"))
            case "count":
                self.end(stream, str(len(self.open)))
            case "echo":
                self.end(stream, str(admit.seed))
            case _:
                self.tell(Produced(stream, "first", 0))
                self.break_down(word)

    def break_down(self, how: str) -> None:
        match how:
            case "eat":
                bytearray(1 << 30)
            case "exit":
                sys.stderr.write("some line\nthese are my last words\n")
                sys.stderr.flush()
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                os.write(int(sys.argv[1]), b"\xff" * 8)

    def serve(self) -> None:
        while True:
            for command in self.link.receive(wait=True):
                match command:
                    case Admit():
                        self.admit(command)
                    case Cancel(stream):
                        self.open.discard(stream)
                        self.tell()
                    case Count(stream, messages, _):
                        self.tell(Counted(stream, len(str(messages[-1]["content"]))))
                    case Shutdown():
                        return
                    case Load() | Prepare() | Encode():
                        raise SystemExit("a host loads one model, and this one writes texts")


def work(how: str) -> None:
    ended = threading.Event()
    threading.Timer(2.5, ended.set).start()
    while not ended.is_set():
        if how == "reads":
            ended.wait(0.1)
            Path(__file__).read_bytes()


def prepare(link: Link, command: Prepare) -> None:
    link.send(Loading("pretending to prepare"))
    match command.settings.model:
        case "spare-dies":
            sys.stderr.write("no spare today\n")
            raise SystemExit(9)
        case "spare-wedged":
            signal.pause()
        case "spare-stopped":
            link.send(Prepared())
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            link.send(Prepared())


def main() -> None:
    link = Link(int(sys.argv[1]))
    guard_against_orphanage(int(sys.argv[2]))
    load, *later = link.receive(wait=True)
    if isinstance(load, Prepare):
        prepare(link, load)
        (load,) = later or link.receive(wait=True)
    assert isinstance(load, Load)
    link.send(Loading("pretending"))
    bound(load.settings)
    match load.settings.model:
        case "missing":
            link.send(LoadFailed("there is no such model"))
            raise SystemExit(1)
        case "dies":
            sys.stderr.write("no memory left\n")
            raise SystemExit(7)
        case "wedged":
            signal.pause()
        case "warns":
            link.send(Warned("something is odd"))
            link.send(FACTS)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "computes" | "reads":
            work(load.settings.model)
            link.send(FACTS)
        case "hungry":
            bytearray(1 << 30)
        case _:
            link.send(FACTS)
    FakeHost(link).serve()


if __name__ == "__main__":
    main()
