"""The keys of a running gateway: found by their id, and read again when their file has changed.

The file is looked at every second at most, when a request comes, so a key that was revoked is
refused a second later. A file that can't be read any more, or is gone, changes nothing: who was let
in before still is, and the log says so.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from orchestrator.callers.caller import Caller, limiter_of
from orchestrator.callers.key import id_of, is_key, shown
from orchestrator.callers.record import FaultOf, KeyRecord, no_fault, read_records
from orchestrator.errors import AuthenticationError, ConfigError, one_line
from orchestrator.policies.budget import Budget
from orchestrator.request import Priority

logger = logging.getLogger(__name__)

LOOK_EVERY = 1.0
Stamp = tuple[int, int, int]
BudgetsOfCallers = Mapping[str, Sequence[Budget]]


class Keyring:
    """All keys of one file.

    Args:
        path: The file; it need not be there yet.
        clock: Tells the Unix time.

    Raises:
        ConfigError: The file can't be read.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock
        self.fault_of: FaultOf = no_fault
        """Says why budgets can't be held; a key that came with some is told of in the log."""
        self._on_budgets: Callable[[BudgetsOfCallers], None] = lambda _: None
        self._records: dict[str, KeyRecord] = {}
        self._callers: dict[str, Caller] = {}
        self._looked_at = 0.0
        self._stamp = _stamp(path)
        self._take(read_records(path))

    def __len__(self) -> int:
        return len(self._records)

    def tell_budgets(self, on_budgets: Callable[[BudgetsOfCallers], None]) -> None:
        """Tells the callers' own budgets, now and whenever they may have changed."""
        self._on_budgets = on_budgets
        on_budgets(self._budgets())

    def check(self, fault_of: FaultOf) -> None:
        """Looks whether the budgets of all keys that are valid can be held.

        Raises:
            ConfigError: Those of one can't.
        """
        for record in self._records.values():
            if (fault := self._fault(record, fault_of)) is not None:
                raise ConfigError(fault)

    def _fault(self, record: KeyRecord, fault_of: FaultOf) -> str | None:
        expired = record.expires_at is not None and self._clock() >= record.expires_at
        if record.revoked_at is not None or expired:
            return None
        fault = fault_of(record.routes, record.budgets)
        key = f"the key {shown(record.id)} of {record.caller} in {self.path}"
        return None if fault is None else f"{key} has a budget in USD, but {fault}"

    def find(self, key: str) -> Caller:
        """Finds whose key it is.

        Raises:
            AuthenticationError: It is nobody's, or it isn't valid any more.
        """
        now = self._clock()
        if abs(now - self._looked_at) >= LOOK_EVERY:
            self._look(now)
        key_id = id_of(key)
        record = self._records.get(key_id)
        if not is_key(key, record.digest if record else None) or record is None:
            raise AuthenticationError("the API key isn't valid")
        # what follows is told only to who has the whole key
        if record.revoked_at is not None:
            raise AuthenticationError("the API key was revoked")
        if record.expires_at is not None and now >= record.expires_at:
            raise AuthenticationError("the API key has expired")
        return self._callers[key_id]

    def look(self) -> None:
        """Looks at the file at once, after a change of one's own."""
        self._look(self._clock())

    def _look(self, now: float) -> None:
        self._looked_at = now
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:
            # an editor may write it anew in a moment, and who means to refuse all revokes them
            logger.error("the keys in %s are gone; those known before stay valid", self.path)
            return
        try:
            self._take(read_records(self.path))
        except ConfigError as error:
            logger.error("%s; the keys known before stay valid", error.message)  # noqa: TRY400 - the file is the cause, no line of code

    def _take(self, records: Sequence[KeyRecord]) -> None:
        for record in records:
            # one whose record is the same keeps what it has counted
            if self._records.get(record.id) != record:
                self._callers[record.id] = _caller(record)
                if (fault := self._fault(record, self.fault_of)) is not None:
                    logger.warning("%s", one_line(fault))
        self._records = {record.id: record for record in records}
        self._callers = {key_id: self._callers[key_id] for key_id in self._records}
        self._on_budgets(self._budgets())
        logger.info("%d API keys of %s are known", len(records), self.path)

    def _budgets(self) -> BudgetsOfCallers:
        budgets: dict[str, list[Budget]] = {}
        for record in self._records.values():
            if record.revoked_at is None:
                budgets.setdefault(record.caller, []).extend(_budgets(record))
        return budgets


def _caller(record: KeyRecord) -> Caller:
    return Caller(
        name=record.caller,
        routes=None if record.routes is None else frozenset(record.routes),
        priority=Priority.of(record.priority),
        max_concurrent=record.max_concurrent,
        limiter=limiter_of(record.requests_per_minute, record.tokens_per_minute),
        admin=record.admin,
    )


def _budgets(record: KeyRecord) -> list[Budget]:
    return [
        Budget(
            scope="caller",
            name=record.caller,
            per=budget.per,
            nano_usd=budget.nano_usd,
            tokens=budget.tokens,
            on_exceeded=budget.on_exceeded,
        )
        for budget in record.budgets
    ]


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - called for requests, and a Path's costs twice as much
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
