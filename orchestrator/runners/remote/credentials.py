"""The key that a deployment's slots send, and where the next one comes from.

A slot reads the key that is there, which costs an attribute; it never waits for one while there is
one. Only who was refused asks for another, through whatever `Credential.renewer` is: the `Session`
actor sets it, for a runner knows no actors. Nothing here shows a key's text.
"""

import asyncio
import math
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import OrchestratorError, UpstreamAuthenticationError

MAX_KEY_BYTES = 64 << 10
MAX_MARGIN = 60.0
"""Seconds before its end at which a key is replaced, or a tenth of its life if that is less."""


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """One key; two of the same text are still two, fetched at different times."""

    secret: str = field(repr=False)
    renew_at: float = math.inf
    """Loop time, seconds, at which the next one should be fetched."""


def key_from(secret: str, what: str, *, lifetime: float | None = None) -> Key:
    """Makes a key of a text that was fetched just now.

    Args:
        secret: The text; blanks around it are none of it.
        what: Where it came from, for people.
        lifetime: Seconds that it is good for; None is until it is refused.

    Raises:
        UpstreamAuthenticationError: It is empty, or no header can carry it.
    """
    secret = secret.strip()
    if not secret or not (secret.isascii() and secret.isprintable()):
        fault = "holds characters that no header can carry" if secret else "is empty"
        raise UpstreamAuthenticationError(f"the key from {what} {fault}")
    if lifetime is None:
        return Key(secret)
    margin = min(MAX_MARGIN, lifetime / 10)
    return Key(secret, asyncio.get_running_loop().time() + lifetime - margin)


def unchanged() -> bool:
    """The answer of a source that can't be looked at without fetching."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """Where keys come from."""

    name: str
    """For people; has nothing secret in it."""
    fetch: Callable[[], Awaitable[Key]]
    """Brings the key of now; raises an `OrchestratorError`. May be canceled at any time."""
    changed: Callable[[], bool] = unchanged
    """Whether there is another key than the one that was fetched last; asked every second or so."""
    watched: bool = False
    """Whether `changed` is worth asking."""
    token: bool = False
    """Whether the keys are access tokens, which every provider takes as a bearer's."""


Renewer = Callable[[Key | None], Awaitable[None]]
"""Brings another key than the one that was refused, or raises why there is none."""


class Credential:
    """The key of one deployment, shared by its slots and renewed by its session.

    Args:
        source: Where keys come from.
        secret: The key that is known already; empty if the first one has yet to be fetched.
    """

    __slots__ = ("key", "on_change", "renewer", "source")

    def __init__(self, source: KeySource, secret: str = "") -> None:
        self.source = source
        self.key = Key(secret) if secret else None
        """None until the first one was fetched."""
        self.renewer: Renewer = self._nobody
        """Set by whoever renews; until then a refusal stands."""
        self.on_change: Callable[[], None] | None = None
        """Called when another key took the place of one, if anybody wants to know."""

    def __repr__(self) -> str:
        return f"<Credential from {self.source.name}, {'held' if self.key else 'not fetched yet'}>"

    def read(self) -> str:
        """Returns the key's text; empty if none was fetched yet."""
        key = self.key
        return "" if key is None else key.secret

    async def renew(self, refused: str) -> None:
        """Waits until there is another key than the refused one.

        Args:
            refused: The text that the provider didn't take; empty if there was none to send.

        Raises:
            OrchestratorError: There is none; the old one stays.
        """
        key = self.key
        if key is None or key.secret == refused:
            await self.renewer(key)

    async def _nobody(self, refused: Key | None) -> None:
        del refused
        raise UpstreamAuthenticationError(f"nobody fetches keys from {self.source.name}")


class _KeyFile:
    """Reads a file's only line, and sees whether the file is another one now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None

    async def fetch(self) -> Key:
        """Reads it; a local file of one line isn't worth a thread.

        Raises:
            UpstreamAuthenticationError: It can't be read, or holds no key.
        """
        # before the read: what is written meanwhile is seen, and what is no key is not read again
        self._seen = state_of(self._path)
        return key_from(text_in(self._path), f"file {self._path}")

    def changed(self) -> bool:
        """Whether it was replaced or written since; a file that is gone for now has not."""
        try:
            return state_of(self._path) != self._seen
        except OrchestratorError:
            return False


def state_of(path: Path) -> tuple[int, ...]:
    """Returns what differs when the file is another one or was written.

    Raises:
        UpstreamAuthenticationError: There is no such file, or it can't be read twice.
    """
    try:
        found = path.stat()
    except OSError as error:
        unreadable = _unreadable(path, error)
        raise unreadable from error
    if not stat.S_ISREG(found.st_mode):  # a pipe gives what it has once, and would block
        raise UpstreamAuthenticationError(
            f"file {path} is no regular file, so it can't be read again"
        )
    return found.st_mtime_ns, found.st_ino, found.st_dev, found.st_size


def text_in(path: Path) -> str:
    """Reads a small file with a secret in it.

    Raises:
        UpstreamAuthenticationError: It can't be read, or isn't text.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_BYTES).decode().strip()
    except UnicodeDecodeError:
        # not chained: the cause would quote its bytes
        raise UpstreamAuthenticationError(f"file {path} isn't text") from None
    except OSError as error:
        unreadable = _unreadable(path, error)
        raise unreadable from error


def _unreadable(path: Path, error: OSError) -> OrchestratorError:
    return UpstreamAuthenticationError(f"file {path} can't be read: {error.strerror}")


def file_source(path: Path) -> KeySource:
    """A file with the key in its only line, read again when it was replaced or written."""
    file = _KeyFile(path)
    return KeySource(name=f"file {path}", fetch=file.fetch, changed=file.changed, watched=True)
