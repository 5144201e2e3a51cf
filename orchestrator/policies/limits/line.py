"""Who takes the next permit of a key that several deployments send.

Each asks for the first of its own queue. Whoever gets no permit stands in line, and nobody goes
before the first: else the small requests of one deployment would take, one by one, the room that a
large request of another one waits for. Who has got a permit stands behind the others with its next
request. Whoever waits no more must leave, or the others would wait for it for ever.
"""

from collections.abc import Callable


class Line:
    """Those who wait, in the order in which they came."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<Line of {len(self._waiting)}>"

    def lets(self, who: object) -> bool:
        """Whether it may ask: nobody else is first."""
        return not self._waiting or next(iter(self._waiting)) is who

    def join(self, who: object, wake: Callable[[], None]) -> None:
        """Stands at the end, or stays where it stands; is woken when it is worth asking again."""
        self._waiting.setdefault(who, wake)

    def leave(self, who: object) -> None:
        """Waits no more; if it was the first, the next one is woken."""
        was_first = bool(self._waiting) and self.lets(who)
        if self._waiting.pop(who, None) is not None and was_first:
            self.wake()

    def wake(self) -> None:
        """Something was given back: the first may have what it waits for."""
        if self._waiting:
            next(iter(self._waiting.values()))()
