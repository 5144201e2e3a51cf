"""Who takes the next permit of a key that several deployments send.

Each asks for the first of its own queue, at that one's level: its class, and what waiting has added
to it. Whoever gets no permit stands in line: the highest level first, those of one level as they
came. Nobody goes before the first but who is of a higher level: else the small requests of one
deployment would take, one by one, the room that a large request of another one waits for. Levels
rise up to the top, so none is overtaken for ever. Who has got a permit stands behind its equals
with its next request. Whoever waits no more must leave, or the others would wait for it.

The first has asked, or been woken, since it became so; hence nobody else needs a timer. As few
stand here as there are deployments with that key, so they are looked at one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Waiter:
    wake: Callable[[], None]
    level: int


class Line:
    """Those who wait."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[object, _Waiter] = {}  # as they came

    def __repr__(self) -> str:
        return f"<Line of {len(self._waiting)}>"

    def lets(self, who: object, level: int) -> bool:
        """Whether it may ask for one of that level: nobody else goes before it."""
        came_before = True
        for other, waiter in self._waiting.items():
            if other is who:
                came_before = False
            elif waiter.level > level or (came_before and waiter.level == level):
                return False
        return True

    def join(self, who: object, wake: Callable[[], None], level: int) -> None:
        """Stands in line, or stays where it stands; is woken when it is worth asking again."""
        before = self._first
        waiter = self._waiting.setdefault(who, _Waiter(wake, level))
        waiter.level = level
        if self._first not in (before, who):  # it waited for a more urgent one that has gone
            self.wake()

    def leave(self, who: object) -> None:
        """Waits no more; if it was the first, the next one is woken."""
        was_first = self._first is who
        if self._waiting.pop(who, None) is not None and was_first:
            self.wake()

    def wake(self) -> None:
        """Something was given back: the first may have what it waits for."""
        if self._waiting:
            self._waiting[self._first].wake()

    @property
    def _first(self) -> object:
        """Of those of the highest level the one that came first; None if nobody waits."""
        return max(self._waiting, key=lambda who: self._waiting[who].level, default=None)
