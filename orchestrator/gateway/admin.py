"""`/admin`: deployments, breakers, keys, usage and the reload, for administrators alone.

Whoever comes here has shown an administrator's key; the gateway has looked. Files are read and
written off the loop.
"""

import asyncio
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.callers.door import Door
from orchestrator.callers.keyring import Keyring
from orchestrator.callers.making import NewKey, create_key, revoke_key
from orchestrator.callers.record import read_records
from orchestrator.errors import InvalidRequestError, LedgerUnavailableError
from orchestrator.gateway.body import read_body
from orchestrator.gateway.keys import public
from orchestrator.gateway.reload import Reload
from orchestrator.ledger.store import GROUPS, By, Sum, reading
from orchestrator.wiring import System

ADMIN = "/admin"
MAX_BODY = 64 << 10
ReloadNow = Callable[[], Awaitable[Reload]]
_TIME = re.compile(r"[0-9]{1,15}")


class BreakerOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an administrator wants of a circuit breaker."""

    state: Literal["open", "closed", "auto"]
    """Held so, whatever is counted; `auto` lets it go by what it counts again."""


_new_keys = msgspec.json.Decoder(NewKey)
_breaker_orders = msgspec.json.Decoder(BreakerOrder)


class Admin:
    """The endpoints.

    Args:
        system: What runs.
        door: Its keys are made and revoked here.
        ledger: The usage ledger; None if there is none.
        reload: Reads the configuration anew; None where it came from no file.
    """

    def __init__(
        self, system: System, door: Door, ledger: Path | None, reload: ReloadNow | None
    ) -> None:
        self._system = system
        self._door = door
        self._ledger = ledger
        self._reload = reload

    def add_to(self, app: FastAPI) -> None:
        """Adds the endpoints; none of them stands in the public document."""
        for method, path, endpoint in (
            ("GET", "/deployments", self._deployments),
            ("PUT", "/deployments/{deployment}/breaker", self._force_breaker),
            ("GET", "/keys", self._list_keys),
            ("POST", "/keys", self._create_key),
            ("DELETE", "/keys/{key_id}", self._revoke_key),
            ("GET", "/usage", self._usage),
            ("POST", "/reload", self._read_anew),
        ):
            app.router.add_route(ADMIN + path, endpoint, methods=[method], include_in_schema=False)

    async def _deployments(self, _: Request) -> Response:
        return _json([asdict(health) for health in self._system.health()])

    async def _force_breaker(self, request: Request) -> Response:
        name: str = request.path_params["deployment"]
        deployment = self._system.deployments.get(name)
        if deployment is None:
            raise InvalidRequestError(f"no deployment is called {name[:100]!r}", param="deployment")
        body = await read_body(request.receive, MAX_BODY, request.headers.get("content-length"))
        try:
            order = _breaker_orders.decode(body)
        except msgspec.DecodeError as error:
            raise InvalidRequestError(f"the body is no order: {error}", param="state") from None
        deployment.force_breaker(None if order.state == "auto" else order.state)
        return _json(asdict(deployment.health()))

    async def _list_keys(self, _: Request) -> Response:
        records = await asyncio.to_thread(read_records, self._keyring.path)
        return _json([public(record) for record in records])

    async def _create_key(self, request: Request) -> Response:
        body = await read_body(request.receive, MAX_BODY, request.headers.get("content-length"))
        try:
            wanted = _new_keys.decode(body)
        except msgspec.DecodeError as error:
            raise InvalidRequestError(f"the body is no new key: {error}") from None
        record, key = await asyncio.to_thread(
            create_key,
            self._keyring.path,
            wanted,
            now=_unix_time(),
            fault_of=self._keyring.fault_of,
        )
        self._keyring.look()
        return _json(public(record) | {"key": key}, 201)

    async def _revoke_key(self, request: Request) -> Response:
        key_id: str = request.path_params["key_id"]
        record = await asyncio.to_thread(revoke_key, self._keyring.path, key_id, now=_unix_time())
        self._keyring.look()
        return _json(public(record))

    async def _usage(self, request: Request) -> Response:
        if self._ledger is None:
            raise InvalidRequestError("the configuration has no section ledger")
        by = request.query_params.get("by", "caller")
        since = request.query_params.get("since_ms", "0")
        if by not in GROUPS:
            raise InvalidRequestError(f"by is one of {', '.join(GROUPS)}", param="by")
        if _TIME.fullmatch(since) is None:
            raise InvalidRequestError("since_ms is Unix time in milliseconds", param="since_ms")
        sums = await asyncio.to_thread(_sums, self._ledger, by, int(since))
        return _json([asdict(group) for group in sums])

    async def _read_anew(self, _: Request) -> Response:
        if self._reload is None:
            raise InvalidRequestError("there is no file that could be read anew")
        return _json(asdict(await self._reload()))

    @property
    def _keyring(self) -> Keyring:
        if self._door.keyring is None:
            raise InvalidRequestError("callers.keys names no file, so no keys are kept")
        return self._door.keyring


def _sums(ledger: Path, by: By, since_ms: int) -> list[Sum]:
    try:
        with reading(ledger) as store:
            return store.sums(by, since_ms)
    except sqlite3.Error as error:
        raise LedgerUnavailableError(f"the ledger can't be read: {error}") from error


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _unix_time() -> float:
    return time.time()  # noqa: TID251 - a key's age is the calendar's
