"""Callers by signed tokens (JWT, RFC 7519): somebody else has made sure who they are.

PyJWT checks signature, expiry, issuer and audience; only asymmetric algorithms are admitted, so no
public key can pass for a secret. The signers' keys come from a JWKS (RFC 7517), a file or an
address. They are fetched off the loop, once for all who wait, when a token names a key that isn't
known, but not more often than every `FETCH_EVERY` seconds; after a failure sooner, at first within
a second. What was fetched is fetched anew behind everybody's back when it is `STALE_AFTER` seconds
old, so that a key that was withdrawn is no longer believed; if that fails, it goes on being used.
"""

import asyncio
import json
import logging
import math
import urllib.request
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import cast

import jwt

from orchestrator.callers.caller import Caller, Tally, limiter_of
from orchestrator.errors import AuthenticationError
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.request import MAX_NAME, Priority

logger = logging.getLogger(__name__)

FETCH_EVERY = 60.0
AFTER_FAILURE = 1.0
"""Seconds after a first failure; twice as many after each further one, up to `FETCH_EVERY`."""
STALE_AFTER = 600.0
FETCH_SECONDS = 5.0
MAX_JWKS_BYTES = 1 << 20
MAX_TOKEN = 8192
"""Characters; a longer one isn't read."""
MAX_COUNTED = 10_000
"""Callers whose requests are counted at a time; of more, who asked longest ago is counted anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """Whose tokens are believed, and what they say."""

    jwks: str
    """Path of a file, or an address with http:// or https://."""
    issuer: str
    audience: str | None
    algorithms: Sequence[str]
    caller_claim: str
    routes_claim: str | None
    """Its texts are the models that may be asked for; None lets everyone ask for all."""
    priority: Priority
    leeway: float
    """Seconds that clocks may differ."""
    max_concurrent: int | None = None
    """Of each caller, as are the next two."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class _Shares:
    """What each caller has used of its limits, over all its tokens."""

    def __init__(self, settings: TokenSettings) -> None:
        self._requests = settings.requests_per_minute
        self._tokens = settings.tokens_per_minute
        self._known: OrderedDict[str, tuple[Tally, RateLimiter | None]] = OrderedDict()

    def of(self, name: str) -> tuple[Tally, RateLimiter | None]:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = Tally(), limiter_of(self._requests, self._tokens)
            if len(self._known) > MAX_COUNTED:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return known


class TokenCheck:
    """Tells whose a token is.

    Args:
        settings: See there.
    """

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetching: asyncio.Event | None = None
        """Set when the fetch that is under way has ended."""
        self._fetch_from = -math.inf
        """Loop time, seconds; before that nothing is fetched."""
        self._stale_from = math.inf
        """Loop time, seconds."""
        self._failures = 0
        """Since the last success."""
        self._refreshing: asyncio.Task[None] | None = None
        self._required = ["exp", "iss", settings.caller_claim]
        limits = (settings.max_concurrent, settings.requests_per_minute, settings.tokens_per_minute)
        self._shares = _Shares(settings) if any(limit is not None for limit in limits) else None

    async def find(self, token: str) -> Caller:
        """Finds whose token it is.

        Raises:
            AuthenticationError: Its signature, its time, its issuer or its audience is wrong.
        """
        settings = self._settings
        try:
            key = await self._key_of(token)
            claims = cast(
                "dict[str, object]",
                jwt.decode(
                    token,
                    key,
                    algorithms=settings.algorithms,
                    issuer=settings.issuer,
                    audience=settings.audience,
                    leeway=settings.leeway,
                    options={"require": self._required},
                ),
            )
        except jwt.ExpiredSignatureError:
            raise AuthenticationError("the token has expired") from None
        except jwt.PyJWTError:
            # what exactly is wrong would help who tries; the signer's own tools tell the holder
            raise AuthenticationError("the token isn't valid") from None
        return self._caller(claims)

    def _caller(self, claims: Mapping[str, object]) -> Caller:
        name = claims[self._settings.caller_claim]
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise AuthenticationError(f"the token's {self._settings.caller_claim} names no caller")
        routes = None
        if self._settings.routes_claim is not None:
            routes = _texts(claims.get(self._settings.routes_claim))
        tally, limiter = (Tally(), None) if self._shares is None else self._shares.of(name)
        return Caller(
            name=name,
            routes=routes,
            priority=self._settings.priority,
            max_concurrent=self._settings.max_concurrent,
            limiter=limiter,
            tally=tally,
        )

    async def _key_of(self, token: str) -> jwt.PyJWK:
        if len(token) > MAX_TOKEN:
            raise jwt.InvalidTokenError
        name: object = jwt.get_unverified_header(token).get("kid", "")
        key = self._find(name)
        if key is None:
            await self._fetch()
            key = self._find(name)
        elif asyncio.get_running_loop().time() >= self._stale_from and self._fetching is None:
            self._refreshing = asyncio.create_task(self._fetch())
        if key is None:
            raise jwt.InvalidTokenError
        return key

    def _find(self, name: object) -> jwt.PyJWK | None:
        if name == "" and len(self._keys) == 1:
            return next(iter(self._keys.values()))  # a signer with one key needs no name for it
        return self._keys.get(name) if isinstance(name, str) else None

    async def _fetch(self) -> None:
        if self._fetching is not None:
            await self._fetching.wait()
            return
        clock = asyncio.get_running_loop().time
        if clock() < self._fetch_from:
            return
        self._fetching = over = asyncio.Event()
        try:
            keys = await self._read()
            if keys is None:
                self._failures += 1
                wait = min(FETCH_EVERY, AFTER_FAILURE * 2 ** (self._failures - 1))
            else:
                self._failures, wait = 0, FETCH_EVERY
                self._keys, self._stale_from = keys, clock() + STALE_AFTER
            self._fetch_from = clock() + wait
        finally:  # if this was cancelled, whoever comes next fetches them
            self._fetching = None
            over.set()

    async def _read(self) -> Mapping[str, jwt.PyJWK] | None:
        try:
            content = await asyncio.to_thread(_content_of, self._settings.jwks)
            found = jwt.PyJWKSet.from_dict(_object_in(content))
        except (OSError, HTTPException, ValueError, jwt.PyJWTError) as error:
            logger.error("the keys of %s can't be read: %s", self._settings.jwks, error)  # noqa: TRY400 - what is foreign is the cause, no line of code
            return None
        return {key.key_id or "": key for key in found.keys}


def _content_of(place: str) -> bytes:
    if not place.startswith(("http://", "https://")):
        return Path(place).read_bytes()[:MAX_JWKS_BYTES]
    with urllib.request.urlopen(place, timeout=FETCH_SECONDS) as answer:  # noqa: S310 - the configuration's own address
        return cast("bytes", answer.read(MAX_JWKS_BYTES))


def _object_in(content: bytes) -> dict[str, object]:
    """A JWKS, of which it is known that its keys have names of the right kind.

    Raises:
        ValueError: It isn't one.
    """
    try:
        found: object = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - foreign content, no programmer's mistake
    told = cast("dict[str, object]", found)
    keys = told.get("keys")
    for key in cast("list[object]", keys) if isinstance(keys, list) else []:
        if isinstance(key, dict) and not isinstance(
            cast("dict[str, object]", key).get("kid", ""), str
        ):
            raise ValueError("the kid of a key is no text")  # noqa: TRY004 - as above
    return told


def _texts(claim: object) -> frozenset[str]:
    if isinstance(claim, str):
        return frozenset(claim.split())  # as OAuth writes scopes
    if isinstance(claim, list):
        return frozenset(text for text in cast("list[object]", claim) if isinstance(text, str))
    return frozenset()
