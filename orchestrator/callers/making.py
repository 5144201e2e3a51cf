"""Making and revoking keys, for the command line and for administrators."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from orchestrator.callers.key import PREFIX, digest_of, make_key
from orchestrator.callers.record import (
    MAX_AMOUNT,
    FaultOf,
    KeyBudget,
    KeyRecord,
    PriorityName,
    change_records,
    has_one_amount,
    is_name,
    no_fault,
)
from orchestrator.errors import InvalidRequestError
from orchestrator.request import MAX_NAME

DAY = 86_400
MAX_DAYS = 36_500


class NewKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new key is to be; see `record.KeyRecord`."""

    caller: str
    routes: tuple[str, ...] | None = None
    priority: PriorityName = "normal"
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    budgets: tuple[KeyBudget, ...] = ()
    expires_in_days: float | None = None
    admin: bool = False


def create_key(
    path: Path, wanted: NewKey, *, now: float, fault_of: FaultOf = no_fault
) -> tuple[KeyRecord, str]:
    """Makes a key; its text is told here and never again.

    Args:
        path: The file of keys.
        wanted: What it is to be.
        now: Unix time.
        fault_of: Says why its budgets can't be held.

    Raises:
        InvalidRequestError: Something in it makes no sense; `param` names it.
        ConfigError: The file can't be written.
    """
    _check(wanted)
    if (fault := fault_of(wanted.routes, wanted.budgets)) is not None:
        raise InvalidRequestError(fault, param="budgets")
    key_id, key = make_key()
    days = wanted.expires_in_days
    record = KeyRecord(
        id=key_id,
        caller=wanted.caller,
        digest=digest_of(key),
        created_at=int(now),
        expires_at=None if days is None else int(now + days * DAY),
        routes=wanted.routes,
        priority=wanted.priority,
        requests_per_minute=wanted.requests_per_minute,
        tokens_per_minute=wanted.tokens_per_minute,
        max_concurrent=wanted.max_concurrent,
        budgets=wanted.budgets,
        admin=wanted.admin,
    )
    change_records(path, lambda records: [*records, record])
    return record, key


def revoke_key(path: Path, key_id: str, *, now: float) -> KeyRecord:
    """Revokes a key for ever; one that was revoked stays revoked since then.

    Args:
        path: The file of keys.
        key_id: Its id, or what is shown of it.
        now: Unix time.

    Raises:
        InvalidRequestError: There is no such key.
        ConfigError: The file can't be written.
    """
    wanted = key_id.removeprefix(f"{PREFIX}-").partition("-")[0]
    revoked: list[KeyRecord] = []

    def revoke(records: Sequence[KeyRecord]) -> list[KeyRecord]:
        changed = [
            msgspec.structs.replace(record, revoked_at=record.revoked_at or int(now))
            if record.id == wanted
            else record
            for record in records
        ]
        revoked.extend(record for record in changed if record.id == wanted)
        return changed

    change_records(path, revoke)
    if not revoked:
        raise InvalidRequestError("there is no key with that id", param="id")
    return revoked[0]


def _check(wanted: NewKey) -> None:
    if not is_name(wanted.caller):
        raise InvalidRequestError(
            f"caller must be a name of 1 to {MAX_NAME} printable characters", param="caller"
        )
    if wanted.routes is not None and not wanted.routes:
        raise InvalidRequestError("routes must name a model, or be left out", param="routes")
    for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent", "expires_in_days"):
        number: float | None = getattr(wanted, name)
        most = MAX_DAYS if name == "expires_in_days" else MAX_AMOUNT
        if number is not None and not 0 < number <= most:
            raise InvalidRequestError(f"{name} must be above 0, and {most} at most", param=name)
    for budget in wanted.budgets:
        if not has_one_amount(budget):
            raise InvalidRequestError(
                "a budget has one amount, of nano_usd or of tokens", param="budgets"
            )
        if not 0 <= (budget.nano_usd or budget.tokens or 0) <= MAX_AMOUNT:
            raise InvalidRequestError(
                f"a budget is 0 to {MAX_AMOUNT} nano_usd or tokens", param="budgets"
            )
