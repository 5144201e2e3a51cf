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
from typing import Annotated, Literal

import msgspec

from orchestrator.errors import ConfigError
from orchestrator.request import MAX_NAME

MAX_FILE_BYTES = 16 << 20
MAX_AMOUNT = 1 << 62
"""Of whatever is counted."""
LAST_DAY = 253_402_300_799
"""Unix time at which the calendar ends, as Python knows it."""
PriorityName = Literal["background", "normal", "high", "critical"]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_AMOUNT)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]
UnixTime = Annotated[int, msgspec.Meta(ge=0, le=LAST_DAY)]


class KeyBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the holder may spend; see `policies.budget.Budget`."""

    per: Literal["hour", "day", "month"]
    nano_usd: Amount | None = None
    tokens: Amount | None = None
    unknown_price: Literal["refuse", "allow"] = "refuse"
    """Whether models without a price are an error, or what they are asked counts nothing."""
    on_exceeded: Literal["reject", "throttle", "warn"] = "reject"


FaultOf = Callable[[Sequence[str] | None, Sequence[KeyBudget]], str | None]
"""Says of a key's routes and budgets why these can't be held; None if they can."""


def no_fault(_routes: Sequence[str] | None, _budgets: Sequence[KeyBudget]) -> None:
    """Where nobody knows of prices."""


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key, without the key."""

    id: str
    caller: str
    """Whose requests they are; several keys may have one caller, while one replaces the other."""
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created_at: UnixTime
    """Unix time, as are the next two; None is never."""
    expires_at: UnixTime | None = None
    revoked_at: UnixTime | None = None
    routes: tuple[str, ...] | None = None
    """Models that may be asked for; None is all."""
    priority: PriorityName = "normal"
    """The highest priority, and that of requests that name none."""
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    max_concurrent: Count | None = None
    budgets: tuple[KeyBudget, ...] = ()
    admin: bool = False
    """Whether it opens `/metrics` and `/admin`, too."""

    def __post_init__(self) -> None:
        """Refuses what no type tells; people edit the file, too.

        Raises:
            ValueError: The caller is no name, or a budget hasn't one amount.
        """
        if not is_name(self.caller):
            raise ValueError(f"caller isn't a name of 1 to {MAX_NAME} printable characters")
        if not all(map(has_one_amount, self.budgets)):
            raise ValueError("a budget has one amount, of nano_usd or of tokens")


def is_name(text: str) -> bool:
    """Whether a caller may be called that."""
    return 0 < len(text) <= MAX_NAME and text.isprintable()


def has_one_amount(budget: KeyBudget) -> bool:
    """Whether it says how much, and in one unit."""
    return (budget.nano_usd is None) != (budget.tokens is None)


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
