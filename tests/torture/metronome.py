"""A model host without a model: starts in a moment, says one word a stream every few milliseconds.

In the place of the real one it shows what the other side does in hundreds of rounds, and how fast
it notices a death when the kernel has no gigabyte of memory to take apart first.
"""

import select
import sys

from typing_extensions import override

from orchestrator.events import FinishReason
from orchestrator.runners.torch.host import guard_against_orphanage
from orchestrator.runners.torch.wire import (
    Admit,
    Cancel,
    Completed,
    Load,
    Prefilled,
    Prepare,
    Prepared,
    Produced,
    Ready,
    Shutdown,
    Step,
    StreamEvent,
)
from tests.torture.host import RecordingLink, begin_record

STEP_SECONDS = 0.005
FACTS = Ready(
    context_length=1000,
    vocabulary=100,
    longest_token=10,
    dtype="float32",
    device="cpu",
    parameters=1,
    memory_bytes=4,
)


class Answer:
    """One stream: the words of its prompt and how often they came, in turns."""

    def __init__(self, admit: Admit) -> None:
        self._stream = admit.stream
        self._words = str(admit.messages[-1]["content"]).split()
        self._longest = admit.sampling.max_tokens or 1
        self._said = len(admit.resume)

    @override
    def __repr__(self) -> str:
        return f"<Answer {self._stream}, {self._said} of {self._longest}>"

    def go_on(self) -> StreamEvent:
        """The next word, or the last one."""
        text = f"{self._said} {self._words[self._said % len(self._words)]} "
        self._said += 1
        if self._said < self._longest:
            return Produced(self._stream, text, 0)
        return Completed(self._stream, text, FinishReason.LENGTH, len(self._words), self._longest)


def serve(link: RecordingLink) -> None:
    """Alternates commands and steps, as the real host does."""
    answers: dict[int, Answer] = {}
    while True:
        events: list[StreamEvent] = []
        for command in link.receive(wait=not answers):
            match command:
                case Admit(stream):
                    answers[stream] = Answer(command)
                    events.append(Prefilled(stream, 1, 1))
                case Cancel(stream):
                    answers.pop(stream, None)
                case Prepare():
                    link.send(Prepared())
                case Load():
                    link.send(FACTS)
                case Shutdown():
                    return
                case _:
                    raise SystemExit("no such command here")
        events += [answer.go_on() for answer in answers.values()]
        for event in events:
            if isinstance(event, Completed):
                del answers[event.stream]
        if events:
            link.send(Step(events))
        select.select([], [], [], STEP_SECONDS)


def main() -> None:
    """Runs it until its parent lets go of it, or until it is broken."""
    record = begin_record()
    guard_against_orphanage(int(sys.argv[2]))
    serve(RecordingLink(int(sys.argv[1]), record))


if __name__ == "__main__":
    main()
