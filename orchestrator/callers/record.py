"""What is kept of each key, and the file it is kept in.

The file is JSON, readable by its owner alone, and replaced as a whole, so whoever reads it sees one
state. Changes from several processes follow each other under a lock.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from orchestrator.errors import ConfigError

MAX_FILE_BYTES = 16 << 20
PriorityName = Literal["background", "normal", "high", "critical"]


class KeyBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the holder may spend; see `policies.budget.Budget`."""

    per: Literal["hour", "day", "month"]
    nano_usd: int | None = None
    tokens: int | None = None
    on_exceeded: Literal["reject", "throttle", "warn"] = "reject"


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key, without the key."""

    id: str
    caller: str
    """Whose requests they are; several keys may have one caller, while one replaces the other."""
    digest: str
    created_at: int
    """Unix time, as are the next two; None is never."""
    expires_at: int | None = None
    revoked_at: int | None = None
    routes: tuple[str, ...] | None = None
    """Models that may be asked for; None is all."""
    priority: PriorityName = "normal"
    """The highest priority, and that of requests that name none."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    budgets: tuple[KeyBudget, ...] = ()
    admin: bool = False
    """Whether it opens `/metrics` and `/admin`, too."""


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    keys: tuple[KeyRecord, ...] = ()


_decoder = msgspec.json.Decoder(_File)


def read_records(path: Path) -> tuple[KeyRecord, ...]:
    """Reads all keys; none if there is no such file.

    Raises:
        ConfigError: The file can't be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"the keys in {path} can't be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"the keys in {path} are more than {MAX_FILE_BYTES} bytes")
    try:
        return _decoder.decode(content).keys
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no file of keys: {error}") from error


def change_records(
    path: Path, change: Callable[[Sequence[KeyRecord]], Sequence[KeyRecord]]
) -> None:
    """Replaces the keys by what `change` makes of them.

    Raises:
        ConfigError: The file can't be read or written.
    """
    try:
        with _locked(path):
            _replace(path, change(read_records(path)))
    except OSError as error:
        raise ConfigError(f"the keys in {path} can't be written: {error.strerror}") from error


def _replace(path: Path, records: Sequence[KeyRecord]) -> None:
    content = msgspec.json.format(msgspec.json.encode(_File(keys=tuple(records))))
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content + b"\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    # a file of its own: that of the keys is another one after each change
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
