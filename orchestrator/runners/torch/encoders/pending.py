"""Texts that wait for the model: put in by one thread, taken out whole windows at a time by one.

Requests take turns, text by text, so that a single one doesn't wait for thousands of another. What
it costs to take some out doesn't depend on how many wait. A canceled request's texts are dropped
where they are met, and never run.
"""

import threading
from collections import deque
from collections.abc import Sequence

from orchestrator.runners.torch.wire import Encode, StreamEvent


class Reading:
    """One request whose texts are being read.

    Args:
        asked: What it wants.
    """

    __slots__ = ("asked", "dropped", "left", "tokens", "waiting")

    def __init__(self, asked: Encode) -> None:
        self.asked = asked
        self.waiting: deque[Text] = deque()
        self.left = len(asked.texts)
        """Texts without a result."""
        self.tokens = 0
        """Of all texts together."""
        self.dropped = False
        """Whether nobody wants the rest any more."""

    @property
    def stream(self) -> int:
        """Its number."""
        return self.asked.stream


class Text:
    """One text of a request, as the model reads it.

    Args:
        reading: The request.
        place: Which of its texts.
        tokens: What the tokenizer made of it.
        kinds: Of each token, whether it belongs to the first text (0) or the second (1).
    """

    __slots__ = ("kinds", "place", "reading", "tokens")

    def __init__(
        self, reading: Reading, place: int, tokens: Sequence[int], kinds: Sequence[int]
    ) -> None:
        self.reading = reading
        self.place = place
        self.tokens = tokens
        self.kinds = kinds

    @property
    def key(self) -> tuple[str | None, str]:
        """What its result depends on."""
        asked = self.reading.asked
        return asked.query, asked.texts[self.place]


class Pending:
    """All requests that aren't read to the end; its methods may be called from two threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turns: deque[Reading] = deque()
        self._open: dict[int, Reading] = {}
        self._said: list[StreamEvent] = []
        self._heard = False  # of a cancel, which is answered too: the parent counts who is silent
        self._over = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, reading: Reading) -> None:
        """Puts a request with all its texts at the end of the round."""
        with self._changed:
            self._open[reading.stream] = reading
            self._turns.append(reading)
            self._changed.notify()

    def say(self, event: StreamEvent) -> None:
        """Has the reading thread tell this with what it tells next."""
        with self._changed:
            self._said.append(event)
            self._changed.notify()

    def drop(self, stream: int) -> bool:
        """Forgets a request; returns whether it was there."""
        with self._changed:
            self._heard = True
            self._changed.notify()
            reading = self._open.pop(stream, None)
            if reading is None:
                return False
            reading.dropped = True
            return True

    def end(self) -> None:
        """Lets whoever takes texts out know that there will be no more."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def streams(self) -> list[int]:
        """The numbers of the requests that aren't read to the end."""
        with self._changed:
            return list(self._open)

    def take(self, tokens: int) -> tuple[list[Text], list[StreamEvent]] | None:
        """Waits for something to read, say or answer; returns texts of about so many tokens.

        Returns:
            None when there will be no more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._turns or self._said or self._heard or self._over)
            if self._over:
                return None
            self._heard = False
            said, self._said = self._said, []
            texts: list[Text] = []
            while self._turns and tokens > 0:
                reading = self._turns.popleft()
                if reading.dropped:
                    continue
                text = reading.waiting.popleft()
                tokens -= len(text.tokens)
                texts.append(text)
                if reading.waiting:
                    self._turns.append(reading)
            return texts, said
