"""An engine without a process, and what it says."""

import json
from collections.abc import Sequence
from typing import Any, cast

from orchestrator.runners.torch.encoders.engine import EncoderEngine
from orchestrator.runners.torch.encoders.model import Encoder
from orchestrator.runners.torch.encoders.pending import Pending
from orchestrator.runners.torch.encoders.words import RefusedError, read
from orchestrator.runners.torch.wire import Completed, Encode, Encoded, Refused, StreamEvent


class Asked:
    """An engine that is asked and run by hand."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.pending = Pending()
        self.events: list[StreamEvent] = []
        self.steps: list[list[StreamEvent]] = []
        self.engine = EncoderEngine(encoder, self.pending, self._tell)

    def _tell(self, events: list[StreamEvent]) -> None:
        self.steps.append(events)
        self.events.extend(events)

    def ask(self, asked: Encode) -> None:
        try:
            self.pending.add(read(self.encoder, asked))
        except RefusedError as error:
            self.pending.say(error.refused)
            self.engine.step()

    def run(self) -> None:
        """Reads all that waits."""
        while len(self.pending):
            self.engine.step()

    def results(self, stream: int = 0) -> list[object]:
        """The results of a request in the order of its texts."""
        found: dict[int, object] = {}
        for event in self.events:
            if isinstance(event, Encoded) and event.stream == stream:
                for place, result in zip(event.places, event.results, strict=True):
                    assert place not in found
                    found[place] = json.loads(result)
        assert sorted(found) == list(range(len(found)))
        return [found[place] for place in sorted(found)]

    def vectors(self, stream: int = 0) -> list[list[float]]:
        told = cast("list[dict[str, list[float]]]", self.results(stream))
        return [result["embedding"] for result in told]

    def ending(self, stream: int = 0) -> Completed | Refused:
        (ending,) = [
            event
            for event in self.events
            if isinstance(event, Completed | Refused) and event.stream == stream
        ]
        return ending


def answered(encoder: Encoder, texts: Sequence[str], **how: Any) -> Asked:
    asked = Asked(encoder)
    asked.ask(Encode(0, list(texts), **how))
    asked.run()
    return asked
