"""How much a deployment's host may hold: counted in texts and tokens, the incoming ones included.

Requests differ by three orders of magnitude, so their number says little. The room is taken in one
synchronous step, so that no number of callers at once gets more than there is.
"""

from collections.abc import Generator
from contextlib import contextmanager

from orchestrator.errors import QueueFullError, RequestTooLargeError


class Room:
    """What is left of it.

    Args:
        items: Texts that may be held.
        tokens: Tokens that they may have together.
    """

    __slots__ = ("_items", "_most_items", "_most_tokens", "_tokens")

    def __init__(self, *, items: int, tokens: int) -> None:
        self._most_items = items
        self._most_tokens = tokens
        self._items = 0
        self._tokens = 0

    def __repr__(self) -> str:
        return (
            f"<Room {self._items}/{self._most_items} texts,"
            f" {self._tokens}/{self._most_tokens} tokens>"
        )

    def check(self, items: int, tokens: int) -> None:
        """Looks whether so much could ever be held.

        Raises:
            RequestTooLargeError: It is more than all the room there is.
        """
        if items > self._most_items or tokens > self._most_tokens:
            raise RequestTooLargeError(
                f"{items} texts of about {tokens} tokens are more than this model takes at once: "
                f"{self._most_items} texts, {self._most_tokens} tokens",
                param="input",
            )

    @contextmanager
    def taken(self, items: int, tokens: int) -> Generator[None]:
        """Holds so much until the block is left.

        Raises:
            QueueFullError: There is no room for it now.
        """
        if self._items + items > self._most_items or self._tokens + tokens > self._most_tokens:
            raise QueueFullError(
                f"the model holds {self._items} texts of about {self._tokens} tokens; there is no "
                f"room for {items} more of {tokens}"
            )
        self._items += items
        self._tokens += tokens
        try:
            yield
        finally:
            self._items -= items
            self._tokens -= tokens
