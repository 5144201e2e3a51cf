"""The routes of one time, and how many requests are still on their way by them.

A request goes by the routes that held when it came, to its end. So what a reload takes out of the
routes may be closed once nobody goes by the old ones any more, and no request ends because of it.
"""

from collections.abc import Callable, Mapping

from orchestrator.routing.route import Route


class Table:
    """Routes by name.

    Args:
        routes: They stay as they are; other routes are another table.
    """

    __slots__ = ("_on_empty", "_open", "routes")

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self._open = 0
        self._on_empty: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Table, {len(self.routes)} routes, {self._open} requests>"

    @property
    def empty(self) -> bool:
        """Whether nobody goes by them now."""
        return not self._open

    def enter(self) -> None:
        """A request goes by them."""
        self._open += 1

    def leave(self) -> None:
        """A request has ended."""
        self._open -= 1
        if not self._open and self._on_empty:
            told, self._on_empty = self._on_empty, []
            for callback in told:
                callback()

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Calls back once when nobody goes by them; at once if nobody does."""
        if self._open:
            self._on_empty.append(callback)
        else:
            callback()
