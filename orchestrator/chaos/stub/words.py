"""Answers that prove themselves: each token has its number and a sum that binds it to its request.

The prompt asks `count N NAME`; token k of the answer is `k:sum `. So whoever reads an answer sees
what is lost, doubled, out of order, or another's.
"""

import re
from zlib import crc32

_ASKED = re.compile(r"count ([0-9]{1,6}) ([A-Za-z0-9._-]{1,64})")
_SAID = re.compile(r"([0-9]+):([0-9a-f]{4}) ")
DEFAULT_TOKENS = 16
FOREIGN = -1
"""The number of a piece of text that is no token of this answer."""


def prompt(tokens: int, name: str) -> str:
    """What to ask for so many tokens."""
    return f"count {tokens} {name}"


def asked(text: str) -> tuple[int, str]:
    """How many tokens a prompt asks for, and under which name."""
    found = _ASKED.search(text)
    return (DEFAULT_TOKENS, "anybody") if found is None else (int(found[1]), found[2])


def word(number: int, name: str) -> str:
    """One token."""
    return f"{number}:{crc32(f'{name}:{number}'.encode()) & 0xFFFF:04x} "


class Listener:
    """Reads an answer piece by piece and says which tokens it was given.

    Args:
        name: Whose answer it should be.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = ""

    def hear(self, text: str) -> list[int]:
        """The numbers of the tokens that are whole now; `FOREIGN` for what is none of them."""
        self._rest += text
        numbers: list[int] = []
        while (found := _SAID.match(self._rest)) is not None:
            self._rest = self._rest[found.end() :]
            number = int(found[1])
            numbers.append(number if found[0] == word(number, self._name) else FOREIGN)
        if len(self._rest) > len(word(10**6, self._name)):  # no token is that long
            self._rest = ""
            numbers.append(FOREIGN)
        return numbers
