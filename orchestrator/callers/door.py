"""Who comes in: a key or a token in a request's headers, before anything of its body is read."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from orchestrator.callers.caller import Caller
from orchestrator.callers.key import PREFIX, digest_of
from orchestrator.callers.keyring import Keyring
from orchestrator.errors import AuthenticationError, PermissionDeniedError
from orchestrator.reading.references import Secret

HOW = "send it as `Authorization: Bearer KEY`"


FindByToken = Callable[[str], Awaitable[Caller]]
"""Tells whose a token is; its library is loaded only where tokens are configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who is let in."""

    keyring: Keyring | None = None
    """The API keys; None if there are none."""
    tokens: FindByToken | None = None
    """Who checks signed tokens; None if nobody."""
    admin_key: Secret | None = None
    """Opens `/metrics` and `/admin`, as keys for administrators do."""
    allow_anonymous: bool = False
    """Whether a request without any key is let in."""
    anonymous_concurrent: int | None = None
    """Of these that may run at once; None is any number."""

    @property
    def nobody_is_asked(self) -> bool:
        """Whether a request needs no key."""
        return self.allow_anonymous or (self.keyring is None and self.tokens is None)

    @property
    def is_local(self) -> bool:
        """Whether nobody is asked for a key because only this machine's users are meant."""
        return self.nobody_is_asked and not self.allow_anonymous

    @property
    def has_administrators(self) -> bool:
        """Whether there can be anybody for whom `/admin` is there."""
        return self.admin_key is not None or self.keyring is not None

    @property
    def metrics_are_open(self) -> bool:
        """Whether there is no key at all."""
        return self.keyring is None and self.tokens is None and self.admin_key is None

    @property
    def anybody(self) -> Caller | None:
        """Whoever has no key, as one who is counted; None isn't counted."""
        if self.anonymous_concurrent is None:
            return None
        return Caller(name="", max_concurrent=self.anonymous_concurrent)


class Door:
    """Lets callers in.

    Args:
        rules: Whom.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open = rules.nobody_is_asked
        self._anybody = rules.anybody

    @property
    def rules(self) -> Rules:
        """Who is let in now."""
        return self._rules

    def go_by(self, rules: Rules) -> None:
        """Goes by other rules from now on; who was let in before is in."""
        if rules.anonymous_concurrent != self._rules.anonymous_concurrent:
            self._anybody = rules.anybody
        self._rules = rules
        self._open = rules.nobody_is_asked

    @property
    def keyring(self) -> Keyring | None:
        """The API keys."""
        return self._rules.keyring

    @property
    def asks(self) -> bool:
        """Whether a request needs a key."""
        return not self._open

    @property
    def is_local(self) -> bool:
        """Whether nobody is asked for a key because only this machine's users are meant."""
        return self._rules.is_local

    @property
    def has_administrators(self) -> bool:
        """Whether there can be anybody for whom `/admin` is there."""
        return self._rules.has_administrators

    async def enter(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Tells who asks; None is anybody.

        Raises:
            AuthenticationError: The key or token is missing, or isn't valid.
        """
        key = _presented(headers)
        if self._open:
            # clients send whatever they were given, also where nobody asks for it
            if key is None or not self._is_known_kind(key):
                return self._anybody
        elif key is None:
            raise AuthenticationError(f"an API key is needed; {HOW}")
        return await self._find(key)

    async def enter_as_administrator(
        self, headers: Mapping[bytes, bytes], *, metrics: bool = False
    ) -> None:
        """Makes sure that an administrator asks, or for metrics, that nobody else must.

        Raises:
            AuthenticationError: The key is missing, or isn't valid.
            PermissionDeniedError: It isn't an administrator's.
        """
        if metrics and self._rules.metrics_are_open:
            return
        key = _presented(headers)
        if key is None:
            raise AuthenticationError(f"an administrator's key is needed; {HOW}")
        admin_key = self._rules.admin_key
        # of digests, for a comparison of texts of different lengths tells so by its time
        if admin_key and hmac.compare_digest(digest_of(key), digest_of(admin_key.reveal())):
            return
        if not (await self._find(key)).admin:
            raise PermissionDeniedError("this key isn't an administrator's")

    def _is_known_kind(self, key: str) -> bool:
        rules = self._rules
        return (rules.keyring is not None and key.startswith(PREFIX)) or (
            rules.tokens is not None and _is_token(key)
        )

    async def _find(self, key: str) -> Caller:
        rules = self._rules
        if rules.tokens is not None and _is_token(key):
            return await rules.tokens(key)
        if rules.keyring is not None:
            return rules.keyring.find(key)
        raise AuthenticationError("the API key isn't valid")


def _is_token(key: str) -> bool:
    return key.count(".") == 2 and not key.startswith(PREFIX)  # noqa: PLR2004 - header, claims, signature


def _presented(headers: Mapping[bytes, bytes]) -> str | None:
    """The key, where OpenAI's, Anthropic's and Azure's clients put it."""
    value = headers.get(b"authorization")
    if value is not None:
        kind, _, key = value.decode("latin-1").partition(" ")
        return key.strip() if kind.lower() == "bearer" and key.strip() else None
    value = headers.get(b"x-api-key") or headers.get(b"api-key")
    return value.decode("latin-1").strip() if value else None
